// The conversation as it is read: each message with its buttons, and an editor in the place of a message.

import { answering, goOn, isRunning, regenerate, send, stop } from "./answer.js";
import { choose, current, events, path, versions } from "./conversation.js";
import { $, button, copyBy, el, growText } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const SUGGESTIONS = [
  "Tell me a story about a fox and the moon.",
  "Explain how a steam engine works, in five short points.",
  "Write a Python function that merges two sorted lists, with a test.",
  "Compare tea and coffee in a table.",
];

const views = new Map(); // by the id of the message that each shows

class MessageView {
  constructor(message) {
    this.message = message;
    const isUser = message.role === "user";
    this.element = el("article", undefined, {
      className: `message ${message.role}`,
      ariaLabel: isUser ? "You" : "Model",
    });
    this.text = el("div", undefined, { className: isUser ? "text plain" : "text" });
    this.markdown = isUser ? null : new MarkdownView(this.text);
    this.error = el("p", undefined, { className: "error", hidden: true });
    this.acts = el("div", undefined, { className: "acts" });
    this.element.append(el("b", isUser ? "You" : "Model"), this.text, this.error, this.acts);
    for (const file of message.files ?? []) this.acts.before(fileElement(file));
    this.lastMs = 0;
    this.update();
  }

  /** Shows the message as it is now. */
  update() {
    const { message } = this;
    const begun = performance.now();
    this.#thoughts();
    const isWhole = message !== answering;
    if (this.markdown) {
      this.markdown.update(message.content, isWhole);
      this.text.classList.toggle("growing", !isWhole);
    } else if (this.text.textContent !== message.content) {
      this.text.textContent = message.content;
    }
    this.text.hidden = !message.content && message.role === "user";
    this.error.textContent = message.error ?? "";
    this.error.hidden = !message.error;
    this.lastMs = performance.now() - begun;
  }

  #thoughts() {
    const { reasoning, content } = this.message;
    if (!reasoning) return;
    if (!this.thoughts) {
      this.thoughts = el("details", undefined, { className: "thought", open: !content });
      this.thoughts.append(el("summary", "Thoughts"), el("div", "", { className: "plain" }));
      this.thoughts.lastChild.append(document.createTextNode(""));
      this.thoughtsOpen = !content;
      this.text.before(this.thoughts);
    }
    growText(this.thoughts.lastChild.firstChild, reasoning);
    // They close once, when the answer itself begins.
    if (this.thoughtsOpen && content) this.thoughts.open = this.thoughtsOpen = false;
  }

  /** The buttons: which there are depends on the other messages, too. */
  showActs(isLast) {
    const { message } = this;
    const acts = [];
    const act = (name, todo, properties) => {
      const made = button(name, todo, properties);
      made.disabled = isRunning();
      acts.push(made);
    };
    const all = versions(message);
    if (all.length > 1) {
      const at = all.indexOf(message);
      act("‹", () => choose(all[at - 1]), { label: "Version before" });
      acts.at(-1).disabled ||= at === 0;
      acts.push(el("span", `${at + 1}/${all.length}`, { className: "version" }));
      act("›", () => choose(all[at + 1]), { label: "Version after" });
      acts.at(-1).disabled ||= at === all.length - 1;
    }
    if (message.role === "user") act("Edit", () => this.edit());
    else act("Regenerate", () => regenerate(message));
    if (message.role === "assistant" && isLast && message.content) act("Continue", () => goOn(message));
    if (message.content) acts.push(button("Copy", (element) => copyBy(element, message.content)));
    if (message.note) acts.push(el("span", message.note, { className: "note" }));
    // A button that has the focus gives it to the one in its place.
    const focused = this.acts.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.acts.replaceChildren(...acts);
    if (focused) acts.find((made) => made.textContent === focused && !made.disabled)?.focus();
  }

  /** Opens an editor in the message's place. What it says then is another version; the one before stays. */
  edit() {
    if (isRunning() || this.editor) return;
    const { message } = this;
    const area = el("textarea", undefined, { value: message.content, ariaLabel: "Edit your message", rows: 1 });
    const grow = () => {
      area.style.height = "auto";
      area.style.height = `${area.scrollHeight + 2}px`;
    };
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.element.classList.remove("edited");
    };
    const submit = () => {
      const content = area.value.trim();
      if (isRunning() || (!content && !message.files?.length)) return;
      close();
      // Unchanged, it asks for another answer.
      send(message.parent, { content, ...(message.files && { files: message.files }) });
      $("input").focus();
    };
    const cancel = () => {
      close();
      $("input").focus();
    };
    this.editor = el("form", undefined, { className: "editor" });
    const submits = el("button", "Send", { type: "submit", className: "primary" });
    const row = el("div", undefined, { className: "acts" });
    row.append(submits, button("Cancel", cancel), el("span", "The message as it was stays as a version of its own."));
    this.editor.append(area, row);
    this.editor.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    area.addEventListener("input", grow);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      }
      if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        cancel();
      }
    });
    this.element.classList.add("edited");
    this.text.before(this.editor);
    grow();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

