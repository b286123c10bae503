"""Requests beside the same request run alone, and slots after all requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.sequences import common_prefix

# Kernels round differently at other batch sizes: where the two best tokens are this close, the
# choice between them is not the model's.
TIE = 1e-3


def slots_are_free(model: LoadedModel) -> None:
    """No request is left, and each slot knows how much the cache holds of it."""
    model.engine.call(lambda: None)  # after what was posted before
    slots, cache = model.engine.sequences.all, model.engine.cache
    assert not model.engine.scheduler.waiting
    assert all(slot.free and not len(slot.pending) for slot in slots)
    assert [cache.length(slot.number) for slot in slots] == [len(slot.tokens) for slot in slots]


def nothing_is_in_use(model: LoadedModel) -> None:
    """`slots_are_free`, and the cache, which sees all positions, has cells for them alone."""
    slots_are_free(model)
    cache: Any = model.engine.cache
    for slot in model.engine.sequences.all:
        held = np.sort(cache.table.position[cache.table.member[slot.number]])
        np.testing.assert_array_equal(held, np.arange(len(slot.tokens)))


def same_or_tied(model: LoadedModel, prompt: list[int], got: list[int], want: list[int]) -> bool:
    """Whether the tokens are equal; False where they part at a tie."""
    if got == want:
        return True
    n = common_prefix(got, want)
    assert n < min(len(got), len(want))
    best = np.sort(model.logits([*prompt, *want[:n]])[-1])[-2:]
    assert best[1] - best[0] < TIE, f"token {n}: {got[n]}, not {want[n]}"
    return False
