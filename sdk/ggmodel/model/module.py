"""Modules: typed fields that the loader fills, and a `forward`."""

from __future__ import annotations

import functools
import inspect
import typing
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ConfigError, Unsupported
from ..ml import Tensor
from ..ml.graph import in_scope
from .fields import KeyField, TensorField
from .source_code import check_tags, declared, line_of, type_hints, union_members


class Module:
    """A part of a model. Fields are annotated `Tensor`, a module, `list[...]`, or a union of
    these; `| None` makes one optional, a union of modules is filled with the one whose tensors
    the file has. Calling a module calls its `forward` and names the results after its path.

    A constructor takes the hyperparameters; it may put modules of its choice into the fields.

    Attributes:
        config: the model's hyperparameters.
        scope: the path below the module that holds it, for the names of results.
        dims: for modules that hold plain tensors: which of the dims given as the `shape` of a
            field each tensor has, such as {"weight": (0, 1), "bias": (1,)}.
        compared: whether `diff` compares it and what it holds with the module of the reference that
            has its tensors; False where that one is called for other things first.
    """

    dims: ClassVar[dict[str, tuple[int, ...]]] = {}
    compared: ClassVar[bool] = True

    def __init__(self, config: Any = None):
        self.config = config
        self.scope = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return in_scope(self.scope, self.forward, args, kwargs)


@dataclass(frozen=True)
class FieldType:
    """The annotation of a field.

    Attributes:
        choices: the types of its value, `Tensor` or modules.
        optional: None is allowed.
        many: it is a list of these.
        items_optional: None is allowed in the list.
        interface: it allows any object with some methods, which a constructor has to put there.
    """

    choices: tuple[type, ...]
    optional: bool
    many: bool = False
    items_optional: bool = False
    interface: bool = False


@functools.cache
def module_fields(cls: type[Module]) -> dict[str, tuple[TensorField, FieldType]]:
    """The fields of a module class that hold tensors or modules, in order of declaration.

    Raises:
        ConfigError: an annotation cannot be resolved, or a field tagged with `gguf` has a type
            that cannot hold tensors; names the line.
    """
    check_tags(cls, TensorField, KeyField, "kv(...) tags hyperparameters and belongs in a Config")
    hints = type_hints(cls)
    fields: dict[str, tuple[TensorField, FieldType]] = {}
    for name, tag in declared(cls).items():
        kind = _field_type(hints[name])
        if isinstance(tag, TensorField):
            if kind is None:
                raise ConfigError(
                    f"{line_of(cls, name)}: {cls.__name__}.{name} is tagged gguf(...), but its "
                    f"type {hints[name]} is no Tensor, Module, list or union of these"
                )
            fields[name] = (tag, kind)
        elif kind is not None and tag is None:
            fields[name] = (TensorField(), kind)
    return fields


def _field_type(hint: Any) -> FieldType | None:
    optional, members = union_members(hint)
    if len(members) == 1 and typing.get_origin(members[0]) is list:
        items_optional, members = union_members((*typing.get_args(members[0]), object)[0])
        many = True
    else:
        items_optional = many = False
    if not all(isinstance(t, type) for t in members):
        return None
    concrete = tuple(t for t in members if not _is_interface(t))
    if not all(issubclass(t, (Tensor, Module)) for t in concrete):
        return None
    return FieldType(concrete, optional, many, items_optional, len(concrete) < len(members))


def _is_interface(t: type) -> bool:
    """A protocol, an abstract class, or a base of modules that declares nothing of its own."""
    if getattr(t, "_is_protocol", False) or inspect.isabstract(t):
        return True
    if not issubclass(t, Module) or declared(t).keys() != declared(Module).keys():
        return False
    return t.forward is Module.forward and t.__init__ is Module.__init__
