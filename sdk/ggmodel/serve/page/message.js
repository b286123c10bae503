// A message on the page.

import { button, element, number } from "./element.js";
import { shown } from "./items.js";
import { blocks } from "./markdown.js";

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
  const { usage, timings, reason, failed, seconds, leftOut } = message;
  const said = [];
  if (failed) said.push(failed);
  else if (reason === "stopped") said.push("stopped");
  else if (reason === "length") said.push("cut off: the limit of tokens was reached");
  if (usage) said.push(rated(usage.completion_tokens, timings?.predicted_per_second));
  if (seconds) said.push(`${seconds.toFixed(1)} s of sound`);
  if (timings?.prompt_n) said.push(`prompt: ${rated(timings.prompt_n, timings.prompt_per_second)}`);
  if (timings?.cache_n) said.push(`${timings.cache_n} cached`);
  if (leftOut) said.push("the oldest turns no longer fit in the context, and were left out");
  return said.join(" · ");
}

/** A call of a tool, with what came of it. */
function callView({ name, arguments: args, result }) {
  const told = result === undefined ? [] : [element("pre", { tabindex: "0" }, result)];
  return element("details", { class: "call" }, element("summary", {}, `Called ${name}`),
    element("pre", { tabindex: "0" }, args), ...told);
}

/** Buttons to the versions beside a message. */
function switches(message, versions, choose) {
  if (versions.length < 2) return [];
  const place = versions.findIndex(({ id }) => id === message.id);
  const to = (label, sign, step) => {
    const version = versions[place + step];
    return button(sign, () => choose(version), { "aria-label": label, disabled: !version });
  };
  return [element("span", { class: "versions" }, to("Earlier version", "‹", -1),
    `${place + 1}/${versions.length}`, to("Later version", "›", 1))];
}

/** One message as a list item; `update` draws it anew as it grows. */
export class MessageView {
  /** actions: {label: function}; versions: the message and others in its place, which `choose` shows. */
  constructor(message, actions, versions, choose) {
    this.message = message;
    this.content = element("div", { class: "content" });
    this.thought = element("div");
    this.thinking = element("details", { class: "thought", hidden: true }, element("summary", {}, "Thought"), this.thought);
    this.calls = element("div");
    this.said = element("span", { class: "said" });
    const buttons = Object.entries(actions).map(([label, act]) => button(label, act, { class: `act-${label.toLowerCase()}` }));
    this.foot = element("div", { class: "foot" }, ...switches(message, versions, choose), ...buttons, this.said);
    this.stage = element("span");
    this.progress = element("progress", { hidden: true, "aria-label": "Prompt" });
    this.state = element("p", { class: "state", hidden: true }, this.stage, this.progress);
    const items = (message.items ?? []).map(shown);
    this.node = element("li", { class: message.role },
      element("h2", { class: "who" }, message.role === "user" ? "You" : message.model ?? "Model"),
      ...(items.length ? [element("div", { class: "items" }, ...items)] : []),
      this.thinking, this.content, this.calls,
      this.state, this.foot);
    this.update();
  }

  /** Says what the answer waits for, for how many seconds and how far it is, in place of its buttons; "" ends that. */
  wait(stage, progress) {
    const text = progress ? `${stage} ${number(progress.processed)} of ${number(progress.total)} tokens` : stage;
    if (Boolean(stage) !== Boolean(this.clock)) {
      const begun = Date.now();
      delete this.state.dataset.seconds;
      clearInterval(this.clock);
      this.clock = stage && setInterval(() => (this.state.dataset.seconds = Math.round((Date.now() - begun) / 1000)), 1000);
    }
    this.stage.textContent = text;
    this.progress.hidden = !progress;
    if (progress) Object.assign(this.progress, { value: progress.processed, max: progress.total });
    this.state.hidden = !stage;
    this.foot.hidden = Boolean(stage);
  }

  update() {
    const { role, text, thought, tokens: known } = this.message;
    this.thinking.hidden = !thought;
    this.thought.textContent = thought ?? "";
    this.calls.replaceChildren(...(this.message.calls ?? []).map(callView));
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

  /** Lets the user change the text; the button with the label calls `done` with the new one. */
  edit(label, done) {
    const box = element("textarea", { class: "edit", rows: "4", "aria-label": "Change the message" });
    box.value = this.message.text;
    const save = button(label, () => done(box.value));
    const cancel = button("Cancel", () => this.update());
    this.content.replaceChildren(box, element("div", { class: "row" }, save, cancel));
    box.focus();
  }

  /** Asks whether a call may run: "run", "always" or "refuse". */
  confirm({ name }, signal) {
    return new Promise((resolve, reject) => {
      const does = (choice) => () => (row.remove(), resolve(choice));
      const row = element("p", { class: "row" }, `Run ${name}?`, button("Run", does("run")),
        button("Always", does("always")), button("Refuse", does("refuse")));
      this.calls.append(row);
      signal.addEventListener("abort", () => (row.remove(), reject(signal.reason)));
    });
  }
}
