"""Options of requests that a file advises, as its makers gave them in generation_config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ConfigError
from ...names.found import ADVISED
from ..sampling import Sampler

_UNSUPPORTED = tuple(f"general.sampling.{n}" for n in ("sequence", "xtc_probability", "mirostat"))


def advised(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a file advises and that a request may have."""
    given = {option: metadata.get(key) for key, option in ADVISED.items()}
    return {o: v for o, v in given.items() if v is not None and not _wrong(o, v)}


def not_followed(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about the rest of its advice."""
    for key, option in ADVISED.items():
        value = metadata.get(key)
        if value is not None and (wrong := _wrong(option, value)):
            yield f"{key} of the file is ignored: {wrong}"
    for key in _UNSUPPORTED:
        if metadata.get(key):
            yield f"{key} of the file is ignored: ggmodel has no such way to sample"


def _wrong(option: str, value: Any) -> str:
    """The reason why an option cannot have a value; "" if it can."""
    options: dict[str, Any] = {option: value}
    try:
        Sampler(**options)
    except ConfigError as error:
        return str(error)
    return ""
