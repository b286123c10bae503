"""The modules that recorded ops belong to, and the numbers of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ..ml.node import Node

_NUMBER = re.compile(r"\.(?=\d)")


def module_of(node: Node) -> str:
    """The path of the module that an op was recorded in, such as "blk.3.attn"; "" for the model
    itself. A module's result has the name of the module, all others their op's after it."""
    assert node.op is not None
    if node.named:
        return node.name
    return node.name.removesuffix(node.op.name).removesuffix(".")


def parts_of(path: str) -> tuple[str, ...]:
    """The modules along a path, items of lists with their number: "text.blk.3.attn" is "text",
    "blk.3", "attn"."""
    return tuple(p.replace("\0", ".") for p in _NUMBER.sub("\0", path).split(".")) if path else ()


def number_of(part: str) -> tuple[str, int] | None:
    """The list and the number of an item: "blk.3" is "blk" and 3; None for what is no item."""
    name, dot, number = part.rpartition(".")
    return (name, int(number)) if dot else None


def layer_of(path: str) -> str:
    """The layer of a module, "text.blk.3"; outside of layers the module itself."""
    parts = parts_of(path)
    for i, part in enumerate(parts):
        if number_of(part):
            return ".".join(parts[: i + 1])
    return path


def folded(path: str) -> str:
    """The path with all layers as one: "blk.*.attn"."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: "0-3, 6, 8-9"."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[n for _, n in run] for _, run in runs]
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ends)
