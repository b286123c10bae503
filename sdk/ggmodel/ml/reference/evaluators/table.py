"""The table of evaluators.

An evaluator takes the elements of the result and of the operands (None for an absent one) and the
op's attributes, and writes the result. Arrays have all four axes of the reversed shape: a tensor
[k, m] is an array [1, 1, m, k].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..elements import Elements

Evaluator = Callable[[Elements, tuple[Elements | None, ...], dict[str, Any]], None]
EVALUATORS: dict[str, Evaluator] = {}

# Ops that move elements of any format without decoding them.
BYTEWISE = frozenset({"contiguous", "duplicate", "reshape", "view", "permute", "repeat", "concat"})


def evaluates(name: str) -> Callable[[Evaluator], Evaluator]:
    """Enters the decorated evaluator for the op `name`."""

    def enter(evaluator: Evaluator) -> Evaluator:
        EVALUATORS[name] = evaluator
        return evaluator

    return enter


def computes(name: str) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Enters a function of the operands' values, with the attributes as keywords; its result is
    rounded to the op's dtype."""

    def enter(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def evaluate(out: Elements, x: tuple[Elements | None, ...], attrs: dict[str, Any]) -> None:
            out.write(function(*(None if e is None else e.read() for e in x), **attrs))

        EVALUATORS[name] = evaluate
        return function

    return enter


def tiled(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x repeated along every axis to fill the shape: ggml's broadcasting."""
    return np.tile(x, [n // m for n, m in zip(shape, x.shape, strict=True)])


def in_range(ids: np.ndarray, bound: int) -> np.ndarray:
    """The indices.

    Raises:
        IndexError: one is not below `bound`, or negative, which numpy would count from the end.
    """
    if ids.size and not (ids.min() >= 0 and ids.max() < bound):
        raise IndexError(f"an index is {ids.min()} or {ids.max()}, not 0 to {bound - 1}")
    return ids
