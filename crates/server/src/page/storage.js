// Conversations in this browser's IndexedDB. Each message is a record of its own and is written once or grows, so two
// tabs, even of one conversation, never overwrite each other: what both wrote are branches of one tree.

import { notify } from "./dom.js";

const STORES = ["conversations", "messages"];

/** An id that nothing else has. `crypto.randomUUID` is missing where the page comes by plain HTTP. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

let database; // a promise; null where the browser keeps nothing

function open() {
  database ??= (async () => {
    const request = indexedDB.open("hotmetal", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    const opened = await result(request);
    // A newer page in another tab may have to change the stores.
    opened.onversionchange = () => opened.close();
    return opened;
  })().catch(() => {
    notify(
      "This browser keeps no data for this page, so conversations end with this tab. Allow site data to keep them.",
    );
    return null;
  });
  return database;
}

/** Runs `act` with both stores in one transaction. Where nothing is kept, it gives `otherwise`. */
async function transact(mode, otherwise, act) {
  const opened = await open();
  if (!opened) return otherwise;
  const transaction = opened.transaction(STORES, mode);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  ended.catch(() => {});
  const value = await act(...STORES.map((name) => transaction.objectStore(name)));
  await ended;
  return value;
}

async function write(otherwise, act, id) {
  try {
    const value = await transact("readwrite", otherwise, act);
    channel?.postMessage(id);
    return value;
  } catch (error) {
    notify(
      error?.name === "QuotaExceededError"
        ? "This browser has no room left to keep this conversation. Export what you need and delete old conversations."
        : `This conversation could not be kept (${error?.message}). Export it, and reload the page.`,
    );
    return otherwise;
  }
}

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("hotmetal") : null;

/** Calls `act` with the id of a conversation that another tab has changed. */
export function onOtherTab(act) {
  channel?.addEventListener("message", (event) => act(event.data));
}

/** All conversations, the last changed first. */
export async function conversations() {
  const all = await transact("readonly", [], (store) => result(store.getAll()));
  return all.sort((a, b) => b.changed - a.changed);
}

/** A conversation and its messages; without the first where it is not kept. */
export function conversation(id) {
  return transact("readonly", {}, async (store, messages) => ({
    conversation: await result(store.get(id)),
    messages: await result(messages.index("conversation").getAll(id)),
  }));
}

export function allMessages() {
  return transact("readonly", [], (_, messages) => result(messages.getAll()));
}

/** Sets these fields of a conversation, and no others. */
export function updateConversation(id, fields) {
  return write(
    undefined,
    async (store) => {
      const known = await result(store.get(id));
      if (known) store.put({ ...known, ...fields });
    },
    id,
  );
}

/**
 * Writes a message and gives the id that it has. A kept text only grows: where another tab has written another text
 * under this id, this one becomes a message of its own beside it.
 */
export function saveMessage(message) {
  return write(
    message.id,
    async (store, messages) => {
      // It was deleted: a message alone would never be seen again.
      if (!(await result(store.get(message.conversation)))) return message.id;
      const known = await result(messages.get(message.id));
      const grows = !known || (message.content.startsWith(known.content) && known.role === message.role);
      const id = grows ? message.id : newId();
      messages.put({ ...message, id });
      return id;
    },
    message.conversation,
  );
}

/** Adds what is not there yet: of a known conversation only the messages that it lacks. How many were added. */
export function add(conversation, messages) {
  return write(
    0,
    async (store, kept) => {
      let count = 0;
      if (!(await result(store.get(conversation.id)))) store.put(conversation);
      for (const message of messages) {
        if (await result(kept.get(message.id))) continue;
        kept.put(message);
        count += 1;
      }
      return count;
    },
    conversation.id,
  );
}

/** Deletes a conversation and gives what it was, so that it can be added again. */
export function remove(id) {
  return write(
    {},
    async (store, kept) => {
      const conversation = await result(store.get(id));
      const messages = await result(kept.index("conversation").getAll(id));
      store.delete(id);
      for (const message of messages) kept.delete(message.id);
      return { conversation, messages };
    },
    id,
  );
}

/** What outlasts the tab and is no conversation: theme, model, samplers. */
export function preferences() {
  try {
    return JSON.parse(localStorage.getItem("hotmetal-preferences")) ?? {};
  } catch {
    return {};
  }
}

/** Sets one preference, or takes it away. Reads the others first: another tab may have set them. */
export function setPreference(name, value) {
  const all = preferences();
  if (value === undefined) delete all[name];
  else all[name] = value;
  try {
    localStorage.setItem("hotmetal-preferences", JSON.stringify(all));
  } catch {
    /* the tab still has it */
  }
}

/** Takes over what the first version of this page kept: one conversation and the settings, in one entry. */
export async function migrate() {
  let old;
  try {
    old = JSON.parse(localStorage.getItem("hotmetal"));
  } catch {
    return;
  }
  if (!old) return;
  const { messages = [], system = "", settings = {}, theme = "", model = "", used } = old;
  // The same ids in every tab, so that two tabs that do this at once write the same records.
  const id = "first-version";
  const now = Date.now();
  const records = messages.map((message, at) => ({
    ...message,
    id: `${id}-${at}`,
    conversation: id,
    parent: at > 0 ? `${id}-${at - 1}` : null,
    created: now + at,
    ...(at === messages.length - 1 && used && { used }),
  }));
  if (records.length > 0) {
    const leaf = records.at(-1).id;
    if ((await add({ id, title: titleOf(records[0].content), system, model, leaf, changed: now }, records)) === 0)
      return;
  }
  for (const [name, value] of Object.entries(settings)) setPreference(`sampler.${name}`, value);
  if (theme) setPreference("theme", theme);
  if (model) setPreference("model", model);
  if (system) setPreference("system", system);
  localStorage.removeItem("hotmetal");
}

/** A conversation's title, until somebody gives it another: how its first message begins. */
export function titleOf(text) {
  const line = text.trim().split("\n")[0].trim();
  return line.length > 60 ? `${line.slice(0, 60).trimEnd()}…` : line || "Untitled";
}
