"""The loader: the model class of a source, and its fields filled with the tensors of a file.

It works on names and shapes alone; no weight is read. Everything that does not fit is collected
into one report instead of failing at the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ..errors import ArchitectureError
from ..gguf_file import JoinedSource, MemorySource, TensorInfo, TensorSource
from ..gguf_file.values import KeyValues
from ..ml import Tensor
from .config import key_fields, keys_behind
from .model import Model, config_class
from .module import Module, Names
from .operations import value_of
from .registry import find, find_pair, paired, supported
from .report import LoadReport, WrongShape, compare
from .walk import Slot, Walk, class_fields

_TYPES = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")


def projectors_of(metadata: Mapping[str, Any]) -> list[str]:
    """The types of a source's projectors, in llama.cpp's names: of images, of sounds."""
    types = (metadata.get(key) for key in _TYPES)
    return list(dict.fromkeys(kind for kind in types if isinstance(kind, str)))


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
    vocabulary = tokens if isinstance(tokens, Sequence) else ()
    if lacking := next((name for name in both.pair_tokens if name not in vocabulary), None):
        return f"the vocabulary of {both.architecture!r} has {lacking!r}, this one does not"
    if alone is None:
        return ""
    read = {key for _, field, *_ in key_fields(config_class(both)) for key in field.names}
    for _, field, kind, _ in key_fields(config_class(alone)):
        if read.isdisjoint(field.names):
            for key in field.names:
                value = keys.get(key, kind)
                if value and value != field.default:
                    setting = f"{keys.full(key)} is {value!r:.60}"
                    return f"{setting}, which {both.architecture!r} does not compute"
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


class Weights(Protocol):
    """The loader's view of a backend."""

    def get(self, name: str) -> Tensor | None: ...


def fill(
    model: Module,
    weights: Weights,
    tensors: Mapping[str, TensorInfo],
    architecture: str,
    ignore: tuple[str, ...] = (),
) -> LoadReport:
    """Fills all fields of a model.

    Args:
        ignore: patterns (`fnmatch`) of tensors that may stay unused.

    Raises:
        ConfigError: the declaration itself makes no sense; names the field.
        ArchitectureError: a module's constructor fails; names the line.
    """
    outcome = _Loader(model.config, tensors).module(model, Slot(Names()))
    for owner, name, value in outcome.values:
        setattr(owner, name, _loaded(value, weights))
    bound = [(info.name, path) for info, path in outcome.bound]
    report = LoadReport(architecture, bound, outcome.missing, outcome.wrong)
    return compare(report, dict(reversed(bound)), tensors, ignore)


def _loaded(value: Any, weights: Weights) -> Any:
    if isinstance(value, list):
        return [_loaded(v, weights) for v in value]
    return weights.get(value.name) if isinstance(value, TensorInfo) else value


class _Loader(Walk[Names]):
    """The walk by names in a GGUF file."""

    tensors: Mapping[str, TensorInfo]

    def find(self, names: Names) -> tuple[TensorInfo | None, tuple[str, ...]]:
        (name,) = names.candidates
        return self.tensors.get(name), (name,)

    def misfit(self, tensor: TensorInfo, slot: Slot[Names]) -> list[WrongShape]:
        if slot.shape is None:
            return []
        expected = tuple(None if d is None else value_of(self.config, d) for d in slot.shape)
        if _fits(expected, tensor.shape):
            return []
        keys: dict[str, Any] = {}
        for dim, want, have in zip(slot.shape, expected, tensor.shape, strict=False):
            if isinstance(dim, str) and want != have:
                keys |= keys_behind(self.config, dim)
        return [WrongShape(tensor.name, slot.path, expected, tuple(tensor.shape), (*keys.items(),))]


def _fits(expected: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    if len(expected) > 4:
        return False
    pairs = zip((*expected, 1, 1, 1, 1)[:4], (*shape, 1, 1, 1, 1)[:4], strict=True)
    return all(want is None or want == have for want, have in pairs)


def completed(source: TensorSource, architecture: type[Model], config: Any) -> TensorSource:
    """The source plus the computed default tensors that it lacks."""
    made: dict[str, Any] = {}
    for _, _, tag, _ in class_fields(architecture):
        name = tag.names[0] if tag.names else ""
        if tag.default is not None and name not in made and name not in source.tensors:
            value = tag.default(config)
            if value is not None:
                made[name] = value
    if not made:
        return source
    both = JoinedSource(source, MemorySource({}, made))
    both.name = source.name
    return both
