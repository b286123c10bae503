"""The model class of a source; a plain text's file and a projector beside it may be one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ArchitectureError
from ..gguf_file.metadata import KeyValues
from .config import key_fields
from .model import Model, config_class
from .registry import find, find_pair, paired, supported

_TYPES = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")


def projectors_of(metadata: Mapping[str, Any]) -> list[str]:
    """The types of a source's projectors, in llama.cpp's names: of images, of sounds."""
    found = (metadata.get(key) for key in _TYPES)
    return list(dict.fromkeys(kind for kind in found if isinstance(kind, str)))


def of_source(keys: KeyValues, models: str | Path | None = None) -> type[Model]:
    """The model class of a source, by its metadata.

    Args:
        models: a folder of architectures, searched first.

    Raises:
        ArchitectureError: no such architecture, or none for a text with this projector (names the
            types that are supported, or the token or key for which the two are no model).
        ConfigError: the metadata name no architecture.
    """
    name, pooled = keys.architecture, bool(keys.get("pooling_type", int))
    kinds = projectors_of(keys.metadata)
    if not kinds:
        return find(name, models, pooled)
    own = None
    with suppress(ArchitectureError):  # a text that is known only beside a projector
        own = find(name, models, pooled)
    if own is not None and own.takes_items():
        return own
    both = find_pair(name, kinds, models)
    if both is not None and not (wrong := _misfit(both, own, keys)):
        return both
    if both is None:
        find(name, models, pooled)  # raises where it is unknown
        wrong = f"supported: {', '.join(map(repr, paired(name, models))) or 'none'}"
    raise ArchitectureError(
        f"{keys.name}: a projector of the type {', '.join(k[:100] for k in map(repr, kinds))} "
        f"beside a text of {name!r} is unsupported; {wrong}. "
        'Without it (--mmproj "", mmproj="") the text alone is loaded.'
    )


def _misfit(both: type[Model], alone: type[Model] | None, keys: KeyValues) -> str:
    """Why a text's file is none of a model with a projector, though of its architecture: the
    vocabulary lacks a token of items, or a key says what only the text alone computes; "" if it
    may be one."""
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    known = tokens if isinstance(tokens, Sequence) else ()
    if lacking := next((name for name in both.pair_tokens if name not in known), None):
        return f"the vocabulary of {both.architecture!r} has {lacking!r}, this one does not"
    if alone is None:
        return ""
    read = {key for _, field, *_ in key_fields(config_class(both)) for key in field.names}
    for _, field, kind, _ in key_fields(config_class(alone)):
        if read.isdisjoint(field.names):
            for key in field.names:
                value = keys.get(key, kind)
                if value and value != field.default:
                    said = f"{keys.full(key)} is {value!r:.60}"
                    return f"{said}, which {both.architecture!r} does not compute"
    return ""


def fits(text: KeyValues, projector: Mapping[str, Any], models: str | Path | None = None) -> bool:
    """Whether a projector is of a type that goes with a text's file, by the metadata of both.

    Args:
        models: as for `of_source`.

    Raises:
        ArchitectureError: there is no such architecture.
        ConfigError: a key of the text has the wrong type.
    """
    name, kinds, own = text.architecture, projectors_of(projector), None
    with suppress(ArchitectureError):
        own = find(name, models)
    if (both := find_pair(name, kinds, models)) is not None:
        return not _misfit(both, own, text)
    others = {*supported(models)} - {name}
    return (own or find(name, models)).takes_items() and others.isdisjoint(kinds)
