// The page at `/`: a conversation with the model that this server serves. Asks this server alone, keeps what is said in
// this browser, and shows text as text: nothing that a model writes is ever read as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const SAMPLERS = [
  ["temperature", "Temperature", 0.05], ["top_k", "Top k", 1], ["top_p", "Top p", 0.01], ["min_p", "Min p", 0.01],
  ["repetition_penalty", "Repetition penalty", 0.05], ["presence_penalty", "Presence penalty", 0.1],
  ["frequency_penalty", "Frequency penalty", 0.1], ["max_tokens", "Most tokens", 1], ["seed", "Seed", 1],
];

/** What survives a reload. */
const state = { messages: [], system: "", settings: {}, theme: "", used: 0, model: "" };
let models = []; // all that the server serves
let model = null; // the one that is talked to
let running = null; // the AbortController of the answer under way

function load() {
  try { Object.assign(state, JSON.parse(localStorage.getItem("hotmetal") || "{}")); } catch { /* begin anew */ }
  $("system").value = state.system;
  $("key").value = sessionStorage.getItem("hotmetal-key") || "";
  document.documentElement.dataset.theme = state.theme;
}

function save() {
  try { localStorage.setItem("hotmetal", JSON.stringify(state)); } catch { /* full, or not allowed: the tab still has it */ }
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

/** The model's facts; asks again until it is loaded. */
async function connect() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    const body = await response.json();
    if (response.ok) {
      models = body.data;
      offerModels();
      choose(state.model);
      // Others may be on their way.
      const health = await (await fetch("health")).json();
      if (health.status === "loading") setTimeout(connect, 1500);
      return;
    }
    $("facts").textContent = body.error.message;
    if (response.status === 401) { openSettings(true); $("key").focus(); return; }
  } catch {
    $("facts").textContent = "the server cannot be reached; trying again";
  }
  setTimeout(connect, 1500);
}

/** A choice of models, where there is one. */
function offerModels() {
  $("models").replaceChildren(...models.map(({ id }) => el("option", id, { value: id })));
  $("choice").hidden = models.length < 2;
}

/** Talks to the model of this name from now on, or to the first. */
function choose(id) {
  model = models.find((known) => known.id === id) ?? models[0];
  $("models").value = model.id;
  showModel();
}

function showModel() {
  const facts = model.x_hotmetal;
  $("facts").textContent = `${model.id} · ${facts.device}`;
  $("facts").title = $("facts").textContent;
  const rows = {
    Name: model.id, Device: facts.device, Context: `${facts.context_len} tokens`, "KV cache": `${facts.kv_tokens} tokens`,
    "At a time": facts.max_sequences, Vocabulary: facts.vocab_size, "Loaded in": `${facts.load_ms} ms`, Version: facts.version,
  };
  $("model").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [el("dt", name), el("dd", value)]));
  for (const [name] of SAMPLERS) {
    $(`s-${name}`).placeholder = facts.sampling[name] ?? "";
  }
  $("system").disabled = !facts.system;
  $("system").placeholder = facts.system ? "none" : "this model's chat template shows none";
  if (!facts.chat) fail("This model has no chat template: it continues text at /v1/completions and holds no conversation.");
  gauge(state.used);
}

