"""Hyperparameters: a class of `kv` fields, read from metadata."""

from __future__ import annotations

import difflib
import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

from ..errors import ConfigError, Unsupported
from ..gguf_file.values import KeyValues, check_kind
from .module import MISSING, KeyField, TensorField, kv
from .source_code import check_tags, declared, line_of, type_hints, union_members

if typing.TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Python 3.10 lacks it; only type checkers read it."""
        return lambda cls: cls


DOCUMENTS = {
    "preprocessor": "preprocessor_config.json",
    "features": "preprocessor_config.json",
    "video": "video_preprocessor_config.json",
    "processor": "processor_config.json",
    "generation": "generation_config.json",
}
"""Documents beside a config.json, by their names in `hf=`: "preprocessor:size.longest_edge"."""

_KINDS = (bool, int, float, str, list)
_COMPARED = 1000  # keys that a missing one is compared with


@dataclass_transform(field_specifiers=(kv,), kw_only_default=True)
class Config:
    """Base of a model's hyperparameters. Subclasses declare fields with `kv`, and derive other
    values in properties and methods.

    Attributes:
        loaded_context: positions of a sequence in the loaded model; 0 outside of loaded models.
        drafts: the fields of a head that drafts (`mtp`) are filled; False in models that are loaded
            without.
        fixed: key of a Hugging Face config that no field reads → its only supported value, a
            function of the config that gives it, or `...` if all values mean the same. Keys of
            the classes that it inherits from stay.
        unread: fields that no forward reads: other programs ask for their keys, or those that
            prepare items and transcripts do.
    """

    loaded_context = 0
    drafts = True
    fixed: ClassVar[Mapping[str, Any]] = {}
    unread: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **values: Any):
        fields = {name: field for name, field, *_ in key_fields(type(self))}
        unknown = sorted(values.keys() - fields.keys())
        if unknown:
            raise ConfigError(f"{type(self).__name__} has no hyperparameter {', '.join(unknown)}")
        self.__dict__.update({n: v for n, v in values.items() if v is not None})
        for name, field in fields.items():
            self._check_limits(field, getattr(self, name))

    def _check_limits(self, field: KeyField, values: Any) -> None:
        key = field.names[0]
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if not isinstance(value, (int, float)):
                continue
            whole, named = self._limit(field.divides)
            if whole and (not value or whole % value):
                raise ConfigError(f"{key} is {value}; it must divide {whole}{named}")
            most, named = self._limit(field.most)
            if most is not None and value > most:
                raise ConfigError(f"{key} is {value}; it must be {most} or less{named}")

    def _limit(self, limit: Any) -> tuple[Any, str]:
        """The number of a limit, or of the attribute that it names, and the key of that, or the
        name."""
        if not isinstance(limit, str):
            return limit, ""
        declared = getattr(type(self), limit, None)
        name = declared.names[0] if isinstance(declared, KeyField) else limit.replace("_", " ")
        return getattr(self, limit), f", {name}"

    def _settle(self, field: KeyField) -> Any:
        """Sets a hyperparameter without a value to its default."""
        name, kind, optional = next(
            (n, k, o) for n, f, k, o in key_fields(type(self)) if f is field
        )
        default = field.default
        if default is MISSING:
            if not optional:
                keys = " or ".join(repr(k) for k in field.names)
                raise ConfigError(f"the hyperparameter {name!r} has no value: no key {keys}")
            value = None
        elif callable(default) or (isinstance(default, str) and kind is not str):
            value = self._derived(name, default)
        else:
            value = list(default) if isinstance(default, list) else default
        self.__dict__[name] = value
        return value

    def _derived(self, name: str, default: str | Callable[[Any], Any]) -> Any:
        try:
            return getattr(self, default) if isinstance(default, str) else default(self)
        except ConfigError:
            raise
        except Exception as error:
            reason = "it refers to itself" if isinstance(error, RecursionError) else repr(error)
            raise ConfigError(
                f"{line_of(type(self), name)}: the default of the hyperparameter {name!r} cannot "
                f"be computed: {reason}"
            ) from error

    @classmethod
    def read(cls, metadata: KeyValues, published: Mapping[str, Any] | None = None) -> Self:
        """The hyperparameters of a file.

        Args:
            published: the config.json that the metadata comes from.

        Raises:
            ConfigError: a key is missing (names it) or has the wrong type (names key and types).
        """
        arch = metadata.architecture
        values: dict[str, Any] = {}
        for name, field, kind, optional in key_fields(cls):
            for key in field.names:
                values[name] = metadata.get(key, kind)
                if values[name] is not None:
                    _check_least(metadata, key, values[name], field.least)
                    break
            if values[name] is None and field.default is MISSING and not optional:
                keys = [metadata.full(k) for k in field.names]
                raise ConfigError(
                    f"{metadata.name}: no metadata key {' or '.join(map(repr, keys))}, which the "
                    f"architecture {arch!r} needs (hyperparameter {name!r}); "
                    + (
                        _not_in_file(keys[0], metadata.metadata)
                        if published is None
                        else _not_published(f"{line_of(cls, name)}: ", field, published)
                    )
                )
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{metadata.name} ({arch}): {error}") from error

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of a Hugging Face config: primary key (without the architecture's prefix) →
        value.

        Raises:
            ConfigError: a value has the wrong type, or a function of the config fails.
        """
        values = {f.names[0]: cls.published(name, hf) for name, f, *_ in key_fields(cls)}
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def published(cls, name: str, hf: Mapping[str, Any]) -> Any:
        """The value of one hyperparameter in a Hugging Face config; None without.

        Raises:
            ConfigError: as `from_hf`.
        """
        field, kind = next((f, k) for n, f, k, _ in key_fields(cls) if n == name)
        for source in field.hf:
            try:
                value = source(hf) if callable(source) else descend(hf, source)
            except (ConfigError, Unsupported) as error:
                raise ConfigError(f"config.json: {error}") from error
            except Exception as error:
                raise ConfigError(
                    f"{line_of(cls, name)}: the hyperparameter {name!r} cannot be computed "
                    f"from config.json: {error!r}"
                ) from error
            if value is not None:
                if callable(source):
                    key, what = name, f"what {_called(source)} computes for the hyperparameter"
                else:
                    key, what = source, "key"
                return check_kind(key, value, kind, _file_of(source), what)
        return None

    def __repr__(self) -> str:
        values = ", ".join(f"{n}={getattr(self, n)!r}" for n, *_ in key_fields(type(self)))
        return f"{type(self).__name__}({values})"


