"""Chat templates of a Hugging Face directory."""

from __future__ import annotations

import json
import re
from typing import Any

from ...bounds import limits
from ...chat.replies import KEY as REPLIES
from ...chat.template import KEY
from ...errors import FormatError
from ...reading import too_large
from .files import Files


def chat_templates(files: Files) -> dict[str, Any]:
    """The default template, and others by name.

    `tokenizer_config.json` goes before `chat_template.jinja` (with more of them in
    `additional_chat_templates/`), and that before `chat_template.json`.

    Raises:
        FormatError: a file is damaged, or holds something other than templates.
    """
    settings = files.settings or {}
    name = "tokenizer_config.json"
    if "chat_template" in settings:
        found = settings["chat_template"]
    elif (found := _of_folder(files)) is None:
        name = "chat_template.json"
        found = (files.json(name) or {}).get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {KEY: found}
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise files.damaged(name, f"chat_template should be a text, but is {found!r:.80}")
    return _named(files, name, found)


def declared_replies(files: Files) -> dict[str, str]:
    """The `response_template` of tokenizer_config.json, as JSON text.

    Raises:
        FormatError: it is no object.
    """
    declared = (files.settings or {}).get("response_template")
    if declared is None:
        return {}
    if not isinstance(declared, dict):
        raise files.damaged(
            "tokenizer_config.json",
            f"response_template should be an object, but is {declared!r:.80}",
        )
    return {REPLIES: json.dumps(declared, ensure_ascii=False)}


def _of_folder(files: Files) -> str | list[dict[str, str]] | None:
    default = files.text("chat_template.jinja")
    more = sorted((files.folder / "additional_chat_templates").glob("*.jinja"))
    if default is None or not more:
        return default
    named, size = [{"name": "default", "template": default}], len(default)
    for path in more:
        text = files.text(f"additional_chat_templates/{path.name}")
        if text is not None:
            named.append({"name": path.stem, "template": text})
            size += len(text)
        if size > limits.text_file_bytes:
            name = str(files.folder / "additional_chat_templates")
            raise FormatError(too_large(name, f"{size:,} letters", "text_file_bytes"))
    return named


def _named(files: Files, file: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    names: list[str] = []
    for item in items:
        name, template = item.get("name", ""), item.get("template")
        if template is None:
            continue
        if not isinstance(name, str) or not isinstance(template, str):
            raise files.damaged(file, f"a chat template is {item!r:.80}")
        name = re.sub("[^a-zA-Z0-9]", "_", name)
        if name == "default":
            result[KEY] = template
        elif name:
            names.append(name)
            result[f"{KEY}.{name}"] = template
    if names:
        result[f"{KEY}s"] = list(dict.fromkeys(names))
    return result
