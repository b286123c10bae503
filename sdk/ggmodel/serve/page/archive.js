// Files of conversations, to keep elsewhere and to bring back.

import { element } from "./element.js";
import { KINDS } from "./models.js";
import { begun, put } from "./store.js";
import { grown } from "./tree.js";

const FORM = "ggmodel conversations";

/** Has the browser save conversations as a file. */
export function save(all, name) {
  const text = JSON.stringify({ form: FORM, version: 1, conversations: all }, null, 1);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: url, download: `${name.replace(/[^\p{L}\p{N} _-]/gu, "").slice(0, 60) || "conversation"}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

const isText = (value) => typeof value === "string";

function item({ kind, name, url, format }) {
  if (!Object.hasOwn(KINDS, kind) || !isText(name) || !isText(url) || !url.startsWith("data:")) throw new Error("an attached file");
  return { kind, name, url, format };
}

function call({ id, name, arguments: args, result }) {
  if (![id, name, args, result ?? ""].every(isText)) throw new Error("a call of a tool");
  return { id, name, arguments: args, result };
}

/** A message with the fields that are the page's, and no others. */
function message(one, before) {
  const { id, parent, role, text, thought, model, reason, usage, timings, items = [], calls = [] } = one;
  if (!["user", "assistant"].includes(role) || !isText(text)) throw new Error("a message");
  const isPlaced = isText(id) && !before.has(id) && (parent === null || before.has(parent));
  if (isPlaced) before.add(id);
  const place = isPlaced ? { id, parent } : {};
  return { ...place, role, text, thought: isText(thought) ? thought : "", model: isText(model) ? model : undefined,
    tokens: [], items: items.map(item), calls: calls.map(call), reason, usage, timings };
}

function read(one) {
  if (!isText(one.title) || !Array.isArray(one.messages)) throw new Error("a conversation");
  const before = new Set();
  const messages = one.messages.map((each) => message(each, before));
  const leaf = before.has(one.leaf) ? one.leaf : ([...before].at(-1) ?? null);
  return grown({ ...begun(), title: one.title.slice(0, 200), changed: Number(one.changed) || Date.now(),
    settings: one.settings ?? {}, leaf, messages });
}

/** Adds the conversations of a file to those that are here; returns how many. */
export async function bring(file) {
  let all;
  try {
    const { form, conversations } = JSON.parse(await file.text());
    if (form !== FORM) throw new Error("the form");
    all = conversations.map(read);
  } catch (error) {
    throw new Error(`${file.name} is no file of conversations that this page has exported: ${error.message} is wrong.`);
  }
  for (const one of all) await put(one);
  return all.length;
}
