// What this page asks of the server that served it: its models, an answer as it is written, and what an error means for
// the reader.

import { $, el } from "./dom.js";

export const server = { models: [], model: null };

/** `models`: the list of models is there. `chosen`: another model. `key`: the server wants a key. */
export const serverEvents = new EventTarget();

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

let attempts = 0;

/** What is known of a model that the first message loads. */
export const NOT_LOADED = { device: "not loaded yet", sampling: {}, chat: true, system: true };

/** Whether the model answers without being loaded first. */
function isLoaded(model) {
  return !model.status || model.status.value === "loaded";
}

/** Asks for the models until all are loaded. */
export async function connect() {
  const attempt = ++attempts;
  const again = () =>
    setTimeout(() => {
      if (attempt === attempts) connect();
    }, 1500);
  try {
    const response = await fetch("v1/models", { headers: headers() });
    const body = await response.json();
    if (!response.ok) {
      $("facts").textContent =
        response.status === 401 ? "The server asks for an API key: enter it in Settings." : body.error.message;
      if (response.status === 401) serverEvents.dispatchEvent(new Event("key"));
      else again();
      return;
    }
    server.models = body.data.map((model) => ({ x_hotmetal: NOT_LOADED, ...model }));
    serverEvents.dispatchEvent(new Event("models"));
    const health = await (await fetch("health")).json();
    // Other models may still be loading.
    if (health.status === "loading") again();
  } catch {
    $("facts").textContent = "The server cannot be reached. Trying again …";
    again();
  }
}

/** Talks to the model of this name from now on, or to the first. */
export function chooseModel(id) {
  if (server.models.length === 0) return;
  server.model = server.models.find((known) => known.id === id) ?? server.models[0];
  const text = (known) => (isLoaded(known) ? known.id : `${known.id} · ${known.status.value}`);
  $("models").replaceChildren(...server.models.map((known) => el("option", text(known), { value: known.id })));
  $("models").value = server.model.id;
  $("choice").hidden = server.models.length < 2;
  serverEvents.dispatchEvent(new Event("chosen"));
}

/** The events of a streamed answer. Throws a `ServerError`, or an `AbortError` when `signal` stops it. */
export async function* ask(body, signal) {
  let response;
  try {
    response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServerError(0, {});
  }
  // It was loaded for this, or could not be.
  if (!isLoaded(server.model)) connect();
  if (!response.ok) throw new ServerError(response.status, (await response.json().catch(() => ({}))).error ?? {});
  let isWhole = false;
  try {
    for await (const event of events(response)) {
      if (event === null) {
        isWhole = true;
        break;
      }
      if (event.error) throw new ServerError(response.status, event.error);
      yield event;
    }
  } catch (error) {
    throw error.name === "AbortError" || error instanceof ServerError ? error : new ServerError(0, {});
  }
  if (!isWhole) throw new ServerError(0, { code: "cut" });
}

/** The JSON behind each `data: `, and null for the `[DONE]` at the end. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      const event = buffer.slice(0, end);
      if (event === "data: [DONE]") yield null;
      else if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}

/** What went wrong, with what the reader can do about it. */
export class ServerError extends Error {
  constructor(status, { message, code, param }) {
    super([message && `${message.replace(/\.$/, "")}.`, advice(status, code, param)].filter(Boolean).join(" "));
  }
}

const FIELDS = {
  temperature: "Temperature",
  top_k: "Top k",
  top_p: "Top p",
  min_p: "Min p",
  repetition_penalty: "Repetition penalty",
  presence_penalty: "Presence penalty",
  frequency_penalty: "Frequency penalty",
  max_tokens: "Max tokens",
  seed: "Seed",
};

function advice(status, code, param) {
  if (code === "cut") return "The connection ended before the answer did. Press Continue to go on, or Regenerate.";
  if (code === "context_length_exceeded") {
    return "The conversation is longer than the model's context: begin a new one, shorten a message, or attach less.";
  }
  if (code === "model_not_found") return "Choose another model, or reload the page if the server was started anew.";
  if (code === "loading") return "The model is still loading: press Regenerate when it is ready.";
  if (FIELDS[param]) return `Change “${FIELDS[param]}” in Settings, or empty it, then press Regenerate.`;
  if (param === "continue_final_message") return "Press Regenerate for a new answer instead.";
  switch (status) {
    case 0:
      return "The server cannot be reached. Look whether it still runs, then press Regenerate.";
    case 401:
      return "Enter the server's API key in Settings, then press Regenerate.";
    case 413:
      return "Attach smaller files, or begin a new conversation.";
    case 429:
    case 503:
      return "The server is busy or not ready: wait a moment, then press Regenerate.";
    default:
      // The answer had begun.
      if (status === 200) return "Press Continue to go on, or Regenerate.";
      return status >= 500 ? "The server has failed: its log says why. Press Regenerate to try again." : "";
  }
}
