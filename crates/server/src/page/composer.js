// Where the next message is written: its text, and files, whose text goes with it.

import { isRunning, send } from "./answer.js";
import { current, events } from "./conversation.js";
import { $, button, el, notify } from "./dom.js";
import { editLast, size } from "./messages.js";
import { server } from "./server.js";

/** The largest file that is attached, in bytes: more text than most contexts hold. */
const FILE_BYTES_MAX = 2_000_000;

let files = [];

/** Writes down what is not sent yet, for a reload of this tab. */
function keepDraft() {
  try {
    sessionStorage.setItem("hotmetal-draft", JSON.stringify({ text: $("input").value, files }));
  } catch {
    /* too large: it stays on the page */
  }
}

function readDraft() {
  try {
    const draft = JSON.parse(sessionStorage.getItem("hotmetal-draft")) ?? {};
    $("input").value = draft.text ?? "";
    files = draft.files ?? [];
  } catch {
    /* none */
  }
  showFiles();
}

function submit() {
  const content = $("input").value.trim();
  if ((!content && files.length === 0) || isRunning()) return;
  if (!server.model) {
    notify("No model is ready yet. Your text stays here: send it when the model's name is shown above.");
    return;
  }
  const attached = files;
  $("input").value = "";
  files = [];
  showFiles();
  resize();
  keepDraft();
  send(current.leaf, { content, ...(attached.length > 0 && { files: attached }) });
  $("input").focus();
}

function resize() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

/** Attaches each file that is text, and says which are not. */
async function attach(list) {
  const refused = [];
  for (const file of list) {
    if (file.size > FILE_BYTES_MAX) {
      refused.push(
        `${file.name} has ${(file.size / 1e6).toFixed(1)} MB; attach files of at most ${FILE_BYTES_MAX / 1e6} MB.`,
      );
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError("not text");
      files = [...files, { name: file.name || "pasted.txt", text }];
    } catch {
      refused.push(`${file.name} is no text in UTF-8. Save it as text, or paste the part that matters.`);
    }
  }
  if (refused.length > 0) notify(refused.join(" "));
  showFiles();
  keepDraft();
  $("input").focus();
}

function showFiles() {
  $("files").replaceChildren(
    ...files.map((file) => {
      const chip = el("li", `${file.name} · ${size(file.text)}`);
      chip.append(
        button(
          "×",
          () => {
            files = files.filter((other) => other !== file);
            showFiles();
            keepDraft();
            $("input").focus();
          },
          { label: `Remove ${file.name}` },
        ),
      );
      return chip;
    }),
  );
  $("files").hidden = files.length === 0;
}

export function listenToComposer() {
  const input = $("input");
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  for (const name of ["input", "change"]) {
    input.addEventListener(name, () => {
      resize();
      keepDraft();
    });
  }
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
    if (event.key === "ArrowUp" && input.value === "" && editLast()) event.preventDefault();
  });
  input.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  });
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    await attach([...$("file").files]);
    $("file").value = "";
  });
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    attach([...event.dataTransfer.files]);
  });
  // On a phone, the focus would open the keyboard.
  const hasKeyboard = !matchMedia("(pointer: coarse)").matches;
  events.addEventListener("opened", ({ detail }) => {
    if (hasKeyboard && !detail?.keepsPlace && !detail?.keepsFocus) input.focus();
  });
  readDraft();
  resize();
}
