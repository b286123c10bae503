// The screen of an empty conversation: the purpose of the page, and the abilities of the model.

import { bytes, button, element, number } from "./element.js";
import { diet, transcribes } from "./models.js";

const EXAMPLES = ["Tell me a story about a dog.", "Explain how a rainbow comes about.", "Write a haiku about the sea."];
const ABILITIES = { tools: "calls tools", thinking: "thinks before it answers" };

function facts(model) {
  const { size, context_length: length, meta, loaded } = model;
  const told = [loaded ? "loaded" : "not loaded yet"];
  if (length) told.push(`${loaded ? "" : "trained for "}${number(length)} tokens of context`);
  if (meta) told.push(`${number(meta.n_params)} parameters`, meta.quantization);
  if (size) told.push(bytes(size));
  return told.join(" · ");
}

/** Its elements; `ask` is called with an example that is chosen. */
export function welcome(model, ask) {
  const purpose = "Chat with models that run on this server. Conversations are kept in this browser.";
  if (!model) return [element("h2", {}, "Welcome"), element("p", {}, purpose)];
  const able = Object.entries(ABILITIES).filter(([name]) => model.abilities?.includes(name));
  const more = able.length ? ` It ${able.map(([, words]) => words).join(" and ")}.` : "";
  const examples = transcribes(model) ? [] : EXAMPLES.map((text) => button(text, () => ask(text)));
  return [
    element("h2", {}, model.id),
    element("p", {}, purpose),
    element("p", {}, diet(model) + more),
    element("p", { class: "facts" }, facts(model)),
    element("div", { class: "examples" }, ...examples),
  ];
}
