"""The reflective loader: fills the fields of a model with the tensors of a file.

It works on names and shapes alone; no weight is read. Everything that does not fit is collected
into one report instead of failing at the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..gguf_file import TensorInfo
from ..ml import Tensor
from .config import keys_behind
from .module import Module
from .names import Names
from .operations import value_of
from .report import LoadReport, WrongShape, compare
from .walk import Slot, Walk


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
    found = _Loader(model.config, tensors).module(model, Slot(Names()))
    for owner, name, value in found.values:
        setattr(owner, name, _loaded(value, weights))
    bound = [(info.name, path) for info, path in found.bound]
    report = LoadReport(architecture, bound, found.missing, found.wrong)
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


def _fits(expected: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    if len(expected) > 4:
        return False
    pairs = zip((*expected, 1, 1, 1, 1)[:4], (*found, 1, 1, 1, 1)[:4], strict=True)
    return all(want is None or want == have for want, have in pairs)
