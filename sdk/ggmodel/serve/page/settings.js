// The dialog of settings: of the open conversation, and of the page.

import { get } from "./api.js";
import { keepSettings, put, settings } from "./store.js";

function apply({ scheme }) {
  const root = document.documentElement;
  if (scheme) root.dataset.scheme = scheme;
  else delete root.dataset.scheme;
}

const valueOf = (field) => (field.type === "checkbox" ? field.checked : field.value);

function fill(fields, values) {
  for (const field of fields) {
    if (field.type === "checkbox") field.checked = Boolean(values[field.name]);
    else field.value = values[field.name] ?? "";
  }
}

/** Shows in empty fields the numbers that the model takes by itself. */
async function suggest(fields, model) {
  const path = `props?autoload=false&model=${encodeURIComponent(model?.id)}`;
  const known = model?.loaded ? await get(path).catch(() => null) : null;
  const params = known?.default_generation_settings.params ?? {};
  for (const field of fields.filter(({ dataset }) => dataset.suggests)) {
    const value = params[field.name];
    field.placeholder = value === undefined ? "model's" : String(Math.round(1000 * value) / 1000);
  }
}

/** Fills the dialog, keeps changes at once, and calls `changed` with the name of each. */
export function watchSettings(dialog, chat, models, changed) {
  const form = dialog.querySelector("form");
  const own = [...form.querySelectorAll("#own [name]"), document.getElementById("thinking")];
  const others = [...form.querySelectorAll("#all [name]")];
  const keepOwn = (values) => {
    chat.open.settings = values;
    fill(own, values);
    if (chat.open.messages.length) put(chat.open);
  };
  for (const field of own) {
    field.addEventListener("input", () => {
      const values = { ...chat.open.settings, [field.name]: valueOf(field) };
      if (field.validity.valid) keepOwn(values);
    });
  }
  for (const field of others) {
    field.addEventListener("input", () => {
      keepSettings({ ...settings(), [field.name]: valueOf(field) });
      apply(settings());
      changed(field.name);
    });
  }
  document.getElementById("reset").addEventListener("click", () => keepOwn({}));
  document.getElementById("keep").addEventListener("click", () => {
    keepSettings({ ...settings(), defaults: chat.open.settings });
  });
  document.getElementById("open-settings").addEventListener("click", () => {
    suggest(own, models.chosen);
    dialog.showModal();
  });
  fill(others, settings());
  apply(settings());
  return () => fill(own, chat.open.settings ?? {});
}
