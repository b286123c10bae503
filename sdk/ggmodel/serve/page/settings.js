// The dialog of settings.

import { keepSettings, settings } from "./store.js";

function apply(values) {
  const root = document.documentElement;
  if (values.scheme) root.dataset.scheme = values.scheme;
  else delete root.dataset.scheme;
}

/** Fills the dialog, keeps changes at once, and calls `changed` with the name of each. */
export function watchSettings(dialog, changed) {
  const form = dialog.querySelector("form");
  const fields = [...form.elements].filter((field) => field.name);
  const fill = () => {
    const values = settings();
    for (const field of fields) {
      if (field.type === "checkbox") field.checked = Boolean(values[field.name]);
      else field.value = values[field.name] ?? "";
    }
    apply(values);
  };
  form.addEventListener("input", (event) => {
    const { name, type, checked, value, validity } = event.target;
    if (!name || !validity.valid) return;
    const values = { ...settings(), [name]: type === "checkbox" ? checked : value };
    keepSettings(values);
    apply(values);
    changed(name);
  });
  document.getElementById("reset").addEventListener("click", () => {
    keepSettings({});
    fill();
  });
  document.getElementById("open-settings").addEventListener("click", () => {
    fill();
    dialog.showModal();
  });
  fill();
}
