"""Importance matrices: their files, and those that llama-imatrix writes.

`*.imatrix.*` are of llama-imatrix, over `stories.txt`:

    llama-imatrix -m examples/assets/stories.gguf -f tests/convert/stories.txt -c 64 -b 64 \\
        --process-output -o tests/convert/stories.imatrix.gguf [--output-format dat]
    llama-imatrix -m tests/golden/llama4/converted/text.gguf -f tests/convert/stories.txt \\
        -c 32 -b 32 -o tests/convert/experts.imatrix.gguf
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.imatrix import Importance, ImportanceMatrix
from ggmodel.convert.quantize import quantize
from ggmodel.convert.write import info, write_gguf
from ggmodel.errors import (
    ConfigError,
    FormatError,
    PromptError,
    TensorError,
    Unsupported,
    WriteError,
)
from ggmodel.gguf_file import DType, MemorySource
from ggmodel.workbench.text_statistics import importance

HERE = Path(__file__).parent
STORIES = HERE.parents[1] / "examples" / "assets" / "stories.gguf"
EXPERTS = HERE.parent / "golden" / "llama4" / "converted" / "text.gguf"
TEXT = HERE / "stories.txt"


@pytest.fixture(scope="module")
def recorded() -> ImportanceMatrix:
    return ImportanceMatrix.read(HERE / "stories.imatrix.gguf")


def computed(file: Path = STORIES, size: int = 64, **options: Any) -> ImportanceMatrix:
    with ggmodel.load(file, context_length=size, batch_size=size) as model:
        (*_, (share, found)) = importance(model, TEXT.read_text("utf-8"), **options)
    assert share == 1
    return found


def small(entries: dict[str, Importance] | None = None) -> ImportanceMatrix:
    one = Importance(np.array([[2, 4, 0]], np.float32), np.array([2]))
    two = Importance(np.array([[6, 3], [1, 1]], np.float32), np.array([3, 0]))
    return ImportanceMatrix(entries or {"a": one, "b": two}, "x", ["t"], 5, 64)


def compare(found: ImportanceMatrix, want: ImportanceMatrix) -> None:
    assert list(found.entries) == list(want.entries)
    assert (found.chunks, found.chunk_size) == (want.chunks, want.chunk_size)
    for name, entry in found.entries.items():
        other = want.entries[name]
        assert entry.counts.tolist() == other.counts.tolist()
        error = np.square(entry.sums - other.sums).sum() / np.square(other.sums).sum()
        print(name, error)
        # Caches of F16, and other orders of sums.
        assert error < 1e-5, name


def test_it_is_that_of_llama_imatrix(recorded: ImportanceMatrix):
    found = computed(output=True, dataset="tests/convert/stories.txt")
    compare(found, recorded)
    assert found.datasets == recorded.datasets


def test_experts_have_sums_of_their_own():
    want = ImportanceMatrix.read(HERE / "experts.imatrix.gguf")
    assert any(len(entry.counts) > 1 for entry in want.entries.values())
    compare(computed(EXPERTS, 32), want)


def test_the_output_counts_only_if_asked(recorded: ImportanceMatrix):
    found = computed(chunks=1)
    assert found.chunks == 1
    assert set(recorded.entries) - set(found.entries) <= {"output.weight"}


def test_the_older_format_says_the_same(recorded: ImportanceMatrix):
    old = ImportanceMatrix.read(HERE / "stories.imatrix.dat")
    assert list(old.entries) == list(recorded.entries)
    assert (old.datasets, old.chunks) == (recorded.datasets, recorded.chunks)
    for name, entry in old.entries.items():
        np.testing.assert_allclose(entry.means(), recorded.entries[name].means(), rtol=1e-6)


def test_a_file_comes_back(tmp_path: Path):
    small().write(tmp_path / "m.gguf")
    found = ImportanceMatrix.read(tmp_path / "m.gguf")
    assert (found.datasets, found.chunks, found.chunk_size) == (["t"], 5, 64)
    assert found.entries["a"].means().tolist() == [[1, 2, 0]]
    # An expert that no token reached counts its inputs alike.
    assert found.entries["b"].means().tolist() == [[2, 1], [1, 1]]
    with pytest.raises(WriteError, match="exists; --force"):
        small().write(tmp_path / "m.gguf")


def test_what_a_file_says_of_its_matrix():
    long = ImportanceMatrix(small().entries, "x" * 126 + "é", [], 0)
    assert long.metadata() == {
        "quantize.imatrix.file": "x" * 126,
        "quantize.imatrix.entries_count": 2,
    }
    assert small().metadata()["quantize.imatrix.dataset"] == "t"
    assert small().metadata()["quantize.imatrix.chunks_count"] == 5


# bad input


def written(path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    kinds = {np.dtype(np.float32): DType.F32, np.dtype(np.float16): DType.F16}
    infos = [info(n, v.shape[::-1], kinds[v.dtype]) for n, v in tensors.items()]
    write_gguf(path, metadata, infos, lambda t: tensors[t.name].data.cast("B"), lambda _: None)
    return path


ABOUT = {
    "general.type": "imatrix",
    "imatrix.datasets": ["t"],
    "imatrix.chunk_count": 1,
    "imatrix.chunk_size": 8,
}
ONES, COUNT = np.ones((1, 4), np.float32), np.ones((1, 1), np.float32)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"general.type": "model"}, {}, "is no importance matrix: general.type is 'model'"),
        (ABOUT | {"imatrix.chunk_size": "x"}, {}, "must be integers"),
        (ABOUT | {"imatrix.datasets": 5}, {}, "imatrix.datasets must be a list of names"),
        (ABOUT | {"imatrix.datasets": "abc"}, {}, "imatrix.datasets must be a list of names"),
        (ABOUT, {}, "holds no importance of any tensor"),
        (ABOUT, {"a.in_sum2": ONES}, "a lacks sums or counts"),
        (ABOUT, {"a.in_sum2": ONES, "a.counts": np.ones((3, 1), np.float32)}, "4 sums and 3 coun"),
        (ABOUT, {"a.in_sum2": ONES.astype(np.float16)}, "is F16, not F32"),
        (ABOUT, {"a.in_sum2": ONES * np.nan, "a.counts": COUNT}, "a holds NaN or infinity"),
        (ABOUT, {"a.in_sum2": ONES, "a.counts": COUNT * np.inf}, "counts that are no numbers"),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray], message: str
):
    path = written(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(FormatError, match=message):
        ImportanceMatrix.read(path)


def test_a_file_that_is_cut_is_refused(tmp_path: Path):
    raw = (HERE / "stories.imatrix.dat").read_bytes()
    path = tmp_path / "m.dat"
    for end in (0, 3, 4, 7, 30, 40, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:end])
        with pytest.raises(FormatError, match=r"is no importance matrix: byte|is empty"):
            ImportanceMatrix.read(path)
    for count in (-1, 2**31 - 1):
        path.write_bytes(struct.pack("<ii", 1, count) + raw[8:])
        with pytest.raises(FormatError, match=r"is no importance matrix: byte|is empty"):
            ImportanceMatrix.read(path)
    with pytest.raises(FormatError, match="does not exist"):
        ImportanceMatrix.read(tmp_path / "none.gguf")


def model(shape: tuple[int, int] = (4, 256)) -> MemorySource:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return MemorySource({"general.architecture": "llama"}, {"blk.0.attn_q.weight": values})


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        (None, Unsupported, "iq2_XS needs an importance matrix: `ggmodel imatrix` makes one"),
        (
            {"x": 256},
            Unsupported,
            "has no entry for blk.0.attn_q.weight, which iq2_XS makes IQ2_XS",
        ),
        ({"blk.0.attn_q.weight": 128}, TensorError, "has 128 values, but the tensor .* needs 256"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(
    tmp_path: Path, entries: dict[str, int] | None, error: type[Exception], message: str
):
    matrix = None
    if entries is not None:
        matrix = tmp_path / "m.gguf"
        ones = {
            n: Importance(np.ones((1, w), np.float32), np.array([1])) for n, w in entries.items()
        }
        small(ones).write(matrix)
    with pytest.raises(error, match=message):
        quantize(model(), tmp_path / "a.gguf", "iq2_xs", imatrix=matrix)
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context": 65}, ConfigError, "chunks of 65 tokens, and the model is loaded with a cont"),
        ({"context": 0}, ConfigError, "chunks of 0 tokens"),
        ({"chunks": 0}, ConfigError, "0 chunks; there must be at least 1"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        computed(**options)


def test_a_text_shorter_than_a_chunk_is_refused():
    with (
        ggmodel.load(STORIES, context_length=64, batch_size=64) as stories,
        pytest.raises(PromptError, match="less than a chunk of 64; give a longer text"),
    ):
        next(importance(stories, "Once upon a time"))
