// Settings: the model, its samplers, the system prompt of the conversation, the key, and how the page looks.

import { gauge } from "./answer.js";
import { current, events, update } from "./conversation.js";
import { $, el, notify } from "./dom.js";
import { chooseModel, connect, NOT_LOADED, server, serverEvents } from "./server.js";
import { preferences, setPreference } from "./storage.js";

const SAMPLERS = [
  ["temperature", "Temperature", 0.05],
  ["top_k", "Top k", 1],
  ["top_p", "Top p", 0.01],
  ["min_p", "Min p", 0.01],
  ["repetition_penalty", "Repetition penalty", 0.05],
  ["presence_penalty", "Presence penalty", 0.1],
  ["frequency_penalty", "Frequency penalty", 0.1],
  ["max_tokens", "Max tokens", 1],
  ["seed", "Seed", 1],
];

function showModel() {
  const { id, x_hotmetal: facts } = server.model;
  // The choice shows the name where there is one.
  $("facts").textContent = server.models.length > 1 ? facts.device : `${id} · ${facts.device}`;
  $("facts").title = `${id} · ${facts.device}`;
  const rows = {
    Name: id,
    Device: facts.device,
    ...(facts !== NOT_LOADED && {
      Context: `${facts.context_len} tokens`,
      "KV cache": `${facts.kv_tokens} tokens`,
      "At a time": facts.max_sequences,
      Vocabulary: facts.vocab_size,
      "Loaded in": `${facts.load_ms} ms`,
      Version: facts.version,
    }),
  };
  $("model").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [el("dt", name), el("dd", value)]));
  for (const [name] of SAMPLERS) $(`s-${name}`).placeholder = facts.sampling[name] ?? "";
  $("system").disabled = !facts.system;
  $("system").placeholder = facts.system ? "none" : "this model's chat template shows none";
  $("no-chat").hidden = facts.chat;
  gauge();
}

function makeSamplers() {
  const set = preferences();
  for (const [name, label, step] of SAMPLERS) {
    const row = el("label", label);
    const input = el("input", undefined, {
      id: `s-${name}`,
      type: "number",
      step,
      value: set[`sampler.${name}`] ?? "",
    });
    input.addEventListener("change", () =>
      setPreference(`sampler.${name}`, input.value === "" ? undefined : Number(input.value)),
    );
    row.append(input);
    $("samplers").append(row);
  }
}

export function openSettings(isOpen) {
  $("settings").hidden = !isOpen;
  $("settings-toggle").setAttribute("aria-expanded", isOpen);
}

export function toggleSettings() {
  openSettings($("settings").hidden);
}

export function toggleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const next = (document.documentElement.dataset.theme || system) === "dark" ? "light" : "dark";
  // Where the choice is what the system has, the page follows the system again.
  setTheme(next === system ? "" : next);
  setPreference("theme", next === system ? undefined : next);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

export function listenToSettings() {
  setTheme(preferences().theme ?? "");
  $("key").value = sessionStorage.getItem("hotmetal-key") ?? "";
  makeSamplers();
  $("theme").addEventListener("click", toggleTheme);
  $("settings-toggle").addEventListener("click", toggleSettings);
  $("system").addEventListener("change", () => update({ system: $("system").value }));
  $("system-default").addEventListener("click", () => {
    setPreference("system", $("system").value || undefined);
    notify(
      $("system").value
        ? "New conversations begin with this system prompt."
        : "New conversations begin without a system prompt.",
    );
  });
  $("models").addEventListener("change", () => {
    setPreference("model", $("models").value);
    chooseModel($("models").value);
    update({ model: $("models").value });
  });
  $("key").addEventListener("change", () => {
    sessionStorage.setItem("hotmetal-key", $("key").value);
    connect();
  });
  serverEvents.addEventListener("models", () =>
    chooseModel(current.model || preferences().model),
  );
  serverEvents.addEventListener("chosen", showModel);
  serverEvents.addEventListener("key", () => {
    openSettings(true);
    $("key").focus();
  });
  const showConversation = () => {
    if (document.activeElement !== $("system")) $("system").value = current.system;
    if (current.model) chooseModel(current.model);
  };
  events.addEventListener("opened", showConversation);
  events.addEventListener("refreshed", showConversation);
}
