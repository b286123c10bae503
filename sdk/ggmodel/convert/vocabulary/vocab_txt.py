"""vocab.txt: a WordPiece vocabulary, one token a line, as the equivalent tokenizer.json."""

from __future__ import annotations

from typing import Any

from ...tokenizer.vocabulary import check_count
from .files import Files

_NAMED = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def tokenizer_of_vocab_txt(files: Files, text: str) -> dict[str, Any]:
    """The content of a tokenizer.json for `text`, with the settings of tokenizer_config.json.

    Raises:
        FormatError: the settings are damaged.
        TokenizerError: it has more lines than the limit `vocabulary_tokens`.
    """
    check_count(str(files.folder / "vocab.txt"), text.count("\n"))
    settings = files.settings or {}
    vocab = {token: id for id, token in enumerate(text.removesuffix("\n").split("\n"))}
    vocab = {token.removesuffix("\r"): id for token, id in vocab.items()}
    names = {}
    for name, default in _NAMED.items():
        token = settings.get(f"{name}_token", default)
        names[name] = token.get("content") if isinstance(token, dict) else token
    files.settings = {**{f"{name}_token": token for name, token in names.items()}, **settings}
    first, last = ({"SpecialToken": {"id": names[name], "type_id": 0}} for name in ("cls", "sep"))
    a, b = ({"Sequence": {"id": id, "type_id": 0}} for id in "AB")
    return {
        "added_tokens": [
            {"id": vocab[token], "content": token, "special": True, "normalized": False}
            for token in names.values()
            if isinstance(token, str) and token in vocab
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "lowercase": settings.get("do_lower_case", True),
            "strip_accents": settings.get("strip_accents"),
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, a, last],
            "pair": [first, a, last, b, last],
        },
        "model": {"type": "WordPiece", "vocab": vocab},
    }
