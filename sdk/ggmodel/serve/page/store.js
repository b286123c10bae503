// Conversations, kept in the browser's IndexedDB; settings, in its local storage.
// A conversation: {id, title, changed, model, messages: [{role, text, items, …}]}.

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
  return all.sort((a, b) => b.changed - a.changed);
}

/** One of them; undefined if it is gone. */
export const conversation = (id) => run("readonly", (store) => store.get(id));

/** Keeps a conversation, and tells other tabs. */
export async function keep(one) {
  one.changed = Date.now();
  await run("readwrite", (store) => store.put(structuredClone(one)));
  channel.postMessage({ id: one.id });
}

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
export const begun = () => ({ id: crypto.randomUUID(), title: "", changed: 0, messages: [] });

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
