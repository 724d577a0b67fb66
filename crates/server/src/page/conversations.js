// The list of conversations: opens, searches, renames, deletes, exports and imports them.

import { answering, stop } from "./answer.js";
import { begin, current, events, openConversation, refresh, update } from "./conversation.js";
import { $, button, download, el, notify } from "./dom.js";
import * as storage from "./storage.js";

const FORMAT = "hotmetal-conversations";

let renaming = null; // the id of the conversation whose title is edited

export function newConversation() {
  stop();
  begin();
}

async function open(id) {
  if (id !== current.id) stop();
  if (id !== current.id && !(await openConversation(id))) notify("This conversation is no longer here: another tab has deleted it.");
  if (isNarrow()) showList(false);
}

/** Opens the conversation that the address names, or a new one. */
export async function openFromAddress() {
  stop();
  const id = location.hash.slice(1);
  if (!id || !(await openConversation(id))) begin();
}

let shows = 0;

/** Shows the conversations in which the words of the search stand, in title or text. */
async function show() {
  if (renaming) return;
  const own = ++shows;
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = await storage.conversations();
  if (words.length > 0) {
    const texts = new Map(found.map(({ id, title }) => [id, [title]]));
    for (const { conversation, content } of await storage.allMessages()) texts.get(conversation)?.push(content);
    found = found.filter(({ id }) => {
      const text = texts.get(id).join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }
  if (own !== shows || renaming) return;
  const focused = document.activeElement?.closest?.("#conversations li")?.dataset.id;
  $("conversations").replaceChildren(...found.map(row));
  if (focused) document.querySelector(`#conversations li[data-id="${CSS.escape(focused)}"] .open`)?.focus();
  $("no-conversations").hidden = found.length > 0;
  $("no-conversations").textContent =
    words.length > 0
      ? "No conversation has these words."
      : "Conversations that you begin are listed here. They stay in this browser.";
}

function row(conversation) {
  const { id, title } = conversation;
  const element = el("li");
  element.dataset.id = id;
  const opens = button(title || "Untitled", () => open(id), { className: "open" });
  opens.title = `${title}\n${new Date(conversation.changed).toLocaleString()}`;
  if (id === current.id) opens.setAttribute("aria-current", "true");
  element.append(
    opens,
    button("✎", () => rename(element, conversation), { label: `Rename “${title}”` }),
    button("↓", () => exportOnly([conversation]), { label: `Export “${title}”` }),
    button("×", () => remove(conversation), { label: `Delete “${title}”` }),
  );
  return element;
}

function rename(element, { id, title }) {
  renaming = id;
  const input = el("input", undefined, { value: title, ariaLabel: "Title", maxLength: 200 });
  const end = async (isKept) => {
    if (renaming !== id) return;
    renaming = null;
    const name = input.value.trim();
    if (isKept && name && name !== title) {
      if (id === current.id) await update({ title: name });
      else await storage.updateConversation(id, { title: name });
    }
    await show();
    document.querySelector(`#conversations li[data-id="${CSS.escape(id)}"] .open`)?.focus();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      end(false);
    }
  });
  input.addEventListener("blur", () => end(true));
  element.replaceChildren(input);
  input.select();
}

async function remove({ id, title }) {
  if (id === current.id) stop();
  const removed = await storage.remove(id);
  if (id === current.id) begin();
  await show();
  notify(`“${title}” is deleted.`, {
    name: "Undo",
    act: async () => {
      await storage.add(removed.conversation, removed.messages);
      await show();
    },
  });
}

async function exportOnly(chosen) {
  const all = await storage.allMessages();
  const conversations = chosen.map((conversation) => ({
    ...conversation,
    messages: all.filter((message) => message.conversation === conversation.id),
  }));
  const day = new Date().toISOString().slice(0, 10);
  download(
    `hotmetal-${chosen.length === 1 ? "conversation" : "conversations"}-${day}.json`,
    JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1),
  );
}

/** Adds the conversations of a file that this page has exported. What is here already stays as it is. */
async function importFrom(file) {
  let read;
  try {
    read = conversationsOf(JSON.parse(await file.text()));
  } catch (error) {
    const why = error instanceof SyntaxError ? "it is no JSON" : error.message;
    notify(`${file.name} cannot be imported: ${why}. Choose a file that this page has exported.`);
    return;
  }
  let count = 0;
  for (const { messages, ...conversation } of read) count += await storage.add(conversation, messages);
  await show();
  await refresh(answering);
  notify(
    count > 0
      ? `${read.length} conversations were read, with ${count} messages that were not here.`
      : "All of these conversations are here already.",
  );
}

/** What an imported file has, field by field: nothing else of it is kept. */
function conversationsOf({ format, conversations } = {}) {
  if (format !== FORMAT || !Array.isArray(conversations)) throw new TypeError("it has no conversations of this page");
  const text = (value, field) => {
    if (typeof value !== "string") throw new TypeError(`${field} of a conversation is no text`);
    return value;
  };
  const time = (value) => (Number.isFinite(value) ? value : Date.now());
  const optional = (fields) =>
    Object.fromEntries(
      Object.entries(fields).filter(([, value]) => typeof value === "string" || Number.isFinite(value)),
    );
  return conversations.map((conversation) => {
    const id = text(conversation.id, "id");
    const messages = conversation.messages.map((message) => ({
      id: text(message.id, "id of a message"),
      conversation: id,
      parent: typeof message.parent === "string" ? message.parent : null,
      role: message.role === "user" ? "user" : "assistant",
      content: text(message.content, "content"),
      created: time(message.created),
      ...optional({ reasoning: message.reasoning, note: message.note, error: message.error, used: message.used }),
      ...(Array.isArray(message.files) && {
        files: message.files.map(({ name, text: content }) => ({
          name: text(name, "name of a file"),
          text: text(content, "text of a file"),
        })),
      }),
    }));
    return {
      id,
      title: text(conversation.title, "title"),
      system: text(conversation.system, "system"),
      model: text(conversation.model, "model"),
      leaf: typeof conversation.leaf === "string" ? conversation.leaf : null,
      changed: time(conversation.changed),
      messages,
    };
  });
}

const isNarrow = () => matchMedia("(max-width: 60rem)").matches;

export function showList(isOpen) {
  $("list").hidden = !isOpen;
  $("list-toggle").setAttribute("aria-expanded", isOpen);
}

export function toggleList() {
  showList($("list").hidden);
  if (!$("list").hidden) $("search").focus();
  else $("input").focus();
}

export function listenToList() {
  $("list-toggle").addEventListener("click", toggleList);
  $("new").addEventListener("click", () => {
    newConversation();
    if (isNarrow()) showList(false);
  });
  let searching;
  $("search").addEventListener("input", () => {
    clearTimeout(searching);
    searching = setTimeout(show, 150);
  });
  $("export").addEventListener("click", async () => {
    const all = await storage.conversations();
    if (all.length > 0) exportOnly(all);
    else notify("There is no conversation to export yet.");
  });
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async () => {
    for (const file of $("import-file").files) await importFrom(file);
    $("import-file").value = "";
  });
  for (const name of ["opened", "list", "refreshed"]) events.addEventListener(name, show);
  storage.onOtherTab(show);
  addEventListener("hashchange", openFromAddress);
  showList(!isNarrow());
}
