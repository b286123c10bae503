"""The verdict on a module: whether its error is its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ml.node import Node
from ..comparison import factor_of
from ..observe import Call, Recording
from .report import GROWTH, ModuleDiff, within

_CLEARLY = 100  # an error so many times smaller is another one

Readers = dict[ModuleDiff, list[tuple[ModuleDiff, bool]]]
"""For each module the next ones that read its result, and whether something is added on the way, in
which its error may drown."""


def find_readers(
    recording: Recording, made: Sequence[tuple[ModuleDiff, Call]], readers: Readers
) -> None:
    """Adds the readers of all modules in a graph."""
    after: dict[int, list[Node]] = {}
    for node in recording.graph.schedule:
        for source in node.sources:
            if source is not None:
                after.setdefault(source.uid, []).append(node)
    reads: dict[int, list[ModuleDiff]] = {}
    for row, call in made:
        if call.input is not None:
            reads.setdefault(call.input.uid, []).append(row)
    for row, call in made:
        if call.result is None:
            continue
        found = readers.setdefault(row, [])
        stack, seen = [(call.result, False)], set[int]()
        while stack:
            node, mixed = stack.pop()
            if node.uid in seen:
                continue
            seen.add(node.uid)
            if node.uid in reads:
                found += [(reader, mixed) for reader in reads[node.uid]]
                continue
            for user in after.get(node.uid, ()):
                stack.append((user, mixed or (user.op is not None and user.op.name == "add")))


def judge(
    row: ModuleDiff, before: Sequence[ModuleDiff], readers: Sequence[tuple[ModuleDiff, bool]]
) -> None:
    """Sets the verdict on a module with a result.

    Args:
        before: the modules computed before it, judged.
        readers: of its result, see `Readers`.
    """
    if row.result is None or row.verdict == "unused":
        return
    found = row.result.nmse
    if found <= row.bound:
        row.verdict = "equal"
        return
    inside = any(r.wrong and within(r.path, row.path) for r in before)
    if row.reads and not any(r.wrong for r in before):
        row.verdict = "diverges"
        row.note = (
            f"it reads what {row.reads} reads in the reference: are the two modules' names in the "
            "checkpoint (hf=) swapped?"
        )
        return
    inherited = math.inf if row.input is None and any(r.wrong for r in before) else 0.0
    inherited = row.input.nmse if row.input is not None else inherited
    allowed = row.bound + GROWTH * inherited
    if inside or found <= allowed:
        row.verdict = "follows"
        return
    # A reader's other inputs may carry errors of their own, such as the rows of an image.
    fine = (r.result.nmse for r in before if r.result and r.verdict in ("equal", "follows"))
    small = min(found / _CLEARLY, GROWTH * max(fine, default=0.0))

    def agrees(reader: ModuleDiff, mixed: bool) -> bool:
        limit = allowed if mixed else max(allowed, small)
        return reader.input is not None and reader.input.nmse <= limit

    if readers and all(agrees(*reader) for reader in readers):
        row.verdict = "elsewhere"
        row.note = row.note or "its readers agree with the reference"
        return
    row.verdict = "diverges"
    if (factor := factor_of(row.result)) is not None:
        row.note = f"the reference's is {factor:.6g} times that"
        for reader, _ in readers[:1]:
            if (left := factor_of(reader.input)) is not None:
                row.note += f"; where {reader.path or 'the model'} reads it, {left:.6g} times"