function el(tag, text, attributes = {}) {
  const element = Object.assign(document.createElement(tag), attributes);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Text with its code set apart. */
function formatted(text) {
  const out = el("div", undefined, { className: "text" });
  for (const [index, block] of text.split(/^```/m).entries()) {
    if (index % 2 === 1) {
      out.append(el("pre", block.replace(/^[^\n]*\n?/, "")));
      continue;
    }
    for (const [at, piece] of block.split(/`([^`\n]+)`/).entries()) {
      out.append(at % 2 === 1 ? el("code", piece) : document.createTextNode(piece));
    }
  }
  return out;
}

function messageElement(message, index) {
  const element = el("article", undefined, { className: `message ${message.role}` });
  element.append(el("b", message.role === "user" ? "You" : "Model"));
  if (message.reasoning) {
    const thought = el("details", undefined, { className: "thought", open: !message.content });
    thought.append(el("summary", "Thoughts"), el("div", message.reasoning, { className: "text" }));
    element.append(thought);
  }
  element.append(formatted(message.content));
  if (message.error) element.append(el("p", message.error, { className: "error" }));
  const acts = el("div", undefined, { className: "acts" });
  const act = (name, todo) => {
    const button = el("button", name, { type: "button", disabled: running !== null });
    button.addEventListener("click", todo);
    acts.append(button);
  };
  if (message.role === "user") act("Edit", () => edit(index));
  else act("Again", () => again(index));
  act("Copy", () => navigator.clipboard?.writeText(message.content));
  if (message.note) acts.append(el("span", message.note));
  element.append(acts);
  return element;
}

/** Shows all, and the end of it unless somebody reads what stands above. */
function show(follows = true) {
  const main = $("messages");
  const top = main.scrollTop;
  if (state.messages.length === 0) {
    main.replaceChildren(el("p", "Nothing has been said yet.", { className: "empty" }));
  } else {
    main.replaceChildren(...state.messages.map(messageElement));
  }
  main.scrollTop = follows ? main.scrollHeight : top;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

/** Whether the end of the conversation is what somebody looks at. */
function isAtEnd() {
  const main = $("messages");
  return main.scrollHeight - main.scrollTop - main.clientHeight < 80;
}

/** Shows the last message alone: all others are as they were. */
function showLast() {
  const main = $("messages");
  const follows = isAtEnd();
  const index = state.messages.length - 1;
  main.lastElementChild?.replaceWith(messageElement(state.messages[index], index));
  if (follows) main.scrollTop = main.scrollHeight;
}

function edit(index) {
  if (running) return;
  $("input").value = state.messages[index].content;
  state.messages.length = index;
  save();
  show();
  resize();
  $("input").focus();
}

function again(index) {
  if (running) return;
  state.messages.length = index;
  answer();
}

function fail(text) {
  $("messages").append(el("p", text, { className: "error" }));
}

function gauge(used) {
  const most = model?.x_hotmetal.context_len ?? 0;
  const share = most ? Math.min(used / most, 1) : 0;
  $("gauge").firstElementChild.style.width = `${share * 100}%`;
  $("gauge").setAttribute("aria-valuemax", most);
  $("gauge").setAttribute("aria-valuenow", used);
  $("used").textContent = most ? `${used} of ${most} tokens` : "";
}

function requestBody() {
  const messages = state.messages.map(({ role, content }) => ({ role, content }));
  if (state.system && model?.x_hotmetal.system) messages.unshift({ role: "system", content: state.system });
  return JSON.stringify({
    model: model?.id, messages, ...state.settings, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
  });
}

/** Asks for an answer to the conversation as it is, and shows it as it comes. */
async function answer() {
  const body = requestBody();
  const message = { role: "assistant", content: "", reasoning: "" };
  state.messages.push(message);
  running = new AbortController();
  show();
  let begun = 0, first = 0, pending = false;
  // Somebody may have begun anew before it is time to paint.
  const repaint = () => { pending = false; if (running && state.messages.at(-1) === message) showLast(); };
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body, signal: running.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      message.content += choice?.delta.content ?? "";
      message.reasoning += choice?.delta.reasoning_content ?? "";
      if (choice?.finish_reason === "length") message.note = "cut at the limit of tokens";
      if (event.usage) {
        const { completion_tokens: made, total_tokens: used } = event.usage;
        if (made > 0 && !begun) { begun = performance.now(); first = made; }
        const seconds = (performance.now() - begun) / 1000;
        if (made > first && seconds > 0) $("rate").textContent = `${((made - first) / seconds).toFixed(1)} tok/s`;
        gauge(state.used = used);
      }
      if (event.x_hotmetal) {
        const { timings, seed, cached_tokens: cached } = event.x_hotmetal;
        if (timings.decode_tokens_per_s) $("rate").textContent = `${timings.decode_tokens_per_s.toFixed(1)} tok/s`;
        const note = [`first token ${timings.ttft_ms.toFixed(0)} ms`, `seed ${seed}`];
        if (cached) note.push(`${cached} tokens cached`);
        message.note = [message.note, ...note].filter(Boolean).join(" · ");
      }
      if (!pending) { pending = true; requestAnimationFrame(repaint); }
    }
  } catch (error) {
    if (error.name === "AbortError") message.note = "stopped";
    else message.error = error.message;
  }
  running = null;
  save();
  show(isAtEnd());
  $("input").focus();
}

/** The events of a stream: what stands behind `data: `, up to `[DONE]`. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      const event = buffer.slice(0, end);
      if (event === "data: [DONE]") return;
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}

function send() {
  const text = $("input").value.trim();
  if (!text || running || !model) return;
  // A question that got no answer is no part of what the model sees: many templates refuse two in a row.
  while (state.messages.at(-1)?.role === "assistant" && !state.messages.at(-1).content) state.messages.length -= 2;
  state.messages.push({ role: "user", content: text });
  $("input").value = "";
  resize();
  answer();
}

function resize() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

function openSettings(open) {
  $("settings").hidden = !open;
  $("settings-toggle").setAttribute("aria-expanded", open);
}

function toggleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const next = (state.theme || system) === "dark" ? "light" : "dark";
  // What the system has anyway is followed where it changes.
  state.theme = next === system ? "" : next;
  document.documentElement.dataset.theme = state.theme;
  save();
}

function restart() {
  running?.abort();
  state.messages = [];
  $("rate").textContent = "";
  gauge(state.used = 0);
  save();
  show();
  $("input").focus();
}

function makeSettings() {
  for (const [name, label, step] of SAMPLERS) {
    const row = el("label", label);
    const input = el("input", undefined, { id: `s-${name}`, type: "number", step, value: state.settings[name] ?? "" });
    input.addEventListener("change", () => {
      if (input.value === "") delete state.settings[name];
      else state.settings[name] = Number(input.value);
      save();
    });
    row.append(input);
    $("samplers").append(row);
  }
  $("system").addEventListener("change", () => { state.system = $("system").value; save(); });
  $("models").addEventListener("change", () => { choose(state.model = $("models").value); save(); });
  $("key").addEventListener("change", () => { sessionStorage.setItem("hotmetal-key", $("key").value); connect(); });
}

function listen() {
  $("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("stop").addEventListener("click", () => running?.abort());
  $("new").addEventListener("click", restart);
  $("theme").addEventListener("click", toggleTheme);
  $("settings-toggle").addEventListener("click", () => openSettings($("settings").hidden));
  $("input").addEventListener("input", resize);
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "ArrowUp" && $("input").value === "") {
      const last = state.messages.findLastIndex((message) => message.role === "user");
      if (last >= 0) { event.preventDefault(); edit(last); }
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { if (running) running.abort(); else openSettings(false); }
    if (!event.altKey) return;
    const acts = { n: restart, t: toggleTheme, s: () => openSettings($("settings").hidden),
      r: () => { if (state.messages.at(-1)?.role === "assistant") again(state.messages.length - 1); } };
    const act = acts[event.code.replace("Key", "").toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
}

load();
makeSettings();
listen();
show();
connect();
