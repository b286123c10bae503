"""Generation defaults: the options of requests that a file has, from generation_config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...names.found import ADVISED
from ..sampling import Sampler

_UNSUPPORTED = tuple(f"general.sampling.{n}" for n in ("sequence", "xtc_probability", "mirostat"))


def advised(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a file advises and that a request may have."""
    return {o: v for _, o, v in _given(metadata) if not _wrong(o, v)}


def not_followed(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about the rest of its advice."""
    for key, option, value in _given(metadata):
        if wrong := _wrong(option, value):
            yield f"{key} of the file is ignored: {wrong}"
    for key in _UNSUPPORTED:
        if metadata.get(key):
            yield f"{key} of the file is ignored: ggmodel has no such way to sample"


def _given(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Keys, options and values; llama.cpp keeps all tokens where top_k is below 1."""
    for key, option in ADVISED.items():
        value = metadata.get(key)
        if isinstance(value, np.generic):
            value = value.item()
        if option == "top_k" and isinstance(value, int):
            value = max(0, value)
        if value is not None:
            yield key, option, value


def _wrong(option: str, value: Any) -> str:
    """The reason why an option cannot have a value; "" if it can."""
    options: dict[str, Any] = {option: value}
    try:
        Sampler(**options)
    except ConfigError as error:
        return str(error)
    return ""
