"""Metadata as hyperparameters: keys with the architecture's prefix, checked types."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..errors import ConfigError

_GLOBAL = ("tokenizer.", "general.")
_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}


class KeyValues:
    """The metadata of a source, looked up as `<architecture>.<key>` unless the key is global."""

    def __init__(self, metadata: Mapping[str, Any], name: str = "metadata"):
        self.metadata = metadata
        self.name = name

    @property
    def architecture(self) -> str:
        """`general.architecture`.

        Raises:
            ConfigError: missing or no string.
        """
        value = self.get("general.architecture", str)
        if value is None:
            raise ConfigError(
                f"{self.name} has no metadata key 'general.architecture', so no model can be "
                "chosen; is this a vocabulary or an adapter?"
            )
        return value

    def full(self, key: str) -> str:
        """The key with its prefix, as in the file."""
        return key if key.startswith(_GLOBAL) else f"{self.architecture}.{key}"

    def get(self, key: str, kind: type) -> Any:
        """The value of a key as `kind`, or None if it is absent.

        An integer serves as a number, a whole number as an integer, and a scalar as a list.

        Raises:
            ConfigError: the value has another type; names key, expected and found type.
        """
        for name in (self.full(key), key):
            if name in self.metadata:
                return check_kind(name, self.metadata[name], kind, self.name)
        return None


def check_kind(key: str, value: Any, kind: type, where: str, what: str = "key") -> Any:
    """`value` as `kind`; see `KeyValues.get`. `what` the key is, for the message."""
    scalar = isinstance(value, (bool, int, float, str))
    if kind is list:
        return [value] if scalar else list(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        with suppress(OverflowError):  # JSON has numbers of any length
            return float(value)
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if scalar and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    found = type(value).__name__ if scalar else "a list"
    raise ConfigError(
        f"{where}: {what} {key!r} must be {_KINDS[kind]}, but holds {found} ({value!r:.40})"
    )
