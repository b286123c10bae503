"""Changes to JSON values that keep them JSON."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from tests.fuzz.damage import damaged

_EXTREMES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 10**400,
    -(2**63), 0.0, 0.5, -0.5, 1e-300, 1e308, -1e308, float("nan"), float("inf"), "", " ", "x", "0",
    "None", "\0", "é\u202e\U0001f600", "../../etc/passwd", "{{ 1 }}", "a" * 5000, [], {}, [[]],
    [None],
]  # fmt: skip

_PIECES = ["x", "", "\0", "é", "\ud800", ".", "*", "(", "\\", "{{", "%}", " ", "a" * 300]


def mutated(random: Random, value: Any, times: int = 3) -> Any:
    """A copy with one to `times` nodes changed, added, lost or moved."""
    value = {"root": copy.deepcopy(value)}
    for _ in range(random.choice([1, 1, *range(1, times + 1)])):
        holder, key = random.choice(places(value))
        if key == "root" and random.random() < 0.9:
            continue
        if holder is not value and random.random() < 0.2:
            _move(random, holder, key)
        else:
            others = places(value)
            holder[key] = _changed(random, holder[key], others)
    return value["root"]


def written(random: Random, value: Any) -> bytes:
    """The value as text, now and then damaged, or nested a hundred thousand times."""
    text = json.dumps(value).encode()
    kind = random.random()
    if kind < 0.1:
        return damaged(random, text)
    if kind < 0.12:
        depth = random.choice([500, 2_000, 100_000])
        return b'{"a":' * depth + text if random.random() < 0.5 else b"[" * depth + b"]" * depth
    if kind < 0.14:
        return random.choice(
            [b"", b"\xff\xfe", b"null", b"[]", text + text, text.decode().encode("utf-16")]
        )
    return text


def places(value: Any) -> list[tuple[Any, Any]]:
    """All places of a value, by holder and key; of long lists only the ends."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        holder = todo.pop()
        if isinstance(holder, dict):
            keys: list[Any] = list(holder)[:200]
        elif isinstance(holder, list):
            keys = list(range(min(len(holder), 20))) + list(
                range(max(20, len(holder) - 5), len(holder))
            )
        else:
            continue
        found += [(holder, key) for key in keys]
        todo += [holder[key] for key in keys]
    return found


def _changed(random: Random, old: Any, others: list[tuple[Any, Any]]) -> Any:
    kind = random.random()
    if kind < 0.15:
        holder, key = random.choice(others)
        return copy.deepcopy(holder[key])
    if kind < 0.2:
        return random.choice([[old], {"x": old}, [old, old], str(old)[:2000]])
    if isinstance(old, bool) or old is None:
        return copy.deepcopy(random.choice([not old, *_EXTREMES]))
    if isinstance(old, int) and kind < 0.7:
        return random.choice([old + 1, old - 1, old * 2, old // 2, old * 1000, -old])
    if isinstance(old, float) and kind < 0.7:
        return random.choice(
            [old * 2, -old, old * 1e6, old / 1e6, int(old) if abs(old) < 1e9 else 0]
        )
    if isinstance(old, str) and kind < 0.7:
        return _text(random, old)
    if isinstance(old, list) and old and kind < 0.7:
        many = random.choice([2, 50])
        return random.choice([old[:-1], old[1:], old[::-1], old * many, [*old, old[0]]])
    return copy.deepcopy(random.choice(_EXTREMES))  # later changes go into it


def _text(random: Random, old: str) -> str:
    at = random.randrange(len(old) + 1)
    extra = random.choice(
        ["x", "", "\0", "é", "\ud800", ".", "*", "(", "\\", "{{", "%}", " ", "a" * 300]
    )
    return random.choice(
        [old[:at], old[at:], old[:at] + extra + old[at:], old * 3, old.upper(), extra]
    )


def _move(random: Random, holder: Any, key: Any) -> None:
    """The item goes, gets another key, or comes twice."""
    kind = random.randrange(3)
    item = holder[key]
    if kind == 0:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(random.randrange(len(holder) + 1), item)
    elif kind == 1:
        del holder[key]
        holder[_text(random, key)] = item
    else:
        holder[random.choice(list(holder))] = item
