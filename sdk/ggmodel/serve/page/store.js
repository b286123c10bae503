// Conversations, kept in the browser's IndexedDB; settings, in its local storage.
// A conversation: {id, title, changed, settings, leaf, messages: [{id, parent, role, text, items, …}]}.

import { grown, newId } from "./tree.js";

const channel = new BroadcastChannel("ggmodel");

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("ggmodel", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let database = null;

async function run(mode, work) {
  database ??= opened();
  const store = (await database).transaction("conversations", mode).objectStore("conversations");
  return new Promise((resolve, reject) => {
    const request = work(store);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** All conversations, the latest first. */
export async function conversations() {
  const all = await run("readonly", (store) => store.getAll());
  return all.sort((a, b) => b.changed - a.changed).map(grown);
}

/** One of them; undefined if it is gone. */
export async function conversation(id) {
  const found = await run("readonly", (store) => store.get(id));
  return found && grown(found);
}

/** Keeps a conversation as it is, and tells other tabs. */
export async function put(one) {
  await run("readwrite", (store) => store.put(structuredClone(one)));
  channel.postMessage({ id: one.id });
}

/** Keeps a conversation that has changed now. */
export const keep = (one) => put(Object.assign(one, { changed: Date.now() }));

/** Forgets a conversation. */
export async function forget(id) {
  await run("readwrite", (store) => store.delete(id));
  channel.postMessage({ id, gone: true });
}

/** Calls a function when another tab changes something. */
export function whenChanged(tell) {
  channel.onmessage = (event) => tell(event.data);
}

/** An empty conversation, not kept yet. */
export const begun = () => ({
  id: newId(), title: "", changed: 0, settings: { ...settings().defaults }, leaf: null, messages: [],
});

/** Settings as a plain object of texts and booleans. */
export function settings() {
  try {
    return JSON.parse(localStorage.getItem("ggmodel.settings")) ?? {};
  } catch {
    return {};
  }
}

export function keepSettings(values) {
  localStorage.setItem("ggmodel.settings", JSON.stringify(values));
}
