// Pictures and sounds that are to go with the next message.

import { element } from "./markdown.js";

const FORMATS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg" };

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/** A file as an item of a message: {kind, name, url, format}. */
export async function item(file) {
  const kind = file.type.split("/")[0];
  if (kind !== "image" && kind !== "audio") {
    throw new Error(`${file.name} is neither a picture nor a sound.`);
  }
  const format = FORMATS[file.type] ?? file.name.split(".").pop().toLowerCase();
  return { kind, name: file.name, url: await read(file), format };
}

/** An item as it looks in a message. */
export function shown({ kind, name, url }) {
  if (kind === "image") return element("img", { src: url, alt: name });
  return element("audio", { src: url, controls: true, "aria-label": name });
}

/** The list of what is attached, and ways to add to it. */
export class Attached {
  constructor(list, warn) {
    this.list = list;
    this.warn = warn;
    this.items = [];
  }

  async add(files) {
    for (const file of files) {
      try {
        this.items.push(await item(file));
      } catch (error) {
        this.warn(error.message);
      }
    }
    this.draw();
  }

  /** All of them, which then are gone from here. */
  take() {
    const taken = this.items;
    this.items = [];
    this.draw();
    return taken;
  }

  draw() {
    this.list.replaceChildren(
      ...this.items.map((one) => {
        const remove = element("button", { type: "button", "aria-label": `Remove ${one.name}` }, "×");
        remove.addEventListener("click", () => {
          this.items = this.items.filter((other) => other !== one);
          this.draw();
        });
        const picture = one.kind === "image" ? [element("img", { src: one.url, alt: "" })] : [];
        return element("li", {}, ...picture, one.name, remove);
      }),
    );
  }
}

/** Lets files be dropped anywhere, or pasted. */
export function watchDrops(overlay, attached) {
  const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    overlay.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) overlay.hidden = true;
  });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    overlay.hidden = true;
    attached.add(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) attached.add(event.clipboardData.files);
  });
}
