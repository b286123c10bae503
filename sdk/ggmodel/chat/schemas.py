"""Python types as JSON schemas, and values of these types from JSON."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from inspect import Parameter
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    None: "null",
}
_LISTS = (list, tuple, set, frozenset, Sequence, MutableSequence, Iterable)
_DICTS = (dict, Mapping, MutableMapping)
_UNIONS = (Union, types.UnionType)
_ENVELOPES = ("json_schema", "json_object", "text")


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type: texts, numbers, booleans, None, lists, tuples, sets, dicts,
    `Literal`, unions, enumerations, dataclasses, TypedDicts, and models of pydantic. `Annotated`
    with a text describes a value. A dict is a JSON schema already.

    Raises:
        ConfigError: it is no such type, or it refers to itself.
    """
    builder = _Builder()
    schema = builder.schema(kind)
    return {**schema, "$defs": builder.definitions} if builder.definitions else schema


def response_type(response_format: Any) -> Any:
    """The type that a `response_format` asks for, or its JSON schema; None for any text. OpenAI's
    {"type": "json_schema", "json_schema": {"schema": …}} and {"type": "json_object"} count, and so
    does llama-cpp-python's {"type": "json_object", "schema": …}."""
    if not isinstance(response_format, Mapping) or response_format.get("type") not in _ENVELOPES:
        return response_format
    if response_format["type"] == "text":
        return None
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    return {"type": "object"} if schema is None else schema


class _Builder:
    """Makes one schema.

    Attributes:
        definitions: those that pydantic's references lead to.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._open: list[Any] = []

    def schema(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, Mapping):
            return dict(kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if kind is Any or kind is Parameter.empty:
            return {}
        if isinstance(kind, (type, types.NoneType)) and kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if origin is Annotated:
            return self._annotated(arguments)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in _UNIONS:
            return {"anyOf": [self.schema(one) for one in arguments]}
        if _marker(origin):
            return self.schema(arguments[0])
        if (origin or kind) in _LISTS:
            return self._array(origin or kind, arguments)
        if (origin or kind) in _DICTS:
            values = self.schema(arguments[1]) if len(arguments) == 2 else {}
            return {"type": "object", **({"additionalProperties": values} if values else {})}
        if isinstance(kind, type):
            return self._class(kind)
        raise _unsupported(kind)

    def _annotated(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        texts = (one if isinstance(one, str) else _text(one) for one in arguments[1:])
        description = next(filter(None, texts), None)
        schema = self.schema(arguments[0])
        return schema if description is None else {**schema, "description": description}

    def _array(self, origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            items, count = [self.schema(one) for one in arguments], len(arguments)
            bounds = {"minItems": count, "maxItems": count}
            return {"type": "array", "prefixItems": items, "items": False, **bounds}
        return {"type": "array", **({"items": self.schema(arguments[0])} if arguments else {})}

    def _class(self, kind: type) -> dict[str, Any]:
        if kind in self._open:
            raise ConfigError(
                f"{kind.__name__} refers to itself; describe it by a JSON schema with $defs"
            )
        if (described := getattr(kind, "model_json_schema", None)) is not None:
            schema = dict(described())
            self.definitions |= schema.pop("$defs", {})
            return schema
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if not (is_dataclass(kind) or _is_typed_dict(kind)):
            raise _unsupported(kind)
        self._open.append(kind)
        properties = {name: self.schema(one) for name, one in hints_of(kind).items()}
        self._open.pop()
        return {"type": "object", "properties": properties, "required": _required(kind)}


def value_of(kind: Any, value: Any, name: str = "the answer") -> Any:
    """A value of a type, made of JSON that suits `schema_of` it.

    Args:
        name: of the value, for messages.

    Raises:
        ValueError: the JSON does not suit the type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, Mapping) or kind is Any or kind is Parameter.empty:
        return value
    if origin is Annotated or _marker(origin):
        return value_of(arguments[0], value, name)
    if isinstance(kind, (type, types.NoneType)) and kind in _PLAIN:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not (type(None) if kind is None else kind):
            raise ValueError(f"{name} is {value!r:.80}; it must be of the type {_PLAIN[kind]}")
        return value
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{name} is {value!r:.80}; it must be one of {list(arguments)}")
        return value
    if origin in _UNIONS:
        return _of_union(arguments, value, name)
    if (origin or kind) in _LISTS:
        return _of_list(origin or kind, arguments, value, name)
    if (origin or kind) in _DICTS:
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {value!r:.80}; it must be an object")
        each = arguments[1] if len(arguments) == 2 else Any
        return {key: value_of(each, one, f"{name}[{key!r}]") for key, one in value.items()}
    return _of_class(kind, value, name)


def _of_union(arguments: tuple[Any, ...], value: Any, name: str) -> Any:
    error = ValueError(f"{name} suits none of the types {arguments}")
    for one in arguments:
        try:
            return value_of(one, value, name)
        except ValueError as failed:
            error = failed
    raise error


def _of_list(origin: Any, arguments: tuple[Any, ...], value: Any, name: str) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {value!r:.80}; it must be a list")
    kinds = [arguments[0] if arguments else Any] * len(value)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        kinds = list(arguments)
        if len(kinds) != len(value):
            raise ValueError(f"{name} has {len(value)} elements; it must have {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    made = [value_of(one, element, f"{name}[{i}]") for i, (one, element) in pairs]
    return origin(made) if origin in (tuple, set, frozenset) else made


def _of_class(kind: Any, value: Any, name: str) -> Any:
    if (validate := getattr(kind, "model_validate", None)) is not None:
        return validate(value)  # pydantic's error is a ValueError
    if issubclass(kind, Enum):
        return kind(value)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r:.80}; it must be an object")
    hints = hints_of(kind)
    for key in value:
        if key not in hints:
            raise ValueError(f"{name} has no {key!r}; it has {', '.join(hints)}")
    for key in _required(kind):
        if key not in value:
            raise ValueError(f"{name} lacks {key!r}")
    made = {key: value_of(hints[key], one, f"{name}.{key}") for key, one in value.items()}
    return kind(**made)


def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a function's parameters, or of the fields of a class.

    Raises:
        ConfigError: a name in an annotation is unknown.
    """
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"the annotations of {getattr(kind, '__name__', kind)} cannot be read: {error}"
        ) from None
    if is_dataclass(kind):
        return {field.name: hints[field.name] for field in fields(kind) if field.init}
    return hints


def _required(kind: Any) -> list[str]:
    if _is_typed_dict(kind):
        # Its own set of keys knows no marker in an annotation that is a text.
        markers = {name: _marker(get_origin(hint)) for name, hint in hints_of(kind).items()}
        needed = kind.__required_keys__
        return [
            name
            for name, marker in markers.items()
            if marker != "NotRequired" and (name in needed or marker == "Required")
        ]
    return [
        field.name
        for field in fields(kind)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    ]


def _is_typed_dict(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__required_keys__")


def _marker(origin: Any) -> str:
    """ "Required" or "NotRequired", of whichever module; "" for another type."""
    name = getattr(origin, "_name", None)
    return name if name in ("Required", "NotRequired", "ReadOnly") else ""


def _text(annotation: Any) -> str | None:
    """The description in an annotation such as pydantic's Field."""
    text = getattr(annotation, "description", None)
    return text if isinstance(text, str) else None


def _unsupported(kind: Any) -> ConfigError:
    return ConfigError(
        f"{kind!r:.80} has no JSON schema here; use texts, numbers, lists, dicts, Literal, enums, "
        "dataclasses, TypedDicts or pydantic models, or give a JSON schema as a dict"
    )
