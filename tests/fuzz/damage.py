"""Damage to bytes of any format."""

from __future__ import annotations

from random import Random
from typing import Literal


def damaged(random: Random, raw: bytes, times: int = 3) -> bytes:
    """The bytes, changed in one to `times` ways."""
    for _ in range(random.randint(1, times)):
        raw = random.choice(_WAYS)(random, raw)
    return raw


def flip(random: Random, raw: bytes) -> bytes:
    """Some bytes become others."""
    if not raw:
        return raw
    changed = bytearray(raw)
    for _ in range(random.choice([1, 1, 2, 8])):
        at = random.randrange(len(raw))
        changed[at] ^= 1 << random.randrange(8) if random.random() < 0.5 else random.randrange(256)
    return bytes(changed)


def truncate(random: Random, raw: bytes) -> bytes:
    """The end is gone."""
    return raw[: random.randrange(len(raw) + 1)]


def splice(random: Random, raw: bytes) -> bytes:
    """A piece goes, comes twice, or moves."""
    a, b = sorted(random.randrange(len(raw) + 1) for _ in range(2))
    b = min(b, a + random.choice([1, 4, 8, 64, 4096]))
    at = random.randrange(len(raw) + 1)
    kind = random.randrange(3)
    if kind == 0:
        return raw[:a] + raw[b:]
    if kind == 1:
        return raw[:at] + raw[a:b] + raw[at:]
    return raw[:at] + random.randbytes(b - a) + raw[at + b - a :]


def plant(random: Random, raw: bytes) -> bytes:
    """An integer of 2, 4 or 8 bytes that is nearly right, or far off."""
    size = random.choice([2, 4, 4, 8, 8])
    if len(raw) < size:
        return raw
    at = random.randrange(len(raw) - size + 1)
    order: Literal["little", "big"] = "little" if random.random() < 0.7 else "big"
    old, top = int.from_bytes(raw[at : at + size], order), 1 << 8 * size
    far = [0, 1, 2, top // 2 - 1, top // 2, top - 1, top // 16, len(raw), len(raw) - at]
    new = random.choice(far) if random.random() < 0.5 else old + random.randint(-33, 33)
    return raw[:at] + (new % top).to_bytes(size, order) + raw[at + size :]


_WAYS = (flip, flip, truncate, splice, plant, plant)
