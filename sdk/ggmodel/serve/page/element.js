// Elements of the page.

/** An element with attributes; those that are called on… are listeners, null and false leave one out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** A button with a listener. */
export const button = (label, onclick, attributes = {}) =>
  element("button", { type: "button", onclick, ...attributes }, label);

/** A number as people read it. */
export const number = (value) => value.toLocaleString("en");

/** A number of bytes in a unit that suits it. */
export function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  return `${(count / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}
