"""The layer that a weight is placed and counted with, by whole segments of its dotted name."""

from __future__ import annotations

INPUT = -1  # the input: system memory, immovable

_INPUTS = frozenset({"token_embd", "position_embd", "token_types", "token_embd_norm"})


def layer_of(name: str, block_count: int) -> int:
    """The layer of a weight: its block's number, `INPUT`, or `block_count`, the output layer.

    Only a leading `blk.N` is a layer number; other integers in a name are not.
    """
    head, *rest = name.split(".")
    if head in _INPUTS:
        return INPUT
    if head == "blk" and rest and rest[0].isdecimal():
        return min(int(rest[0][:20]), block_count)  # Python refuses thousands of digits
    return block_count
