"""Tensors that a file may lack, computed from its hyperparameters."""

from __future__ import annotations

from typing import Any

from ..gguf_file import JoinedSource, MemorySource, TensorSource
from .model import Model
from .walk import class_fields


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
