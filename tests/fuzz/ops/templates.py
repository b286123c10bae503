"""Valid calls of each op, taken from the op's test cases.

Every op of the table has a case (a test asks for one), so the fuzzer knows
right operands and attributes of every op without a generator of its own; all else are variations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggmodel.errors import Error
from ggmodel.ml import OPS, DType, FlashAttention
from tests.ml.cases import CASES
from tests.ml.harness import backend_of, tensor


@dataclass(frozen=True)
class Template:
    """Operands (shape and dtype; None where absent) and attributes of one call of an op."""

    op: str
    operands: tuple[tuple[tuple[int, ...], DType] | None, ...]
    attrs: dict[str, Any]


def harvest() -> dict[str, list[Template]]:
    """Templates of every op of the table.

    Raises:
        LookupError: an op is in no case.
    """
    found: dict[str, dict[str, Template]] = {op: {} for op in OPS}
    with backend_of() as plain, backend_of(flash=FlashAttention.ON) as flash:
        for case in CASES:
            chosen = flash if case.op == "flash_attention" else plain
            with chosen.new_context() as ctx, ctx.trace():
                inputs = [tensor(ctx, v) for v in case.values]
                try:
                    ctx.forward(case.build(*inputs) if inputs else case.build(ctx))
                except Error:
                    continue  # its own test says so
                for node in ctx.graph.schedule:
                    assert node.op is not None
                    operands = tuple(None if x is None else (x.ne, x.dtype) for x in node.sources)
                    if all(x is None or 0 < _elements(x[0]) < 1 << 14 for x in operands):
                        template = Template(node.op.name, operands, node.attrs)
                        found[template.op].setdefault(repr(template), template)
    bare = [op for op, templates in found.items() if not templates]
    if bare:
        raise LookupError(f"no case of tests/ml/cases.py shows how to call {', '.join(bare)}")
    return {op: list(templates.values()) for op, templates in found.items()}


def _elements(ne: tuple[int, ...]) -> int:
    a, b, c, d = ne
    return a * b * c * d
