// The conversation that this tab shows: a tree of messages, and the leaf that its reader looks at.

import { notify } from "./dom.js";
import * as storage from "./storage.js";

/** `isKept` says whether the browser's storage has it: an empty conversation is not kept. */
export const current = { id: "", title: "", system: "", model: "", leaf: null, messages: new Map(), isKept: false };

/** `opened`: another conversation, or another branch. `message`: one has changed. `list`: what the list shows has. */
export const events = new EventTarget();

export function tell(name, detail) {
  events.dispatchEvent(new CustomEvent(name, { detail }));
}

function set(fields) {
  Object.assign(current, { title: "", system: "", model: "", leaf: null, messages: new Map(), isKept: false }, fields);
}

/** Begins a conversation with the system prompt and the model that new ones have. */
export function begin() {
  const { system = "", model = "" } = storage.preferences();
  set({ id: storage.newId(), system, model });
  history.replaceState(null, "", location.pathname + location.search);
  tell("opened");
}

/** Opens a kept conversation; whether there is one. */
export async function openConversation(id) {
  const { conversation, messages } = await storage.conversation(id);
  if (!conversation) return false;
  set({ ...conversation, messages: byId(messages), isKept: true });
  if (!current.messages.has(current.leaf)) current.leaf = newest(messages)?.id ?? null;
  // A reload opens the same one, and other tabs have their own.
  history.replaceState(null, "", `#${id}`);
  tell("opened");
  return true;
}

const byId = (messages) => new Map(messages.map((message) => [message.id, message]));

const newest = (messages) => messages.reduce((a, b) => (a && a.created > b.created ? a : b), null);

/** Takes in what another tab wrote, and keeps this tab's place. `own` is being written here. */
export async function refresh(own) {
  const { id } = current;
  if (!current.isKept) return;
  const { conversation, messages } = await storage.conversation(id);
  if (id !== current.id) return;
  if (!conversation) {
    current.isKept = false;
    notify("This conversation was deleted in another tab. It is kept again if you go on with it here.");
    return;
  }
  const { title, system } = conversation;
  Object.assign(current, { title, system });
  for (const message of messages) {
    if (message.id === own?.id) continue;
    const known = current.messages.get(message.id);
    if (known) Object.assign(known, message);
    else current.messages.set(message.id, message);
  }
  // Where another tab went on from what this one shows, this one shows that too.
  if (!own) current.leaf = leafUnder(current.leaf);
  tell("refreshed");
}

/** The messages from the first to the leaf. */
export function path() {
  const found = [];
  // An imported file may have a circle.
  const seen = new Set();
  for (let id = current.leaf; current.messages.has(id) && !seen.has(id); id = current.messages.get(id).parent) {
    seen.add(id);
    found.push(current.messages.get(id));
  }
  return found.reverse();
}

/** The versions of a message: what stands in the same place, the oldest first. */
export function versions({ parent }) {
  return [...current.messages.values()]
    .filter((message) => message.parent === parent)
    .sort((a, b) => a.created - b.created);
}

function leafUnder(id) {
  const seen = new Set();
  for (;;) {
    const next = newest([...current.messages.values()].filter(({ parent }) => parent === id && id !== null));
    if (!next || seen.has(next.id)) return id;
    seen.add(next.id);
    id = next.id;
  }
}

/** Shows another version of a message, and what was said after it. */
export function choose(message) {
  current.leaf = leafUnder(message.id);
  tell("opened", { keepsPlace: true });
  return keepLeaf();
}

/** Writes the conversation down with its messages, unless it is there. */
async function keep() {
  if (current.isKept) return;
  current.isKept = true;
  const { id, title, system, model, leaf, messages } = current;
  history.replaceState(null, "", `#${id}`);
  await storage.add({ id, title, system, model, leaf, changed: Date.now() }, [...messages.values()]);
  tell("list");
}

async function keepLeaf() {
  const { id, leaf, isKept } = current;
  if (isKept) await storage.updateConversation(id, { leaf });
}

/** Adds a message behind another, which becomes the leaf. */
export async function append(parent, fields) {
  const message = {
    id: storage.newId(),
    conversation: current.id,
    parent,
    created: Date.now(),
    content: "",
    ...fields,
  };
  // Two of one millisecond still have an order.
  const last = newest([...current.messages.values()]);
  if (last && last.created >= message.created) message.created = last.created + 1;
  current.messages.set(message.id, message);
  current.leaf = message.id;
  if (!current.title && message.role === "user")
    current.title = storage.titleOf(message.content || message.files?.[0]?.name || "");
  tell("opened", { keepsFocus: true });
  await keep();
  await save(message);
  return message;
}

/** Writes a message down as it is now. */
export async function save(message) {
  const id = await storage.saveMessage(message);
  if (id !== message.id && current.messages.get(message.id) === message) {
    current.messages.delete(message.id);
    message.id = id;
    current.messages.set(id, message);
    if (!current.messages.has(current.leaf)) current.leaf = id;
    tell("opened", { keepsPlace: true });
  }
  const changed =
    message.conversation === current.id ? { leaf: current.leaf, changed: Date.now() } : { changed: Date.now() };
  await storage.updateConversation(message.conversation, changed);
  tell("list");
}

/** Sets fields of the conversation, such as its system prompt. */
export async function update(fields) {
  Object.assign(current, fields);
  if (current.isKept) await storage.updateConversation(current.id, fields);
  tell("list");
}
