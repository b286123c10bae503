// An open conversation: its messages on the page, and the answer that comes.

import { answer, transcribe } from "./client.js";
import { leavesOut, showContext } from "./context.js";
import { Toolbox } from "./mcp.js";
import { MessageView } from "./message.js";
import { transcribes } from "./models.js";
import { begun, keep } from "./store.js";
import { add, choose, path, versions } from "./tree.js";
import { welcome } from "./welcome.js";

const [list, log, main, greeting] = ["messages", "log", "main", "welcome"].map((id) => document.getElementById(id));

function follow(draw) {
  const near = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  draw();
  if (near) main.scrollTop = main.scrollHeight;
}

/** Adds a part of a call to those of a message. */
function addCall(message, { index, id, function: part }) {
  message.calls ??= [];
  const call = (message.calls[index] ??= { id, name: "", arguments: "" });
  call.name += part.name ?? "";
  call.arguments += part.arguments ?? "";
}

/** Takes the pieces of an answer into a message. */
async function take(pieces, message, shown, keeping) {
  let nextDraw = 0;
  let kept = performance.now();
  for await (const piece of pieces) {
    if (piece.progress) shown.wait("Reading the prompt…", piece.progress);
    else if (piece.text || piece.thought || piece.calls?.length) shown.wait("");
    message.text += piece.text;
    message.thought += piece.thought;
    message.tokens.push(...piece.tokens);
    for (const part of piece.calls ?? []) addCall(message, part);
    for (const name of ["usage", "reason", "timings", "seconds"]) message[name] = piece[name] ?? message[name];
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

export class Chat {
  /**
   * `changed` is called when the list of conversations is another, `ran` when an answer begins or ends,
   * `opened` when another conversation is shown.
   */
  constructor(models, { changed, ran, opened }) {
    Object.assign(this, { models, changed, ran, opened, open: begun(), controller: null, toolbox: new Toolbox() });
  }

  get runs() {
    return Boolean(this.controller);
  }

  /** The messages that are shown. */
  get messages() {
    return path(this.open);
  }

  /** Shows another conversation, or this one as it has become. */
  show(conversation) {
    this.open = conversation;
    this.opened();
    this.draw();
  }

  /** Shows an empty conversation; the one that was open is not kept any more. */
  abandon() {
    this.open.abandoned = true;
    this.stop();
    this.show(begun());
  }

  draw() {
    list.replaceChildren(...this.messages.map((message) => this.view(message).node));
    this.greet();
    main.scrollTop = main.scrollHeight;
  }

  /** Suits the screen to the chosen model. */
  greet() {
    showContext(this.messages, this.models.chosen);
    greeting.hidden = this.open.messages.length > 0;
    if (!greeting.hidden) greeting.replaceChildren(...welcome(this.models.chosen, (text) => this.ask(text)));
  }

  view(message) {
    const { open } = this;
    const idle = (act) => () => this.runs || act();
    const actions = { Copy: () => navigator.clipboard?.writeText(message.text) };
    if (message.role === "user") {
      actions.Edit = idle(() => shown.edit("Send anew", (text) => this.again(message, text)));
    } else {
      actions.Edit = idle(() => shown.edit("Keep", (text) => this.revise(message, text)));
      actions.Regenerate = idle(() => this.regenerate(message));
      const goOn = () => (message.calls?.length ? this.respond() : this.run(message, shown));
      if (!message.seconds && !transcribes(this.models.chosen)) actions.Continue = idle(goOn);
    }
    actions.Fork = idle(() => this.fork(message));
    const switched = (version) => idle(() => this.changedTo(() => choose(open, version)))();
    const shown = new MessageView(message, actions, versions(open, message), switched);
    return shown;
  }

  /** Changes which messages are shown. */
  async changedTo(change) {
    change();
    this.draw();
    await keep(this.open);
  }

  /** Asks anew in place of a question. */
  again(message, text) {
    if (this.runs) return;
    this.open.leaf = message.parent;
    this.draw();
    this.ask(text, message.items);
  }

  /** Puts another text in place of an answer, as a version of it. */
  revise(message, text) {
    if (this.runs) return;
    const { role, model, items } = message;
    this.changedTo(() => add(this.open, { role, model, items, text, thought: "", tokens: [] }, message.parent));
  }

  /** Answers again. */
  regenerate(message) {
    this.open.leaf = message.parent;
    this.draw();
    this.respond();
  }

  /** Goes on in a new conversation from a message. */
  async fork(message) {
    const { title, settings } = this.open;
    const messages = path(this.open, message.id);
    const forked = { ...begun(), title, settings, messages, leaf: message.id };
    await keep(forked);
    location.hash = forked.id;
  }

  stop() {
    this.controller?.abort();
  }

  setRunning(controller) {
    this.controller = controller;
    log.setAttribute("aria-busy", String(this.runs));
    this.ran();
  }

  /** Why the chosen model cannot take a message; "" if it can. */
  async refusal(items) {
    const model = this.models.chosen;
    if (transcribes(model)) return items.length ? "" : `${model.id} writes down speech: attach or record a sound.`;
    const all = [...this.messages.flatMap((message) => message.items ?? []), ...items];
    for (const kind of new Set(all.map((one) => one.kind))) {
      const reason = await this.models.refusal(kind);
      if (reason) return reason;
    }
    return "";
  }

  ask(text, items = []) {
    const { open } = this;
    open.title ||= text.slice(0, 80) || items[0]?.name || "Conversation";
    const message = add(open, { role: "user", text, items });
    list.append(this.view(message).node);
    this.greet();
    return this.respond();
  }

  /** Answers the last message. */
  respond() {
    const model = this.models.chosen?.id;
    const message = add(this.open, { role: "assistant", model, text: "", thought: "", tokens: [] });
    const shown = this.view(message);
    list.append(shown.node);
    return this.run(message, shown);
  }

  /** Has the model write a message, or go on with it. */
  async run(message, shown) {
    const { open: here } = this;
    Object.assign(message, { reason: null, failed: null });
    const model = this.models.chosen;
    const isLoaded = model?.status?.value === "loaded";
    shown.wait(isLoaded ? "Waiting for the model…" : "Loading the model…");
    main.scrollTop = main.scrollHeight;
    const controller = new AbortController();
    this.setRunning(controller);
    const keeping = () => (here.abandoned ? null : keep(here));
    await keeping();
    if (location.hash.slice(1) !== here.id) history.replaceState(null, "", `#${here.id}`);
    this.changed();
    const asked = this.asked(here, message);
    try {
      await this.answer(asked, message, shown, keeping, controller.signal);
    } catch (error) {
      if (controller.signal.aborted) message.reason = "stopped";
      else message.failed = error.message;
    }
    if (this.controller === controller) this.setRunning(null);
    shown.wait("");
    follow(() => shown.update());
    await keeping();
    this.changed();
    if (!isLoaded) await this.models.refresh();
    message.leftOut = await leavesOut(asked, message, this.models.chosen);
    if (message.leftOut) {
      shown.update();
      await keeping();
    }
    this.greet();
    const goesOn = message.calls?.length && !message.failed && message.reason !== "stopped";
    if (goesOn && here === this.open && here.leaf === message.id && !this.runs) await this.respond();
  }

  /** Answers, and runs the tools that the answer calls. */
  async answer(asked, message, shown, keeping, signal) {
    if (transcribes(this.models.chosen)) return take(transcribe(asked, signal), message, shown, keeping);
    const urls = asked.settings?.tools;
    asked.tools = urls ? await this.toolbox.open(urls) : [];
    await take(answer(asked, signal), message, shown, keeping);
    for (const call of message.calls ?? []) {
      shown.wait("");
      follow(() => shown.update());
      call.result = await this.toolbox.run(call, () => shown.confirm(call, signal), signal);
    }
  }

  /** What the model is asked for a message. Answers that failed are left out. */
  asked(conversation, message) {
    const isSent = ({ role, text, calls }) => role === "user" || text || calls?.length;
    const messages = path(conversation, message.id).filter(isSent);
    return { model: this.models.chosen?.id, messages, settings: conversation.settings };
  }
}
