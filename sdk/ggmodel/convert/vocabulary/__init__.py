"""The vocabulary of a Hugging Face directory, as the metadata of a GGUF.

The metadata equals that of llama.cpp's converter. `ggmodel.tokenizer` reads it:
`Tokenizer.from_metadata(vocabulary(folder, config))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import TokenizerError
from ...tokenizer.pretokenizers import PRE_TOKENIZERS
from . import kinds
from .files import Files
from .tekken import tekken
from .templates import chat_templates, declared_replies
from .tokenizer_json import TokenizerJson
from .vocab_txt import tokenizer_of_vocab_txt

__all__ = ["vocabulary"]

_SENTENCEPIECE = ("tokenizer.model", "spiece.model")
_SPELLS_SENTENCEPIECE = {"llama", "mistral", "mixtral", "phi3"}


def vocabulary(
    folder: Path, config: Mapping[str, Any], pre: str | None = None, rows: int | None = None
) -> dict[str, Any]:
    """The `tokenizer.*` metadata of a Hugging Face directory.

    Args:
        folder: the directory with tokenizer.json (byte pairs, WordPiece), else tekken.json (byte
            pairs of Mistral), tokenizer.model or spiece.model (SentencePiece), or vocab.txt
            (WordPiece), and tokenizer_config.json, added_tokens.json, generation_config.json and
            chat templates.
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
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise TokenizerError(f"the pre-tokenizer {pre!r} is unknown; known are: {known}")
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
    if files.tokenizer is None and (text := files.text("vocab.txt")) is not None:
        files.tokenizer = tokenizer_of_vocab_txt(files, text)
    kind = _kind(files)
    model = next((name for name in _SENTENCEPIECE if files.path(name)), None)
    # Some directories have both; bytes in GPT-2's alphabet are no SentencePiece model.
    if model is not None and (files.tokenizer is None or kind != "byte level"):
        return kinds.sentencepiece(files, model)
    if kind is None:
        raise TokenizerError(
            f"{files.folder} has no vocabulary: no tokenizer.json, tekken.json, tokenizer.model or "
            f"vocab.txt; get the tokenizer's files, or write tokenizer.json with transformers "
            f"(AutoTokenizer.from_pretrained(…).save_pretrained(…))"
        )
    if kind == "WordPiece":
        return kinds.wordpiece(files, TokenizerJson(files))
    if kind == "byte fallback" and pre is None and files.families & _SPELLS_SENTENCEPIECE:
        return kinds.ranked_pairs(files, TokenizerJson(files))
    if kind in ("byte level", "byte fallback"):
        return kinds.byte_pairs(files, TokenizerJson(files), pre)
    raise TokenizerError(
        f"tokenizer.json holds a vocabulary of the kind {kind}, which needs its tokenizer.model or "
        f"is not supported; supported are BPE and WordPiece"
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
