"""Tensors that a file need not have: computed of its hyperparameters."""

from __future__ import annotations

from typing import Any

from ..gguf_file import JoinedSource, MemorySource, TensorSource
from ..ml import Tensor
from .fields import TensorField
from .model import Model
from .module import Module, module_fields


def completed(source: TensorSource, architecture: type[Model], config: Any) -> TensorSource:
    """The source, and beside its tensors those that it lacks and the architecture can compute.

    Raises:
        ConfigError: hyperparameters make no sense.
    """
    made: dict[str, Any] = {}
    for tag in _with_default(architecture):
        name = tag.names[0]
        if tag.default is not None and name not in made and name not in source.tensors:
            value = tag.default(config)
            if value is not None:
                made[name] = value
    if not made:
        return source
    both = JoinedSource(source, MemorySource({}, made))
    both.name = source.name
    return both


def _with_default(architecture: type[Model]) -> list[TensorField]:
    """Their fields in the architecture and in all modules it may consist of."""
    found: list[TensorField] = []
    seen: list[type[Module]] = [architecture]
    for cls in seen:  # grows meanwhile
        for tag, kind in module_fields(cls).values():
            found += [tag] if tag.default is not None else []
            inner = [c for c in kind.choices if not issubclass(c, Tensor)]
            seen += [c for c in inner if c not in seen]
    return found