/** An attached file, which opens to its text. */
export function fileElement({ name, text }) {
  const element = el("details", undefined, { className: "file" });
  const pre = el("pre", text, { tabIndex: 0 });
  element.append(el("summary", `${name} · ${size(text)}`), pre);
  return element;
}

export function size(text) {
  const { length } = text;
  return length < 1000 ? `${length} characters` : `${(length / 1000).toFixed(1)} k characters`;
}

/** Shows the messages of the path, and keeps the elements of those that are shown already. */
function show(keepsPlace) {
  const main = $("messages");
  const follows = !keepsPlace || isAtEnd();
  const top = main.scrollTop;
  const messages = path();
  const shown = new Set(messages.map(({ id }) => id));
  for (const [id, view] of views) if (!shown.has(id) || view.message !== current.messages.get(id)) views.delete(id);
  for (const message of messages) {
    const view = views.get(message.id);
    if (view) view.update();
    else views.set(message.id, new MessageView(message));
  }
  const elements = messages.length > 0 ? messages.map(({ id }) => views.get(id).element) : [emptyElement()];
  // Elements that stay in their place are not touched: a selection, a focus or an editor in them stays too.
  const places = new Set(elements);
  for (const child of [...main.children]) if (!places.has(child)) child.remove();
  for (const [at, element] of elements.entries())
    if (main.children[at] !== element) main.insertBefore(element, main.children[at] ?? null);
  showActs();
  main.scrollTop = follows ? main.scrollHeight : top;
}

function showActs() {
  const messages = path();
  for (const message of messages) views.get(message.id)?.showActs(message === messages.at(-1));
  $("send").hidden = isRunning();
  $("stop").hidden = !isRunning();
  $("messages").setAttribute("aria-busy", isRunning());
  for (const suggestion of document.querySelectorAll(".suggestions button")) suggestion.disabled = isRunning();
}

function emptyElement() {
  const element = el("section", undefined, { className: "empty" });
  const suggestions = el("div", undefined, { className: "suggestions" });
  for (const text of SUGGESTIONS) suggestions.append(button(text, () => send(null, { content: text })));
  element.append(
    el("h2", "What would you like to know?"),
    el("p", "Write below, drop text files here, or begin with one of these:"),
    suggestions,
  );
  return element;
}

/** Whether the end of the conversation is what somebody looks at. */
function isAtEnd() {
  const main = $("messages");
  return main.scrollHeight - main.scrollTop - main.clientHeight < 80;
}

/** Edits the last message of the user's on the path; whether there is one. */
export function editLast() {
  const last = path().findLast((message) => message.role === "user");
  views.get(last?.id)?.edit();
  return last !== undefined;
}

/** Another version of the last answer. */
export function regenerateLast() {
  const last = path().at(-1);
  if (last?.role === "assistant") regenerate(last);
}

let pending = false;

/** Shows what has come of an answer, once a frame, and less often where that takes long. */
function paintSoon(message) {
  if (pending) return;
  pending = true;
  const lastMs = views.get(message.id)?.lastMs ?? 0;
  setTimeout(
    () =>
      requestAnimationFrame(() => {
        pending = false;
        paint(message);
      }),
    lastMs > 8 ? lastMs * 3 : 0,
  );
}

function paint(message) {
  const view = views.get(message.id);
  if (!view) return;
  const follows = isAtEnd();
  view.update();
  if (follows) $("messages").scrollTop = $("messages").scrollHeight;
}

events.addEventListener("opened", ({ detail }) => show(detail?.keepsPlace));
events.addEventListener("refreshed", () => show(true));
events.addEventListener("running", () => {
  showActs();
  $("announcement").textContent = isRunning() ? "The model is answering." : "The answer has ended.";
});
events.addEventListener("message", ({ detail: message }) => {
  if (message === answering) paintSoon(message);
  else {
    paint(message);
    showActs();
  }
});

/** Stops the answer under way; whether there was one. */
export function stopAnswer() {
  if (!isRunning()) return false;
  stop();
  return true;
}

export function listenToMessages() {
  $("stop").addEventListener("click", stop);
  // Code is drawn again while it grows, so its buttons have no listeners of their own.
  $("messages").addEventListener("click", (event) => {
    const copies = event.target.closest(".copy-code");
    if (copies) copyBy(copies, copies.closest(".code").querySelector("code").textContent);
  });
}
