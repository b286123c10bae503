"""The hyperparameters of a file beside those of its checkpoint, as the declaration reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...gguf_file.values import KeyValues
from ...model import Config, Model, config_class
from ...model.config import key_fields
from ...nn.decoder import local_layers
from .report import Certificate

# Keys of other programs and of documents; what they say of a model stands elsewhere, too.
_APART = ("general.", "tokenizer.", "split.", "quantize.", "imatrix.", "clip.", "adapter.")
# Sizes that only programs that allocate by them read; an embedding has its rows.
_SIZES = ("context_length", "vocab_size")
_PATTERN = "attention.sliding_window_pattern"


def compare_keys(
    architecture: type[Model],
    file: Mapping[str, Any],
    original: Mapping[str, Any],
    found: Certificate,
) -> Config | None:
    """Compares every hyperparameter with its value in the checkpoint, defaults included, and lists
    keys of the file that no hyperparameter reads.

    Args:
        original: the metadata that the checkpoint's config.json gives.

    Returns:
        the file's hyperparameters; None where they cannot be read.
    """
    declared = config_class(architecture)
    theirs = declared.read(KeyValues(original, "config.json"))
    keys = KeyValues(file, found.file)
    try:
        ours = declared.read(keys)
    except ConfigError as error:
        found.add("hyperparameter", "unreadable", architecture.architecture, str(error))
        return None
    read: set[str] = set()
    count = 0
    for name, tag, _, _ in key_fields(declared):
        names = [keys.full(key) for key in tag.names]
        read.update(names, tag.names)
        mine, other = (_settled(config, name, tag.names[0]) for config in (ours, theirs))
        count += 1
        if same(mine, other):
            continue
        present = next((key for key in (*names, *tag.names) if key in file), None)
        is_size = tag.names[0] in _SIZES
        where = "it is" if present else "the file has none, which means"
        note = f"{where} {_shown(mine)}; the checkpoint's is {_shown(other)}"
        kind = tag.names[0] if present else f"missing {tag.names[0]}"
        found.add("hyperparameter", kind, present or names[0], note, fault=not is_size)
    found.checked["hyperparameters"] = f"{count} that the declaration reads"
    for key in file:
        if key not in read and not key.startswith(_APART):
            _unread(key, file[key], original, found)
    return ours


def _settled(config: Config, name: str, key: str) -> Any:
    """A hyperparameter's value; kinds of layers one by one, which a number may stand for."""
    value = getattr(config, name)
    window = getattr(config, "window", None)
    if key == _PATTERN and isinstance(value, list) and isinstance(window, int):
        return local_layers(value, getattr(config, "layers", 0), window)
    return value


def _unread(key: str, value: Any, original: Mapping[str, Any], found: Certificate) -> None:
    """A key that no hyperparameter reads; other programs may."""
    if key in original and not same(value, original[key]):
        note = f"it is {_shown(value)}; the checkpoint's is {_shown(original[key])}"
        found.add("hyperparameter", key.partition(".")[2], key, note)
        return
    note = f"{_shown(value)}: no hyperparameter of the declaration reads it"
    found.add("hyperparameter", "unread", key, note, fault=False)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one in a file, which holds float32."""
    if isinstance(a, bool) or isinstance(b, bool) or isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    if isinstance(a, int | float) and isinstance(b, int | float):
        with np.errstate(over="ignore"):
            return bool(np.float32(a) == np.float32(b)) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, Iterable) and isinstance(b, Iterable):
        mine, other = list(a), list(b)
        # One number may stand for all layers.
        mine = mine * len(other) if len(mine) == 1 else mine
        other = other * len(mine) if len(other) == 1 else other
        return len(mine) == len(other) and all(map(same, mine, other))
    return bool(a == b)


def _shown(value: Any) -> str:
    text = repr(list(value)) if hasattr(value, "tolist") else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
