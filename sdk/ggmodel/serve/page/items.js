// Files that are to go with the next message.

import { button, element } from "./element.js";
import { asWav } from "./sound.js";

const FORMATS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg" };
const LONG = 4000; // characters of a pasted text that becomes a file

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

async function isDocument(file) {
  if (file.type === "application/pdf") return true;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return !text.includes("\0");
  } catch {
    return false;
  }
}

/** The kind of a file, as `KINDS` has them. */
export async function kindOf(file) {
  const kind = file.type.split("/")[0];
  if (["image", "audio", "video"].includes(kind) && file.type !== "image/svg+xml") return kind;
  if (await isDocument(file)) return "file";
  throw new Error(`${file.name} is neither a picture, a sound, a video, a PDF file nor text.`);
}

/** A file as an item of a message: {kind, name, url, format}. */
async function item(file, kind) {
  if (kind === "audio" && !FORMATS[file.type]) {
    const wav = await asWav(file, file.name).catch(() => null);
    if (!wav) throw new Error(`${file.name} cannot be read as a sound.`);
    return { kind, name: file.name, url: await read(wav), format: "wav" };
  }
  return { kind, name: file.name, url: await read(file), format: FORMATS[file.type] };
}

/** An item as it looks in a message. */
export function shown({ kind, name, url }) {
  if (kind === "image") return element("img", { src: url, alt: name });
  if (kind === "file") return element("span", { class: "document" }, name);
  return element(kind, { src: url, controls: true, "aria-label": name });
}

/** The list of what is attached, and ways to add to it. */
export class Attached {
  /** `refusal(kind)` says why the model takes no such files, "" if it does. */
  constructor(list, warn, refusal) {
    Object.assign(this, { list, warn, refusal, items: [] });
  }

  async add(files) {
    this.warn("");
    for (const file of [...files]) {
      try {
        const kind = await kindOf(file);
        const reason = await this.refusal(kind);
        if (reason) throw new Error(reason);
        this.items.push(await item(file, kind));
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
        const remove = () => {
          this.items = this.items.filter((other) => other !== one);
          this.draw();
        };
        const picture = one.kind === "image" ? [element("img", { src: one.url, alt: "" })] : [];
        return element("li", {}, ...picture, one.name, button("×", remove, { "aria-label": `Remove ${one.name}` }));
      }),
    );
  }
}

/** Lets files be dropped anywhere, or pasted; a long text that is pasted becomes a file. */
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
    const { files } = event.clipboardData ?? {};
    if (files?.length) return attached.add(files);
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text.length < LONG || event.target.id !== "text") return;
    event.preventDefault();
    attached.add([new File([text], "pasted.txt", { type: "text/plain" })]);
  });
}
