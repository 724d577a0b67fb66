// Asks for an answer and writes it down as it comes: a new one, another version of one, or the rest of one.

import { append, current, events, path, save, tell } from "./conversation.js";
import { $ } from "./dom.js";
import { ask, server } from "./server.js";
import { preferences } from "./storage.js";

/** How often an answer is written down while it grows, in ms: a tab that is closed loses no more than this. */
const SAVE_MS = 1000;

let running = null; // the AbortController of the answer under way
export let answering = null; // and its message

export const isRunning = () => running !== null;

export function stop() {
  running?.abort();
}

/** Takes the place of the one answer that may be under way; whether it was free. */
function begin() {
  if (running || !server.model) return false;
  running = new AbortController();
  tell("running");
  return true;
}

/** Says something behind a message (null: at the beginning) and asks for an answer. */
export async function send(parent, fields) {
  if (!begin()) return;
  const question = await append(parent, { role: "user", ...fields });
  await run(await append(question.id, { role: "assistant", reasoning: "" }), false);
}

/** Another version of an answer. */
export async function regenerate({ parent }) {
  if (begin()) await run(await append(parent, { role: "assistant", reasoning: "" }), false);
}

/** Goes on with an answer where it ended. */
export async function goOn(message) {
  if (begin()) await run(message, true);
}

/** A file's text as part of a message, between fences longer than any in it. */
function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `File \`${name}\`:\n\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** What the model sees of the conversation before `message`. */
function seen(message) {
  const messages = [];
  for (const { id, role, content, files = [] } of path()) {
    if (id === message.id) break;
    if (role === "assistant" && !content) {
      // A question without an answer is no part of it: many chat templates refuse two questions in a row.
      messages.pop();
      continue;
    }
    messages.push({ role, content: [content, ...files.map(fenced)].filter(Boolean).join("\n\n") });
  }
  if (current.system && server.model.x_hotmetal.system) messages.unshift({ role: "system", content: current.system });
  return messages;
}

/** The sampler settings that the reader has set. */
function samplers() {
  const set = Object.entries(preferences()).filter(([name]) => name.startsWith("sampler."));
  return Object.fromEntries(set.map(([name, value]) => [name.slice("sampler.".length), value]));
}

async function run(message, continues) {
  const body = {
    model: server.model.id,
    messages: seen(message),
    ...samplers(),
    stream: true,
    return_progress: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (continues) {
    const { content, reasoning } = message;
    body.messages.push({ role: "assistant", content, ...(reasoning && { reasoning_content: reasoning }) });
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  }
  Object.assign(message, { error: undefined, note: undefined });
  answering = message;
  tell("message", message);
  const progress = new Progress();
  let saved = performance.now();
  try {
    for await (const event of ask(body, running.signal)) {
      if (event.prompt_progress) progress.prompt(event.prompt_progress);
      take(message, event, progress);
      tell("message", message);
      if (performance.now() - saved > SAVE_MS) {
        saved = performance.now();
        save(message);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") message.note = "stopped";
    else message.error = error.message;
  }
  progress.end();
  running = null;
  answering = null;
  tell("message", message);
  tell("running");
  await save(message);
}

function take(message, event, progress) {
  const choice = event.choices?.[0];
  message.content += choice?.delta.content ?? "";
  message.reasoning = (message.reasoning ?? "") + (choice?.delta.reasoning_content ?? "");
  if (choice?.finish_reason === "length") message.note = "ended at Max tokens or the end of the context";
  if (event.usage) {
    progress.usage(event.usage);
    message.used = event.usage.total_tokens;
  }
  if (event.x_hotmetal) {
    const { timings, seed, cached_tokens: cached } = event.x_hotmetal;
    if (timings.decode_tokens_per_s) progress.rate(timings.decode_tokens_per_s);
    const note = [`first token ${timings.ttft_ms.toFixed(0)} ms`, `seed ${seed}`];
    if (cached) note.push(`${cached} tokens cached`);
    message.note = [message.note, ...note].filter(Boolean).join(" · ");
  }
}

/** How far the answer under way is: first how long the prompt takes, then tokens per second. */
class Progress {
  constructor() {
    this.begun = performance.now();
    this.text = "Waiting for the server";
    $("rate").textContent = "";
    this.timer = setInterval(() => this.show(), 250);
  }

  /** `processed` of `total` tokens are read. The server says so at the beginning and at the end of the prompt. */
  prompt({ total, processed }) {
    $("reading").max = total;
    if (processed > 0) $("reading").value = processed;
    else $("reading").removeAttribute("value");
    if (processed >= total) this.end();
    else this.text = processed > 0 ? `Reading ${processed} of ${total} tokens` : `Reading ${total} tokens`;
    this.show();
  }

  /** Shows it once it takes long enough to be seen. */
  show() {
    const seconds = (performance.now() - this.begun) / 1000;
    if (!this.timer || seconds < 0.5) return;
    $("progress").hidden = false;
    $("progress-text").textContent = `${this.text} · ${seconds.toFixed(0)} s`;
  }

  usage({ completion_tokens: made, total_tokens: used }) {
    if (made > 0 && !this.first) this.first = { time: performance.now(), made };
    const seconds = this.first ? (performance.now() - this.first.time) / 1000 : 0;
    if (seconds > 0 && made > this.first.made) this.rate((made - this.first.made) / seconds);
    if (made > 0) this.end();
    gauge(used);
  }

  rate(tokens_per_s) {
    $("rate").textContent = `${tokens_per_s.toFixed(1)} tok/s`;
  }

  end() {
    clearInterval(this.timer);
    this.timer = null;
    $("progress").hidden = true;
  }
}

/** Shows how much of the context is used; without a number, what the last answer on the path used. */
export function gauge(used = path().findLast((message) => message.used)?.used ?? 0) {
  const most = server.model?.x_hotmetal.context_len ?? 0;
  $("gauge").firstElementChild.style.width = `${(most ? Math.min(used / most, 1) : 0) * 100}%`;
  $("gauge").setAttribute("aria-valuemax", most);
  $("gauge").setAttribute("aria-valuenow", used);
  $("used").textContent = most ? `${used} of ${most} tokens` : "";
}

events.addEventListener("opened", () => gauge());
