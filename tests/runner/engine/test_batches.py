"""The chunks of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmodel import Input, MultimodalEmbedding
from ggmodel.runner.engine.inputs import InputTable
from ggmodel.runner.engine.sequences import Sequence, Sequences
from ggmodel.runner.engine.step import BatchPlanner, Chunk


def sequences(n: int) -> list[Sequence]:
    nothing: Any = None
    return Sequences(nothing, nothing, n).all


def batches(size: int = 4) -> BatchPlanner:
    return BatchPlanner(InputTable(whole=False, together=False), size, size, 0)


def test_drafts_go_behind_any_token_even_the_first_of_the_vocabulary():
    one, other = sequences(2)
    drafts = {one: [7, 8]}
    assert batches().plan([(one, 5, [0]), (other, 9, [3])], drafts=drafts) == [
        Chunk(one, 5, [0, 7, 8], True, 2),
        Chunk(other, 9, [3], True),
    ]


def test_single_tokens_come_before_prompts_which_take_turns():
    slots = sequences(3)
    pending = [(slots[0], 0, [1, 2, 3]), (slots[1], 0, [4, 5, 6]), (slots[2], 9, [7])]
    first = [Chunk(slots[2], 9, [7], True), Chunk(slots[0], 0, [1, 2, 3], True)]
    assert batches().plan(pending) == first
    second = [Chunk(slots[2], 9, [7], True), Chunk(slots[1], 0, [4, 5, 6], True)]
    assert batches().plan(pending, first=1) == second
    cut = [Chunk(slots[2], 9, [7], True), Chunk(slots[0], 0, [1, 2], False)]
    assert batches(3).plan(pending) == cut


def test_the_last_item_ends_a_part_where_only_such_ends_can_be_resumed():
    table = InputTable(whole=False, together=False)
    one, other = (MultimodalEmbedding(np.full((2, 4), n)) for n in (1.0, 2.0))
    row = Input(0)
    items = [Input(3), Input(0, one), row, Input(4), Input(0, other), row, Input(5), Input(6)]
    numbers = list(table.number(items))
    slot, text = sequences(2)
    for size, wanted in ((10, [6, 8]), (6, [6, 8]), (5, [5, 6, 8]), (3, [3, 6, 8])):
        planner, done = BatchPlanner(table, size, size, 0, after_items=True), [0]
        while done[-1] < len(numbers):
            (chunk,) = planner.plan([(slot, done[-1], numbers[done[-1] :])])
            done.append(done[-1] + len(chunk.numbers))
            assert chunk.last == (done[-1] == len(numbers))
        assert done[1:] == wanted
    planner = BatchPlanner(table, 20, 20, 0, after_items=True)
    both = planner.plan([(slot, 0, numbers), (text, 0, [1, 2, 3])])
    assert [len(chunk.numbers) for chunk in both] == [6, 3]  # another's text fills the rest
    whole = BatchPlanner(table, 20, 20, 0).plan([(slot, 0, numbers)])
    assert [len(chunk.numbers) for chunk in whole] == [8]
