"""Nodes of a recorded graph: their modules and layers, bytes moved, operations computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from ..ml.node import Node, Weight

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


VIEWS = frozenset({"reshape", "view", "permute"})
"""Ops that compute nothing: they describe the same memory in another way."""


class Traffic(NamedTuple):
    """Bytes and operations of one op.

    Attributes:
        weights: bytes of the model's weights that are read.
        activations: bytes of other operands that are read, and of the result.
        flops: multiplications and additions of products, convolutions and attention; 0 for other
            ops, whose time goes into memory.
    """

    weights: int
    activations: int
    flops: int


def traffic(node: Node) -> Traffic:
    """The traffic of an op. Repeated reads count once, a look-up counts the rows it reads, and a
    mixture as many experts as can be chosen."""
    assert node.op is not None
    op = node.op.name
    if op in VIEWS or not node.n_elements:
        return Traffic(0, 0, 0)
    weights, activations = 0, _written(op, node)
    for i, x in enumerate(node.sources):
        if x is None or (op in ("copy", "set_rows") and i == _TARGET[op]):
            continue
        if isinstance(x.owner.storage, Weight):
            weights += _read(op, node, i, x)
        else:
            activations += _read(op, node, i, x)
    return Traffic(weights, activations, _flops(op, node))


_TARGET = {"copy": 1, "set_rows": 0}  # the operand that is written to, and not read


def _written(op: str, node: Node) -> int:
    second = node.sources[1] if op in ("set_rows", "set_inplace") else None
    if second is None:
        return node.nbytes
    rows = node.dtype.row_size(node.ne[0]) * prod(second.ne[1:])
    return rows if op == "set_rows" else second.nbytes


def _read(op: str, node: Node, i: int, x: Node) -> int:
    if op == "rows" and i == 0:
        return x.dtype.row_size(x.ne[0]) * prod(node.ne[1:])
    if op == "mulmat_id" and i == 0:
        ids = node.sources[2]
        assert ids is not None
        return x.nbytes // x.ne[2] * min(x.ne[2], ids.n_elements)
    if op == "set_inplace" and i == 0:
        return 0
    return x.nbytes


def _flops(op: str, node: Node) -> int:
    first, second = (*node.sources, None, None)[:2]
    if op in ("mulmat", "mulmat_id") and first is not None:
        return 2 * first.ne[0] * node.n_elements
    if op == "conv_2d" and first is not None:
        return 2 * prod(first.ne[:3]) * node.n_elements
    if op in ("conv_1d", "depthwise_conv_2d") and first is not None:
        return 2 * prod(first.ne[:2]) * node.n_elements
    if op == "depthwise_conv_1d" and first is not None:
        return 2 * first.ne[0] * node.n_elements
    if op.startswith("conv_transpose") and first is not None and second is not None:
        return 2 * prod(first.ne) // first.ne[3 if op[-2] == "2" else 2] * second.n_elements
    if op == "flash_attention" and first is not None and second is not None:
        width, rows, heads, sequences = first.ne
        parts = node.attrs.get("parts", ())
        looks = sum(p.rows * p.cells for p in parts) if parts else second.ne[1] * rows
        return 2 * (width + node.ne[0]) * looks * heads * sequences
    return 0
