// Models of the server: the chosen one, and what it takes.

import { get, post } from "./api.js";
import { element } from "./element.js";

/** Kinds of files → their names in sentences. */
export const KINDS = { image: "pictures", audio: "sounds", video: "videos", file: "text and PDF files" };

const joined = (words) => new Intl.ListFormat("en").format(words);

/** Whether a model writes down speech, and does nothing else. */
export const transcribes = (model) =>
  Boolean(model?.abilities?.includes("transcription") && !model.abilities.includes("chat"));

/** Whether a model takes a kind of files; null where only loading tells. */
export function takes(model, kind) {
  if (transcribes(model)) return kind === "audio";
  if (kind === "file" || model?.kinds?.includes(kind)) return true;
  return model?.loaded ? false : null;
}

/** A sentence on what a model takes. */
export function diet(model) {
  if (transcribes(model)) return "It takes sounds, and writes down what is said.";
  const [some, none] = [true, false].map((sign) => Object.keys(KINDS).filter((kind) => takes(model, kind) === sign));
  const not = none.length ? `, but no ${new Intl.ListFormat("en", { type: "disjunction" }).format(none.map((kind) => KINDS[kind]))}` : "";
  const names = { ...KINDS, file: "PDF files" };
  return `It takes ${joined(["text", ...some.map((kind) => names[kind])])}${not}.`;
}

/** The list of models in the header. */
export class Models {
  /** `warn` shows a problem; `changed` is called when another one is chosen, or more is known of it. */
  constructor(select, warn, changed) {
    Object.assign(this, { select, warn, changed, all: [] });
    select.addEventListener("change", () => {
      localStorage.setItem("ggmodel.model", select.value);
      changed();
    });
  }

  /** The chosen model, as the server describes it. */
  get chosen() {
    return this.all.find(({ id }) => id === this.select.value);
  }

  choose(id) {
    if (this.all.some((one) => one.id === id)) this.select.value = id;
    this.changed();
  }

  async refresh() {
    const chosen = this.select.value || localStorage.getItem("ggmodel.model");
    try {
      this.all = (await get("v1/models")).data;
    } catch (error) {
      return this.warn(`The models cannot be listed. ${error.message}`);
    }
    const options = this.all.map(({ id }) => element("option", { value: id }, id));
    this.select.replaceChildren(...options);
    this.warn(options.length ? "" : "The server has no model; start it with one.");
    this.choose(chosen);
  }

  /** Why the chosen model cannot have files of a kind; "" if it can. It is loaded where only that tells. */
  async refusal(kind) {
    if (takes(this.chosen, kind) === null) {
      this.warn(`Loading ${this.chosen.id} to see whether it takes ${KINDS[kind]}…`);
      await post("models/load", { model: this.chosen.id });
      await this.refresh();
    }
    const { chosen } = this;
    if (takes(chosen, kind) !== false) return "";
    const others = this.all.filter((one) => takes(one, kind)).map(({ id }) => id);
    const instead = others.length ? ` Of the models here, ${joined(others)} ${others.length > 1 ? "do" : "does"}.` : "";
    const only = transcribes(chosen) ? " It writes down speech, and takes sounds alone." : "";
    return `${chosen.id} takes no ${KINDS[kind]}.${only}${instead}`;
  }
}
