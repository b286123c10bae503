"""Hyperparameters: a class of `kv` fields, read from metadata."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from ..ml.keyvalues import KeyValues
from .fields import MISSING, KeyField, kv
from .module import dataclass_transform

if typing.TYPE_CHECKING:
    from typing_extensions import Self

_KINDS = (bool, int, float, str, list)


@dataclass_transform(field_specifiers=(kv,), kw_only_default=True)
class Config:
    """Base of a model's hyperparameters. Subclasses declare fields with `kv`; properties and
    methods derive whatever else the model needs."""

    def __init__(self, **values: Any):
        fields = {name for name, _, _, _ in key_fields(type(self))}
        unknown = sorted(values.keys() - fields)
        if unknown:
            raise ConfigError(f"{type(self).__name__} has no hyperparameter {', '.join(unknown)}")
        for name, field, kind, optional in key_fields(type(self)):
            value = values.get(name)
            setattr(self, name, self._default(name, field, kind, optional) if value is None else value)

    def _default(self, name: str, field: KeyField, kind: type, optional: bool) -> Any:
        default = field.default
        if default is MISSING:
            if optional:
                return None
            keys = " or ".join(repr(k) for k in field.names)
            raise ConfigError(
                f"the hyperparameter {name!r} is missing: no metadata key {keys}; "
                "the file was converted without it or belongs to another architecture"
            )
        if callable(default):
            return default(self)
        return getattr(self, default) if isinstance(default, str) and kind is not str else default

    @classmethod
    def read(cls, metadata: KeyValues) -> Self:
        """The hyperparameters of a file.

        Raises:
            ConfigError: a key is missing (names it) or has the wrong type (names key and types).
        """
        values = {}
        for name, field, kind, _ in key_fields(cls):
            for key in field.names:
                value = metadata.get(key, kind)
                if value is not None:
                    values[name] = value
                    break
        try:
            return cls(**values)
        except ConfigError as error:
            arch = metadata.architecture
            raise ConfigError(f"{metadata.name} ({arch}): {error}") from None

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> dict[str, Any]:
        """Primary metadata key (without the architecture's prefix) → value, of an HF config."""
        found: dict[str, Any] = {}
        for _, field, kind, _ in key_fields(cls):
            for source in field.hf:
                value = source(hf) if callable(source) else _descend(hf, source)
                if value is not None:
                    found[field.names[0]] = kind(value) if kind is not list else list(value)
                    break
        return found

    def __repr__(self) -> str:
        values = ", ".join(f"{n}={getattr(self, n)!r}" for n, _, _, _ in key_fields(type(self)))
        return f"{type(self).__name__}({values})"


def _descend(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree


def key_fields(cls: type[Config]) -> Iterator[tuple[str, KeyField, type, bool]]:
    """Name, field, kind of value and whether None is allowed, in order of declaration."""
    hints = typing.get_type_hints(cls)
    for base in reversed(cls.__mro__):
        for name in base.__dict__.get("__annotations__", {}):
            field = base.__dict__.get(name)
            if isinstance(field, KeyField):
                yield name, field, *_kind(hints[name], f"{cls.__name__}.{name}")


def _kind(hint: Any, where: str) -> tuple[type, bool]:
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [t for t in typing.get_args(hint) if t is not types.NoneType]
        optional = len(inner) < len(typing.get_args(hint))
        hint = inner[0] if len(inner) == 1 else object
    kind = typing.get_origin(hint) or hint
    if kind not in _KINDS:
        raise ConfigError(f"{where}: a hyperparameter is a bool, int, float, str or list, not {hint}")
    return kind, optional
