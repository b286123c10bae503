// The dialog of models: pulled, loaded, unloaded, removed.

import { parts, post } from "./api.js";
import { button, bytes, element, number } from "./element.js";
import { KINDS, takes } from "./models.js";

const STATES = { loaded: "loaded", loading: "loading…", unloaded: "not loaded" };

/** A model's size, state and abilities in a line. */
function facts(model) {
  const { size, status, loaded, context_length: length, meta } = model;
  const told = [STATES[status.value]];
  if (status.failed) told.push("failed");
  if (size) told.push(bytes(size));
  if (meta) told.push(`${bytes(meta.size)} of memory`, meta.quantization);
  if (loaded) told.push(`${number(length)} tokens of context`);
  const kinds = ["image", "audio", "video"].filter((kind) => takes(model, kind));
  if (kinds.length) told.push(`takes ${kinds.map((kind) => KINDS[kind]).join(", ")}`);
  return told.join(" · ");
}

export class Manager {
  constructor(dialog, models) {
    Object.assign(this, { models, list: dialog.querySelector("ul"), state: dialog.querySelector("output") });
    document.getElementById("open-manage").addEventListener("click", async () => {
      this.tell("");
      this.draw();
      dialog.showModal();
      await models.refresh();
      this.draw();
    });
    const form = dialog.querySelector("#pull");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.pull(form.elements.name.value.trim());
    });
  }

  /** Says what goes on, or what went wrong. */
  tell(text, failed = false) {
    this.state.textContent = text;
    this.state.classList.toggle("failed", failed);
  }

  draw() {
    this.list.replaceChildren(...this.models.all.map((model) => this.entry(model)));
  }

  entry(model) {
    const { id, loaded } = model;
    const change = (path, doing) => () => this.does(`${doing} ${id}…`, () => post(path, { model: id }));
    const label = (verb) => ({ "aria-label": `${verb} ${id}` });
    const state = loaded
      ? button("Unload", change("models/unload", "Unloading"), label("Unload"))
      : button("Load", change("models/load", "Loading"), label("Load"));
    const remove = model.removable ? [button("Remove", (event) => this.confirm(event.target, model), label("Remove"))] : [];
    return element("li", {}, element("strong", {}, id), element("span", { class: "facts" }, facts(model)),
      element("span", { class: "row" }, state, ...remove));
  }

  /** Asks before a model is gone for good. */
  confirm(pressed, { id, size }) {
    const remove = () => this.does(`Removing ${id}…`, () => post("api/delete", { model: id }, null, "DELETE"));
    const sure = button(`Delete ${bytes(size)} from the disk`, remove);
    const cancel = button("Keep it", () => this.draw());
    pressed.replaceWith(sure, cancel);
    sure.focus();
  }

  /** Does work that changes models, and shows them as they have become. */
  async does(text, work) {
    this.tell(text);
    try {
      await work();
      this.tell("");
    } catch (error) {
      this.tell(error.message, true);
    }
    await this.models.refresh();
    this.draw();
  }

  async pull(model) {
    if (!model) return;
    const bar = element("progress", { "aria-label": `Pulling ${model}` });
    const row = element("li", {}, element("strong", {}, model), bar);
    await this.does(`Pulling ${model}…`, async () => {
      this.list.append(row);
      for await (const line of parts(await post("api/pull", { model }), "\n")) {
        const { status, error, completed, total } = JSON.parse(line);
        if (error) throw new Error(error);
        if (total) Object.assign(bar, { max: total, value: completed });
        this.tell(total ? `${status}: ${bytes(completed)} of ${bytes(total)}` : status);
      }
    });
    row.remove();
  }
}
