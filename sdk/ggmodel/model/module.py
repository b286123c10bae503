"""Modules: typed fields that the loader fills, and a `forward`."""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ConfigError
from ..ml import Tensor
from ..ml.graph import in_scope
from .fields import TensorField, gguf

if typing.TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Python 3.10 lacks it; only type checkers read it."""
        return lambda cls: cls


@dataclass_transform(field_specifiers=(gguf,), eq_default=False)
class Module:
    """A part of a model. Fields are annotated `Tensor`, a module, `list[...]`, or a union of
    these; `| None` makes one optional, a union of modules is filled with the one whose tensors
    the file has. Calling a module calls its `forward` and names the results after its path.

    Attributes:
        config: the model's hyperparameters.
        dims: for modules that hold plain tensors: which of the dims given as the `shape` of a
            field each tensor has, such as {"weight": (0, 1), "bias": (1,)}.
    """

    dims: ClassVar[dict[str, tuple[int, ...]]] = {}

    def __init__(self, config: Any = None):
        self.config = config
        self.scope = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return in_scope(self.scope, self.forward, args, kwargs)


@dataclass(frozen=True)
class FieldType:
    """What the annotation of a field says.

    Attributes:
        choices: `Tensor` or modules it may hold.
        optional: None is allowed.
        many: it is a list of these.
    """

    choices: tuple[type, ...]
    optional: bool
    many: bool


@functools.cache
def module_fields(cls: type[Module]) -> dict[str, tuple[TensorField, FieldType]]:
    """The fields of a module class that hold tensors or modules, in order of declaration.

    Raises:
        ConfigError: a field tagged with `gguf` has a type that cannot hold tensors.
    """
    hints = typing.get_type_hints(cls)
    fields: dict[str, tuple[TensorField, FieldType]] = {}
    for base in reversed(cls.__mro__):
        for name in base.__dict__.get("__annotations__", {}):
            tag = base.__dict__.get(name)
            kind = _field_type(hints[name])
            if isinstance(tag, TensorField):
                if kind is None:
                    raise ConfigError(
                        f"{cls.__name__}.{name} is tagged gguf(...), but its type {hints[name]} is "
                        "no Tensor, Module, list or union of these"
                    )
                fields[name] = (tag, kind)
            elif kind is not None and tag is None:
                fields[name] = (TensorField(), kind)
    return fields


def _field_type(hint: Any) -> FieldType | None:
    optional = many = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        optional = types.NoneType in members
        choices = tuple(t for t in members if t is not types.NoneType)
    else:
        choices = (hint,)
    if len(choices) == 1 and typing.get_origin(choices[0]) is list:
        many = True
        inner = _field_type(typing.get_args(choices[0])[0])
        if inner is None or inner.many:
            return None
        choices, optional = inner.choices, optional or inner.optional
    if all(isinstance(t, type) and issubclass(t, (Tensor, Module)) for t in choices):
        return FieldType(choices, optional, many)
    return None
