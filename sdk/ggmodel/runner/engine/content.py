"""Items of prompts as keys: equal content is encoded once, however it is given."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import count
from pathlib import PurePath
from typing import Any

import numpy as np

_PLAIN = (str, bytes, int, float, complex, type(None), np.generic, Enum, PurePath)
_serial = count()


def content_key(kind: str, item: object) -> bytes:
    """Equal for items of one kind with equal content.

    Args:
        item: what a modality has opened, or `Prepared`: pictures, arrays, plain values, and
            dataclasses, lists and dicts of these. Any other object is equal to itself only.
    """
    digest = hashlib.blake2b(kind.encode(), digest_size=32)
    _add(digest, item)
    return digest.digest()


def _add(digest: Any, value: Any) -> None:
    pictures: Any = sys.modules.get("PIL.Image")
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"array {value.shape} {value.dtype.str} ".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif pictures is not None and isinstance(value, pictures.Image):
        from ...image import content_hash

        picture: Any = value
        digest.update(f"picture {content_hash(picture)} ".encode())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(f"{type(value).__qualname__} ".encode())
        _add(digest, {f.name: getattr(value, f.name) for f in fields(value)})
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for name in sorted(value, key=repr):
            _add(digest, name)
            _add(digest, value[name])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)} ".encode())
        for one in value:
            _add(digest, one)
    elif isinstance(value, _PLAIN):
        text = repr(value).encode(errors="surrogatepass")
        digest.update(b"value %d " % len(text) + text)
    else:  # its repr may be that of another object, at the same address before
        digest.update(b"object %d " % next(_serial))
