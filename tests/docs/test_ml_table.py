"""docs/ml.md is what the code says, and lacks nothing of the interface."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmodel.ml import OPS, Backend, Context, Tensor

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "ml.md"
# Every name that the interface documents give a type, function, method, field or constant.
ITEMS = (Path(__file__).parent / "interface_items.txt").read_text().split()


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generate_ml.py"))


def rows() -> Iterator[list[str]]:
    """The cells of the rows that begin with an item."""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0] not in ("interface", "---"):
            yield cells


def test_the_table_is_what_the_code_says(generator: dict[str, Any]):
    assert TABLE.read_text(encoding="utf-8") == generator["document"](), (
        "write it again: python docs/generate_ml.py"
    )


def test_every_item_of_the_interface_is_in_the_table_once():
    assert sorted(name for name, *_ in rows()) == sorted(ITEMS)


def test_names_that_the_interface_has_dropped_are_marked():
    """The names that only the older document has."""
    older = {name for name, *_, note in rows() if "in older versions of the interface" in note}
    assert older == {
        "Allocated",
        "AllocationStatus",
        "BackendParams.MainGPU",
        "BackendParams.NumGPULayers",
        "BackendParams.TensorSplit",
        "CacheConfig.MaskBatchPadding",
        "Context.FromFloatSlice",
        "Context.FromIntSlice",
        "DeviceMemory.UUID",
        "Failed",
        "Memory",
        "Memory.Size",
        "Memory.Status",
        "Tensor.Set",
        "Unallocated",
    }


def test_every_op_says_its_shapes():
    unclear = [name for name, _, text, functions, _ in rows() if functions and "[" not in text]
    assert not unclear


def test_every_row_says_what_the_item_does():
    assert not [name for name, python, text, _, note in rows() if not (python and (text or note))]


def test_every_op_of_the_table_is_reached_by_a_method(generator: dict[str, Any]):
    items = [item for section in generator["SECTIONS"].values() for item in section]
    paths = {path for item in items for path in item.path.split()}
    things = [generator["find"](path)[0] for path in sorted(paths)]
    recorded = {op for thing in things for op in generator["recorded_ops"](thing)}
    named = {name for name, op in OPS.items() if not op.own}
    assert named == recorded, "an op that no name of the interface records is own=True in define()"
    methods = [thing for _, thing in inspect.getmembers(Tensor, inspect.isfunction)]
    assert set(OPS) - recorded <= {op for m in methods for op in generator["recorded_ops"](m)}


@pytest.mark.parametrize("cls", [Tensor, Context, Backend])
def test_every_method_has_a_docstring(cls: type):
    public = [(n, m) for n, m in inspect.getmembers(cls) if not n.startswith("_")]
    assert not [n for n, m in public if callable(m) and not inspect.getdoc(m)]
