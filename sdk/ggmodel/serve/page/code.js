// Blocks of code: their language, a button that copies them, and colours by highlight.js, which is loaded
// with the first block whose language is named.

import { button, element } from "./element.js";

const LONGEST = 20_000; // characters of code with colours

let highlighter = null;
let loading = null;

async function load() {
  highlighter = (await import(new URL("./highlight/highlight.min.js", import.meta.url))).default;
}

/** Copies of nodes, of which only texts and the classes of colours are kept. */
function copies(nodes) {
  return [...nodes].map((node) =>
    node.nodeType === Node.TEXT_NODE ? node.data : element("span", { class: node.className }, ...copies(node.childNodes)));
}

function colour(place, text, language) {
  if (!highlighter.getLanguage(language)) return;
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  const { body } = new DOMParser().parseFromString(`<span>${value}</span>`, "text/html");
  if (body.textContent === text) place.replaceChildren(...copies(body.firstChild.childNodes));
}

/** The element of a token of Markdown that is code. */
export function code({ content, info }) {
  const text = content.replace(/\n$/, "");
  const language = info.trim().split(/\s/)[0] || null;
  const place = element("code", {}, text);
  if (language && text.length <= LONGEST) {
    if (highlighter) colour(place, text, language);
    else (loading ??= load()).then(() => colour(place, text, language), () => null);
  }
  const copy = button("Copy", () => navigator.clipboard?.writeText(text), { class: "copy" });
  return element("div", { class: "code", "data-language": language }, element("pre", { tabindex: "0" }, place), copy);
}