def keys_behind(config: Config, name: str) -> dict[str, Any]:
    """Primary key → value of the hyperparameters that an attribute of a config follows from."""
    values: dict[str, Any] = {}

    class Watching:
        def __getattr__(self, name: str) -> Any:
            declared = getattr(type(config), name, None)
            if isinstance(declared, property) and declared.fget is not None:
                return declared.fget(self)
            value = getattr(config, name)
            if isinstance(declared, KeyField):
                values[declared.names[0]] = value
            return value

    getattr(Watching(), name)
    return values


def _check_least(metadata: KeyValues, key: str, value: Any, least: float | None) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{metadata.name}: {metadata.full(key)} is {value}, no finite number")
    if least is not None and isinstance(value, int | float) and value < least:
        raise ConfigError(
            f"{metadata.name}: {metadata.full(key)} is {value}; it must be {least} or more"
        )


def _not_in_file(key: str, metadata: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, list(metadata)[:_COMPARED], 2)
    return (f"the file has {', '.join(near)}; " if near else "") + (
        "it was converted without it, or belongs to another architecture"
    )


def _not_published(where: str, field: KeyField, hf: Mapping[str, Any]) -> str:
    """Why a config.json gives no value: the keys of `hf=`, and keys like them."""
    if not field.hf:
        return f"{where}its kv(...) names no key of config.json; add hf="
    tried = [source for source in field.hf if isinstance(source, str)]
    paths: dict[str, str] = {}  # in lower case → as it stands; those outside of sub-configs first
    for path in sorted(islice(_paths(hf), _COMPARED), key=lambda path: path.count(".")):
        paths.setdefault(path.lower(), path)
    near = [n for t in tried for n in difflib.get_close_matches(t.lower(), paths, 2)]
    last = {t.rpartition(".")[2].lower() for t in tried}
    near = [n for n in paths if n.rpartition(".")[2] in last] + near
    has = ", ".join(repr(paths[n]) for n in list(dict.fromkeys(near))[:2])
    names = " or ".join(repr(s) if isinstance(s, str) else _called(s) for s in field.hf)
    return f"{where}hf= tried {names}" + (f", and config.json has {has}" if has else "")


def _paths(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The keys of an object and those within, joined by dots, as `hf=` takes them."""
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}" + "." * (not key.endswith(":")))


def _file_of(source: Any) -> str:
    document = source.partition(":")[0] if isinstance(source, str) else ""
    return DOCUMENTS.get(document, "config.json")


def _called(source: Any) -> str:
    return f"the function {getattr(source, '__name__', source)}"


def steps(path: str) -> list[str]:
    """The keys on the way to a value: "vision_config.hidden_size", "preprocessor:size.height"."""
    document, colon, key = path.rpartition(":")
    return [document + colon, *key.split(".")] if colon else key.split(".")


def descend(tree: Any, path: str) -> Any:
    """The value of a key of nested objects, as `steps` goes; None if it is absent."""
    for part in steps(path):
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree


@functools.cache
def key_fields(cls: type[Config]) -> tuple[tuple[str, KeyField, type, bool], ...]:
    """Name, field, kind of value and whether None is allowed, in order of declaration."""
    check_tags(cls, KeyField, TensorField, "gguf(...) tags tensors and belongs in a Module")
    hints = type_hints(cls)
    return tuple(
        (name, field, *_kind(hints[name], cls, name))
        for name, field in declared(cls).items()
        if isinstance(field, KeyField)
    )


def _kind(hint: Any, cls: type, name: str) -> tuple[type, bool]:
    optional, members = union_members(hint)
    hint = members[0] if len(members) == 1 else hint
    kind = typing.get_origin(hint) or hint
    if kind not in _KINDS:
        raise ConfigError(
            f"{line_of(cls, name)}: {cls.__name__}.{name}: a hyperparameter is a bool, int, "
            f"float, str or list, or one of these and None, not {hint}"
        )
    return kind, optional
