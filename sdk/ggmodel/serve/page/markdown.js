// Markdown as elements. Text becomes text nodes, never HTML, so an answer cannot run anything.

const INLINE =
  /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^\s*](?:[^*]*[^\s*])?)\*|\[([^\]]+)\]\((https?:[^\s)]+)\)/;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function inline(text) {
  const made = [];
  for (let found; (found = INLINE.exec(text)); ) {
    const [whole, , code, strong, strong2, emphasis, label, url] = found;
    if (found.index) made.push(text.slice(0, found.index));
    if (code !== undefined) made.push(element("code", {}, code));
    else if (strong ?? strong2) made.push(element("strong", {}, ...inline(strong ?? strong2)));
    else if (emphasis) made.push(element("em", {}, ...inline(emphasis)));
    else made.push(element("a", { href: url, rel: "noreferrer noopener", target: "_blank" }, label));
    text = text.slice(found.index + whole.length);
  }
  return text ? [...made, text] : made;
}

function fenced(lines, at, fence) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  const code = lines.slice(at + 1, end).join("\n");
  const copy = element("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", () => navigator.clipboard?.writeText(code));
  return [element("pre", {}, element("code", {}, code), copy), end + 1];
}

function list(lines, at, ordered) {
  const mark = ordered ? /^\s*\d+[.)]\s+/ : /^\s*[-*+]\s+/;
  const items = [];
  while (at < lines.length && mark.test(lines[at])) {
    items.push(element("li", {}, ...inline(lines[at].replace(mark, ""))));
    at += 1;
  }
  return [element(ordered ? "ol" : "ul", {}, ...items), at];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function table(lines, at) {
  const row = (line, name) => element("tr", {}, ...cells(line).map((c) => element(name, {}, ...inline(c))));
  const rows = [row(lines[at], "th")];
  at += 2;
  while (at < lines.length && lines[at].includes("|")) rows.push(row(lines[at++], "td"));
  return [element("table", {}, ...rows), at];
}

function block(lines, at) {
  const line = lines[at];
  const fence = /^\s*(```+|~~~+)/.exec(line);
  if (fence) return fenced(lines, at, fence[1]);
  const heading = /^(#{1,6})\s+(.*)/.exec(line);
  if (heading) {
    const level = Math.min(6, heading[1].length + 2);
    return [element(`h${level}`, {}, ...inline(heading[2])), at + 1];
  }
  if (/^\s*[-*+]\s+/.test(line)) return list(lines, at, false);
  if (/^\s*\d+[.)]\s+/.test(line)) return list(lines, at, true);
  if (/^\s*>/.test(line)) {
    let end = at;
    while (end < lines.length && /^\s*>/.test(lines[end])) end += 1;
    const inner = lines.slice(at, end).map((l) => l.replace(/^\s*>\s?/, "")).join("\n");
    return [element("blockquote", {}, ...blocks(inner)), end];
  }
  if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/.test(lines[at + 1] ?? "")) {
    return table(lines, at);
  }
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !/^\s*(```|~~~|#{1,6}\s|[-*+]\s|\d+[.)]\s|>)/.test(lines[end])) end += 1;
  const children = lines.slice(at, end).flatMap((l, i) => [...(i ? [element("br")] : []), ...inline(l)]);
  return [element("p", {}, ...children), end];
}

/** The elements of a text. */
export function blocks(text) {
  const lines = text.split("\n");
  const made = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [one, next] = block(lines, at);
    made.push(one);
    at = next;
  }
  return made;
}
