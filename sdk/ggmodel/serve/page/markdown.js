// Markdown as elements. Text becomes text nodes, never HTML, so an answer cannot run anything.

import { code } from "./code.js";
import { element } from "./element.js";
import MarkdownIt from "./markdown-it.js";
import { findMaths, mathsDrawer } from "./maths.js";

const LONGEST = 200_000; // characters of Markdown; what is longer is shown as it is
const DEEPEST = 20; // quotes and lists inside each other, of which a list counts twice; elements are twice as many
const MOST = 50_000; // tokens: a short text can make a table of many cells

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // main.py is a file
parser.validateLink = (url) => /^(https?:\/\/|mailto:)/i.test(url);
findMaths(parser);
parser.block.ruler.before("table", "deep", (state, start, end, silent) => {
  if (state.level < DEEPEST || silent) return false;
  const token = state.push("code_block", "code", 0);
  token.content = state.getLines(start, end, 0, false);
  state.line = end;
  return true;
});

const link = (href) => ({ href, rel: "noreferrer noopener", target: "_blank" });

/** The node of a token that holds no others, in a parent; `maths` draws formulas. */
function leaf(token, parent, maths) {
  switch (token.type) {
    case "fence":
    case "code_block":
      return code(token);
    case "maths":
      return maths(token);
    case "code_inline":
      return element("code", {}, token.content);
    case "image": {
      const label = token.content || token.attrGet("src");
      return parent.closest("a") ? label : element("a", link(token.attrGet("src")), label);
    }
    case "hr":
    case "hardbreak":
    case "softbreak":
      return element(token.type === "hr" ? "hr" : "br");
    default:
      return token.content;
  }
}

/** The element of a token that holds those up to its end. */
function branch(token) {
  if (token.type === "link_open") return element("a", link(token.attrGet("href")));
  if (token.type === "heading_open") return element(`h${Math.min(6, Number(token.tag[1]) + 2)}`);
  const align = /text-align:(\w+)/.exec(token.attrGet("style"))?.[1] ?? null;
  return element(token.tag, { start: token.attrGet("start"), class: align });
}

/** The nodes of a text. */
export function blocks(text) {
  const tokens = text.length > LONGEST ? [] : parser.parse(text, {}).flatMap((one) => one.children ?? one);
  if (text.length > LONGEST || tokens.length > MOST) return [element("div", { class: "plain" }, text)];
  const made = [];
  const maths = mathsDrawer();
  const open = []; // the elements around the next token
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    const parent = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.nesting && open.length >= 2 * DEEPEST) open.push(parent);
    else {
      const node = token.nesting ? branch(token) : leaf(token, parent, maths);
      if (parent) parent.append(node);
      else made.push(node);
      if (token.nesting) open.push(node);
    }
  }
  return made;
}
