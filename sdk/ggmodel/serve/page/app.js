// The page: a list of conversations, one of them open, and a line to write in.

import { answer, models, promptLength } from "./client.js";
import { Attached, watchDrops } from "./items.js";
import { element } from "./markdown.js";
import { MessageView } from "./message.js";
import { watchSettings } from "./settings.js";
import { begun, conversation, conversations, forget, keep, whenChanged } from "./store.js";

const at = (id) => document.getElementById(id);
const [list, box, notice, main] = ["messages", "text", "notice", "main"].map(at);
const attached = new Attached(at("attached"), warn);

let open = begun();
let running = null; // {controller, id} of the answer that comes

function warn(message) {
  notice.textContent = message;
  notice.hidden = !message;
}

async function listModels() {
  const chosen = at("model").value || localStorage.getItem("ggmodel.model");
  try {
    const found = await models();
    at("model").replaceChildren(...found.map(({ id }) => element("option", { value: id }, id)));
    if (found.some(({ id }) => id === chosen)) at("model").value = chosen;
    warn(found.length ? "" : "The server has no model; start it with one.");
  } catch (error) {
    warn(`The models cannot be listed. ${error.message}`);
  }
}

async function listConversations() {
  const all = await conversations();
  at("conversations").replaceChildren(
    ...all.map(({ id, title }) => {
      const remove = element("button", { type: "button", "aria-label": `Delete ${title}` }, "×");
      remove.addEventListener("click", async () => {
        await forget(id);
        if (id === open.id) location.hash = "";
        listConversations();
      });
      const link = element("a", { href: `#${id}`, "aria-current": id === open.id && "page" }, title);
      return element("li", {}, link, remove);
    }),
  );
}

function follow(draw) {
  const near = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  draw();
  if (near) main.scrollTop = main.scrollHeight;
}

function view(message) {
  const place = open.messages.indexOf(message);
  const actions = { Copy: () => navigator.clipboard?.writeText(message.text) };
  if (message.role === "user") {
    actions.Edit = () => shown.edit((text) => again(place, text));
  } else {
    actions.Regenerate = () => again(place - 1, open.messages[place - 1].text);
  }
  const shown = new MessageView(message, actions);
  return shown;
}

function draw() {
  list.replaceChildren(...open.messages.map((message) => view(message).node));
  main.scrollTop = main.scrollHeight;
}

async function show(id) {
  stop();
  open = (id && (await conversation(id))) || begun();
  warn("");
  draw();
  listConversations();
  at("side").classList.remove("open");
  box.focus();
}

/** Asks anew from a message on, with another text. */
function again(place, text) {
  if (running) return;
  const { items } = open.messages[place];
  open.messages.length = place;
  draw();
  ask(text, items);
}

function stop() {
  running?.controller.abort();
}

function setRunning(now) {
  running = now;
  at("send").hidden = Boolean(now);
  at("stop").hidden = !now;
  list.setAttribute("aria-busy", String(Boolean(now)));
}

/** Says how long the prompt is, if the model reads it for a while. */
async function tellLength(asked, shown, signal) {
  await new Promise((done) => setTimeout(done, 500));
  if (!shown.waits || asked.some(({ items }) => items?.length)) return;
  const count = await promptLength(at("model").value, asked, signal).catch(() => 0);
  if (count && shown.waits) shown.wait(`Reading the prompt… ${count.toLocaleString("en")} tokens`);
}

/** Takes the pieces of an answer into a message; `reading` is called with the first of them. */
async function take(pieces, message, shown, keeping, reading) {
  let begins = true;
  let nextDraw = 0;
  let kept = performance.now();
  for await (const piece of pieces) {
    if (begins) reading();
    begins = false;
    if (piece.text || piece.thought) shown.wait("");
    message.text += piece.text;
    message.thought += piece.thought;
    message.tokens.push(...piece.tokens);
    message.usage = piece.usage ?? message.usage;
    message.reason = piece.reason ?? message.reason;
    message.timings = piece.timings ?? message.timings;
    const begun = performance.now();
    if (begun > nextDraw) {
      follow(() => shown.update());
      const end = performance.now();
      nextDraw = end + Math.max(50, 9 * (end - begun)); // a long text takes a tenth of the time
    }
    if (performance.now() - kept > 1000) {
      keeping();
      kept = performance.now();
    }
  }
}

async function ask(text, items = []) {
  const here = open;
  here.messages.push({ role: "user", text, items });
  here.title ||= text.slice(0, 80) || items[0]?.name || "Conversation";
  const asked = [...here.messages];
  const message = { role: "assistant", text: "", thought: "", tokens: [] };
  here.messages.push(message);
  const shown = view(message);
  list.append(view(here.messages.at(-2)).node, shown.node);
  shown.wait("Loading the model…");
  main.scrollTop = main.scrollHeight;
  const controller = new AbortController();
  const { signal } = controller;
  const reading = () => {
    shown.wait("Reading the prompt…");
    tellLength(asked, shown, signal);
  };
  setRunning({ controller });
  await keep(here);
  if (location.hash.slice(1) !== here.id) history.replaceState(null, "", `#${here.id}`);
  listConversations();
  try {
    await take(answer(at("model").value, asked, signal), message, shown, () => keep(here), reading);
  } catch (error) {
    if (signal.aborted) message.reason = "stopped";
    else message.failed = error.message;
  }
  setRunning(null);
  shown.wait("");
  follow(() => shown.update());
  await keep(here);
  listConversations();
}

function send() {
  const text = box.value.trim();
  if (running || (!text && !attached.items.length)) return;
  warn("");
  box.value = "";
  ask(text, attached.take());
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !at("settings").open) stop();
});
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", () => (location.hash ? (location.hash = "") : show("")));
at("open-side").addEventListener("click", () => {
  const isOpen = at("side").classList.toggle("open");
  at("open-side").setAttribute("aria-expanded", String(isOpen));
});
at("files").addEventListener("change", (event) => {
  attached.add(event.target.files);
  event.target.value = "";
});
at("model").addEventListener("change", () => localStorage.setItem("ggmodel.model", at("model").value));
addEventListener("hashchange", () => show(location.hash.slice(1)));
watchDrops(at("drop"), attached);
watchSettings(at("settings"), (name) => name === "key" && listModels());
whenChanged(({ id, gone }) => {
  listConversations();
  if (id !== open.id || running) return;
  if (gone) location.hash = "";
  else conversation(id).then((one) => one && ((open = one), draw()));
});

listModels();
show(location.hash.slice(1));
