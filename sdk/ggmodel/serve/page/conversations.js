// The list of conversations: search, rename, export, import, delete with undo.

import { bring, save } from "./archive.js";
import { button, element } from "./element.js";
import { conversations, forget, put } from "./store.js";

const UNDO = 15_000; // milliseconds in which a deletion can be undone

const at = (id) => document.getElementById(id);

/** Whether a conversation has a text in its title or messages, whatever the capitals. */
function has({ title, messages }, text) {
  const sought = text.toLowerCase();
  return [title, ...messages.map((one) => one.text)].some((one) => one.toLowerCase().includes(sought));
}

export class Conversations {
  /** `chat` has the open one; `leave` opens an empty one. */
  constructor(chat, warn, leave) {
    Object.assign(this, { chat, warn, leave });
    at("search").addEventListener("input", () => this.draw());
    at("export").addEventListener("click", async () => save(await conversations(), "conversations"));
    at("import").addEventListener("change", (event) => this.bring(event.target));
    addEventListener("click", ({ target }) => {
      for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(target)) menu.open = false;
    });
  }

  async bring(input) {
    try {
      const count = await bring(input.files[0]);
      this.warn("");
      this.tell(`${count} conversation${count === 1 ? "" : "s"} imported`);
    } catch (error) {
      this.warn(error.message);
    }
    input.value = "";
    this.draw();
  }

  async draw() {
    const text = at("search").value.trim();
    const all = (await conversations()).filter((one) => !text || has(one, text));
    at("conversations").replaceChildren(...all.map((one) => this.entry(one)));
    const { title } = this.chat.open;
    document.title = title ? `${title} · ggmodel` : "ggmodel";
  }

  entry(one) {
    const current = one.id === this.chat.open.id && "page";
    const link = element("a", { href: `#${one.id}`, "aria-current": current }, one.title);
    const does = (act) => () => {
      menu.open = false;
      act();
    };
    const menu = element("details", { class: "menu" },
      element("summary", { "aria-label": `More on ${one.title}` }, "⋯"),
      element("div", {},
        button("Rename", does(() => this.rename(one, link))),
        button("Export", does(() => save([one], one.title))),
        button("Delete", does(() => this.remove(one)))));
    menu.addEventListener("keydown", ({ key }) => key === "Escape" && ((menu.open = false), menu.firstChild.focus()));
    return element("li", {}, link, menu);
  }

  rename(one, link) {
    const field = element("input", { "aria-label": "Title", maxlength: "200" });
    field.value = one.title;
    let ended = false;
    const end = async (keeps) => {
      if (ended) return;
      ended = true;
      if (keeps && field.value.trim()) {
        one.title = field.value.trim();
        if (one.id === this.chat.open.id) this.chat.open.title = one.title;
        await put(one);
      }
      this.draw();
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", ({ key }) => ["Enter", "Escape"].includes(key) && end(key === "Enter"));
    link.replaceWith(field);
    field.select();
  }

  async remove(one) {
    if (one.id === this.chat.open.id) this.leave();
    await forget(one.id);
    this.draw();
    this.tell(`Deleted ${one.title}`, async () => {
      await put(one);
      location.hash = one.id;
      this.draw();
    });
  }

  /** Says something for a while, with a button to undo it. */
  tell(text, undo) {
    const end = () => at("done").replaceChildren();
    clearTimeout(this.timer);
    this.timer = setTimeout(end, UNDO);
    at("done").replaceChildren(text, ...(undo ? [button("Undo", () => (end(), undo()))] : []));
  }
}
