// A message on the page.

import { shown } from "./items.js";
import { blocks, element } from "./markdown.js";

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

/** Shows how likely a token was, beside it. */
function explain(hint, target, token) {
  const rows = [token, ...(token.top_logprobs ?? []).filter((o) => o.token !== token.token)];
  const table = element("table", {}, ...rows.map((one, i) =>
    element("tr", {}, element("td", {}, i ? JSON.stringify(one.token) : element("strong", {}, JSON.stringify(one.token))),
      element("td", {}, percent(one.logprob)))));
  hint.replaceChildren(table);
  hint.hidden = false;
  const box = target.getBoundingClientRect();
  hint.style.left = `${Math.max(4, Math.min(box.left, innerWidth - hint.offsetWidth - 8))}px`;
  const below = box.bottom + 6;
  const fits = below + hint.offsetHeight < innerHeight;
  hint.style.top = `${fits ? below : box.top - hint.offsetHeight - 6}px`;
}

function tokens(all) {
  const hint = document.getElementById("hint");
  const hide = () => (hint.hidden = true);
  return all.map((token) => {
    const show = (event) => explain(hint, event.target, token);
    const label = `${token.token}: ${percent(token.logprob)}`;
    return element("span", { class: "token", tabindex: "0", "aria-label": label, onmouseenter: show,
      onfocus: show, onmouseleave: hide, onblur: hide }, token.token);
  });
}

/** A number of tokens with the server's rate. */
function rated(count, rate) {
  const tokens = `${count} token${count === 1 ? "" : "s"}`;
  return rate ? `${tokens} at ${rate.toFixed(1)}/s` : tokens;
}

function footer(message) {
  const { usage, timings, reason, failed } = message;
  const said = [];
  if (failed) said.push(failed);
  else if (reason === "stopped") said.push("stopped");
  else if (reason === "length") said.push("cut off: the limit of tokens was reached");
  if (usage) said.push(rated(usage.completion_tokens, timings?.predicted_per_second));
  if (timings?.prompt_n) said.push(`prompt: ${rated(timings.prompt_n, timings.prompt_per_second)}`);
  if (timings?.cache_n) said.push(`${timings.cache_n} cached`);
  return said.join(" · ");
}

/** One message as a list item; `update` draws it anew as it grows. */
export class MessageView {
  /** actions: {label: function} */
  constructor(message, actions) {
    this.message = message;
    this.content = element("div", { class: "content" });
    this.thought = element("div");
    this.thinking = element("details", { class: "thought", hidden: true }, element("summary", {}, "Thought"), this.thought);
    this.said = element("span", { class: "said" });
    const buttons = Object.entries(actions).map(([label, act]) =>
      element("button", { type: "button", onclick: act }, label));
    this.foot = element("div", { class: "foot" }, ...buttons, this.said);
    this.state = element("p", { class: "state", hidden: true });
    const items = (message.items ?? []).map(shown);
    this.node = element("li", { class: message.role },
      element("p", { class: "who" }, message.role === "user" ? "You" : "Model"),
      ...(items.length ? [element("div", { class: "items" }, ...items)] : []),
      this.thinking, this.content,
      this.state, this.foot);
    this.update();
  }

  /** Says what the answer waits for, in place of its buttons; "" ends that. */
  wait(state) {
    this.state.textContent = state;
    this.state.hidden = !state;
    this.foot.hidden = Boolean(state);
  }

  get waits() {
    return !this.state.hidden;
  }

  update() {
    const { role, text, thought, tokens: known } = this.message;
    this.thinking.hidden = !thought;
    this.thought.textContent = thought ?? "";
    const plain = role === "user" || Boolean(known?.length);
    this.content.classList.toggle("plain", plain);
    if (known?.length) this.append(known);
    else {
      this.content.replaceChildren(...(plain ? [text] : []));
      if (!plain) for (const block of blocks(text)) this.content.append(block); // too many for one call
    }
    this.said.textContent = footer(this.message);
    this.said.classList.toggle("failed", Boolean(this.message.failed));
  }

  /** Adds the tokens that are new since. */
  append(known) {
    const spans = this.content.querySelectorAll(".token").length;
    if (!spans) this.content.replaceChildren();
    this.content.append(...tokens(known.slice(spans)));
  }

  /** Lets the user change the text; calls `done` with the new one. */
  edit(done) {
    const box = element("textarea", { class: "edit", rows: "4", "aria-label": "Change the message" });
    box.value = this.message.text;
    const save = element("button", { type: "button", onclick: () => done(box.value) }, "Send anew");
    const cancel = element("button", { type: "button", onclick: () => this.update() }, "Cancel");
    this.content.replaceChildren(box, element("div", { class: "row" }, save, cancel));
    box.focus();
  }
}
