"""The vocabulary and the chat templates of a Hugging Face directory, as the metadata of a GGUF.

The metadata equals that of llama.cpp's converter. `ggmodel.tokenizer` reads it:
`Tokenizer.from_metadata(vocabulary(folder, config))`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...bounds import limits
from ...chat.template import KEY, REPLIES_KEY
from ...errors import FormatError, TokenizerError
from ...reading import too_large
from ...tokenizer.pretokenizers import PRE_TOKENIZERS
from . import kinds
from .files import RWKV_WORLD, Files
from .marian import is_marian, marian
from .rwkv import rwkv
from .tekken import tekken
from .tiktoken import tiktoken
from .tokenizer_json import TokenizerJson, tokenizer_of_vocab_txt

__all__ = ["vocabulary"]

_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_SPELLS_SENTENCEPIECE = {"llama", "mistral", "mixtral", "phi3"}


def vocabulary(
    folder: Path, config: Mapping[str, Any], pre: str | None = None, rows: int | None = None
) -> dict[str, Any]:
    """The `tokenizer.*` metadata of a Hugging Face directory.

    Args:
        folder: the directory with tokenizer.json (byte pairs, WordPiece, unigrams), else
            tekken.json (byte pairs of Mistral), tiktoken.model or NAME.tiktoken (byte pairs of
            tiktoken, which tokenizer.model may be, too), tokenizer.model, spiece.model or
            sentencepiece.bpe.model (SentencePiece), source.spm and vocab.json (Marian),
            rwkv_vocab_v20230424.txt (RWKV), or vocab.txt (WordPiece), and tokenizer_config.json,
            added_tokens.json, generation_config.json and chat templates.
        config: the `config.json`, for the number of tokens, the family and ids of special tokens.
        pre: the name of the pre-tokenizer, where it cannot be determined.
        rows: of the embedding. Tokens beyond the config's number may have some: Llama 3.2 Vision
            has its image token there.

    Returns:
        Values in the types of a GGUF: str, bool, int (uint32), lists of str, and numpy arrays
        (token_type int32, scores float32, precompiled_charsmap uint8).

    Raises:
        FormatError: a file is damaged.
        ConfigError: the config gives no usable number of tokens.
        TokenizerError: there is no vocabulary, its kind is unsupported, or its pre-tokenizer
            unknown.
    """
    if pre is not None and pre not in PRE_TOKENIZERS:
        names = ", ".join(sorted(PRE_TOKENIZERS))
        raise TokenizerError(f"the pre-tokenizer {pre!r} is unknown; known are: {names}")
    files = Files(Path(folder), config, rows)
    made = {**_tokens(files, pre), **chat_templates(files), **declared_replies(files)}
    for key, value in made.items():
        if isinstance(value, (str, list)):
            _check_text(key, "".join(value))
    return made


def _check_text(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{key} holds the lone surrogate U+{ord(text[error.start]):04X}, which is no "
            f"character; get the tokenizer's files again"
        ) from None


def _tokens(files: Files, pre: str | None) -> dict[str, Any]:
    if files.tokenizer is None and (made := tekken(files, pre)) is not None:
        return made
    if files.tokenizer is None and (made := tiktoken(files, pre)) is not None:
        return made
    if files.tokenizer is None and (text := files.text("vocab.txt")) is not None:
        files.tokenizer = tokenizer_of_vocab_txt(files, text)
    if files.tokenizer is None and is_marian(files):
        return marian(files)
    if files.tokenizer is None and files.path(RWKV_WORLD):
        return rwkv(files)
    kind = _kind(files)
    model = next((name for name in _SENTENCEPIECE if files.path(name)), None)
    # Some directories have both; bytes in GPT-2's alphabet are no SentencePiece model.
    if model is not None and (files.tokenizer is None or kind != "byte level"):
        return kinds.sentencepiece(files, model)
    if kind is None:
        raise TokenizerError(
            f"{files.folder} has no vocabulary: no tokenizer.json, tekken.json, tiktoken.model, "
            f"tokenizer.model or vocab.txt; get the tokenizer's files, or write tokenizer.json "
            f"with transformers (AutoTokenizer.from_pretrained(…).save_pretrained(…))"
        )
    if kind == "WordPiece":
        return kinds.wordpiece(files, TokenizerJson(files))
    if kind == "Unigram":
        return kinds.unigram(files, TokenizerJson(files))
    if kind == "byte fallback" and pre is None and files.families & _SPELLS_SENTENCEPIECE:
        return kinds.ranked_pairs(files, TokenizerJson(files))
    if kind in ("byte level", "byte fallback"):
        return kinds.byte_pairs(files, TokenizerJson(files), pre)
    raise TokenizerError(
        f"tokenizer.json holds a vocabulary of the kind {kind}, which needs its tokenizer.model or "
        f"is not supported; supported are BPE, Unigram and WordPiece"
    )


def _kind(files: Files) -> str | None:
    """The kind of model in tokenizer.json; for byte pairs, their spelling of bytes."""
    if files.tokenizer is None:
        return None
    model = files.tokenizer.get("model")
    if not isinstance(model, dict):
        raise files.damaged("tokenizer.json", "model is missing, or is no object")
    kind = model.get("type") or ("BPE" if "merges" in model else "unknown")
    if kind != "BPE":
        return str(kind)
    return "byte fallback" if model.get("byte_fallback") else "byte level"


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
        templates = settings["chat_template"]
    elif (templates := _of_folder(files)) is None:
        name = "chat_template.json"
        templates = (files.json(name) or {}).get("chat_template")
    if templates is None:
        return {}
    if isinstance(templates, str):
        return {KEY: templates}
    if not isinstance(templates, list) or not all(isinstance(item, dict) for item in templates):
        raise files.damaged(name, f"chat_template should be a text, but is {templates!r:.80}")
    return _named(files, name, templates)


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
    return {REPLIES_KEY: json.dumps(declared, ensure_ascii=False)}


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
