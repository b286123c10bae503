// Maths between $…$, $$…$$, \(…\) and \[…\], drawn by KaTeX, which is loaded with the first formula.

import { element } from "./element.js";

const LONGEST = 2000; // characters of a formula
const MOST = 20_000; // characters of all formulas of a text; more are shown as they are written
const KEPT = 500; // drawn formulas that are remembered, since a text that grows is drawn again and again

const PAIRS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];

/** Where a formula that begins behind `from` ends; -1 if none does. */
function end(text, from, close) {
  const within = text.slice(from, from + LONGEST);
  let found = within.indexOf(close);
  while (found > 0 && within[found - 1] === "\\" && close[0] === "$") found = within.indexOf(close, found + 1);
  const inside = within.slice(0, Math.max(0, found));
  if (!inside.trim() || /\n\s*\n/.test(inside)) return -1;
  // Prices are no maths: $5 and $6.
  const isLoose = close === "$" && (/^\s|\s$/.test(inside) || /\d/.test(within[found + 1] ?? ""));
  return isLoose ? -1 : from + found;
}

function inline(state, silent) {
  const { src, pos } = state;
  const [open, close, display] = PAIRS.find(([sign]) => src.startsWith(sign, pos)) ?? [];
  const last = open ? end(src, pos + open.length, close) : -1;
  if (last < 0) return false;
  if (!silent) Object.assign(state.push("maths", "", 0), { content: src.slice(pos + open.length, last), meta: { open, close, display } });
  state.pos = last + close.length;
  return true;
}

/** A formula on lines of its own, which may look like other Markdown. */
function block(state, start, end, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]).trimEnd();
  const [open, close, display] = PAIRS.find(([sign, , display]) => display && line(start).startsWith(sign)) ?? [];
  if (!open) return false;
  const begun = state.bMarks[start] + state.tShift[start] + open.length;
  const length = state.src.slice(begun, begun + LONGEST).indexOf(close);
  let next = start + 1;
  while (next < end && state.eMarks[next - 1] < begun + length) next++;
  const lines = Array.from({ length: next - start }, (_, n) => line(start + n)).join("\n");
  const content = lines.slice(open.length, -close.length);
  if (length < 0 || !lines.endsWith(close) || !content.trim() || content.includes(close)) return false;
  if (silent) return true;
  Object.assign(state.push("maths", "", 0), { content, meta: { open, close, display } });
  state.line = next;
  return true;
}

/** Has a parser of Markdown find formulas. */
export function findMaths(parser) {
  parser.inline.ruler.before("escape", "maths", inline);
  parser.block.ruler.before("fence", "maths", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

let katex = null;
let loading = null;
const drawn = new Map();

async function load() {
  const path = new URL("./katex/", import.meta.url);
  document.head.append(element("link", { rel: "stylesheet", href: new URL("katex.min.css", path) }));
  await import(new URL("katex.min.js", path));
  ({ katex } = globalThis);
}

/** Draws a formula in a place, or leaves there how it is written. */
function draw(place, content, display) {
  const key = `${display} ${content}`;
  if (!drawn.has(key)) {
    if (drawn.size >= KEPT) drawn.clear();
    const made = element("span");
    try {
      katex.render(content, made, { displayMode: display, strict: false, trust: false, maxSize: 50, maxExpand: 100 });
    } catch {
      made.replaceChildren(...place.childNodes);
    }
    drawn.set(key, made);
  }
  place.replaceChildren(...drawn.get(key).cloneNode(true).childNodes);
}

/** Draws the formulas of a text, one after the other. */
export function mathsDrawer() {
  let left = MOST;
  return ({ content, meta: { open, close, display } }) => {
    const place = element("span", { class: display ? "maths display" : "maths" }, `${open}${content}${close}`);
    left -= content.length;
    if (left < 0) return place;
    if (katex) draw(place, content, display);
    else (loading ??= load()).then(() => draw(place, content, display), () => null);
    return place;
  };
}
