// The page: a list of conversations, one of them open, and a line to write in.

import { Chat } from "./chat.js";
import { Conversations } from "./conversations.js";
import { Attached, watchDrops } from "./items.js";
import { Manager } from "./manage.js";
import { KINDS, Models, takes, transcribes } from "./models.js";
import { watchSettings } from "./settings.js";
import { watchMicrophone } from "./sound.js";
import { begun, conversation, whenChanged } from "./store.js";

const at = (id) => document.getElementById(id);
const [box, notice] = ["text", "notice"].map(at);
const ACCEPTED = { image: "image/*", audio: "audio/*", video: "video/*", file: ".pdf,text/*,.md,.json,.csv,.py,.js" };

function warn(message) {
  notice.textContent = message;
  notice.hidden = !message;
}

/** Suits the page to the chosen model. */
function suit() {
  const model = models.chosen;
  const kinds = Object.keys(KINDS).filter((kind) => takes(model, kind) !== false);
  at("files").accept = kinds.map((kind) => ACCEPTED[kind]).join(",");
  at("attach").title = `Attach ${kinds.map((kind) => KINDS[kind]).join(", ")}`;
  at("record").hidden = !kinds.includes("audio");
  box.placeholder = transcribes(model) ? "Attach or record a sound, then send it" : "Write a message";
  at("thinks").hidden = !model?.abilities?.includes("thinking");
  chat.greet();
}

const models = new Models(at("model"), warn, suit);
const attached = new Attached(at("attached"), warn, (kind) => models.refusal(kind));
const chat = new Chat(models, {
  changed: () => list.draw(),
  opened: () => fillSettings(),
  ran: () => {
    at("send").hidden = chat.runs;
    at("stop").hidden = !chat.runs;
  },
});
const list = new Conversations(chat, warn, () => {
  chat.abandon();
  history.replaceState(null, "", location.pathname + location.search);
});

/** Chooses the model that answered last. */
const chooseModel = () => models.choose(chat.messages.findLast((message) => message.model)?.model);

async function show(id) {
  chat.stop();
  chat.show((id && (await conversation(id))) || begun());
  chooseModel();
  warn("");
  list.draw();
  at("side").classList.remove("open");
  box.focus();
}

async function send() {
  const text = box.value.trim();
  if (chat.runs || (!text && !attached.items.length)) return;
  warn("");
  const reason = await chat.refusal(attached.items).catch((error) => error.message);
  if (reason) return warn(reason);
  box.value = "";
  chat.ask(text, attached.take());
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (matchMedia("(pointer: coarse)").matches) return; // a phone's keyboard has no other way to make a line
  event.preventDefault();
  send();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.runs && !document.querySelector("dialog[open]")) chat.stop();
});
at("stop").addEventListener("click", () => chat.stop());
at("new").addEventListener("click", () => (location.hash ? (location.hash = "") : show("")));
at("open-side").addEventListener("click", () => {
  const isOpen = at("side").classList.toggle("open");
  at("open-side").setAttribute("aria-expanded", String(isOpen));
});
at("files").addEventListener("change", async (event) => {
  await attached.add(event.target.files);
  event.target.value = "";
});
addEventListener("hashchange", () => show(location.hash.slice(1)));
watchDrops(at("drop"), attached);
watchMicrophone(at("record"), (file) => attached.add([file]), warn);
const fillSettings = watchSettings(at("settings"), chat, models, (name) => name === "key" && models.refresh());
new Manager(at("manage"), models);
whenChanged(({ id, gone }) => {
  list.draw();
  if (id !== chat.open.id || chat.runs) return;
  if (gone) location.hash = "";
  else conversation(id).then((one) => one && chat.show(one));
});

models.refresh().then(chooseModel);
show(location.hash.slice(1));
