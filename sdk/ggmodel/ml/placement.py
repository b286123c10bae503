"""Which layer a weight is placed and counted with, by whole dot-separated name segments."""

from __future__ import annotations

INPUT = -1  # the input: system memory, immovable

_INPUTS = frozenset({"token_embd", "position_embd", "token_types", "token_embd_norm"})


def layer_of(name: str, block_count: int) -> int:
    """The layer of a weight: its block's number, `INPUT`, or `block_count`, the output layer.

    Only a leading `blk.N` makes a layer number: an integer elsewhere in a name is none.
    """
    head, *rest = name.split(".")
    if head in _INPUTS:
        return INPUT
    if head == "blk" and rest and rest[0].isdecimal():
        return min(int(rest[0]), block_count)
    return block_count
