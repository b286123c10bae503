"""`describe` shows the content of files."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from ggmodel.gguf_file import DType, MemorySource, open_gguf
from ggmodel.workbench.show import ArraySummary, Hyperparameter, TensorRow, describe


def test_a_good_model(source: MemorySource, write_gguf, tmp_path: Path):
    with open_gguf(write_gguf(tmp_path / "model.gguf", source)) as file:
        d = describe(file)
    assert (d.version, d.architecture, d.note) == (3, "llama", None)
    entries = {e.key: e for e in d.metadata}
    assert set(entries) == set(source.metadata)
    assert (entries["llama.block_count"].type, entries["llama.block_count"].value) == ("u32", 2)
    tokens = entries["tokenizer.ggml.tokens"]
    assert tokens.type == "array of string"
    assert tokens.value == ArraySummary(64, ["<|bos|>", "a", "b", "c", "d", "e"])
    assert d.hyperparameters is not None
    assert Hyperparameter("layers", 2, "llama.block_count") in d.hyperparameters
    assert Hyperparameter("experts", 0, None) in d.hyperparameters
    assert [layer.name for layer in d.layers] == ["", "blk.0", "blk.1"]
    assert TensorRow("blk.1.attn_k.weight", "F32", (64, 32), 8192) in d.layers[2].tensors
    (total,) = d.totals
    assert (total.tensors, total.parameters, total.nbytes) == (d.tensors, d.parameters, d.nbytes)
    assert d.tensors == len(source.tensors)
    assert d.nbytes == sum(layer.nbytes for layer in d.layers) == 4 * d.parameters


@pytest.mark.parametrize(
    ("metadata", "note"),
    [
        ({"general.architecture": "newest"}, "no architecture 'newest'"),
        ({}, "general.architecture"),
        ({"general.architecture": 3}, "general.architecture"),
        ({"general.architecture": "llama"}, "'llama.block_count'"),
    ],
)
def test_hyperparameters_that_nobody_knows(metadata: dict, note: str):
    d = describe(MemorySource(metadata, {"a.weight": np.ones(4, np.float32)}))
    assert d.hyperparameters is None
    assert note in (d.note or "")
    assert [t.name for t in d.layers[0].tensors] == ["a.weight"]


def test_a_file_with_nothing_but_a_vocabulary(vocabulary: dict, write_gguf, tmp_path: Path):
    with open_gguf(write_gguf(tmp_path / "vocab.gguf", MemorySource(vocabulary, {}))) as file:
        d = describe(file)
    assert (d.tensors, d.layers, d.totals) == (0, [], [])
    assert {e.key for e in d.metadata} == set(vocabulary)


def test_layers_in_the_order_of_their_numbers():
    one = np.ones(2, np.float32)
    names = ["embd", "v.blk.0.a", "blk.10.a", "blk.2.a", "out", "v.blk.1.a", "blk.2.b", "7.x"]
    names.append(f"blk.{'9' * 50}.a")
    d = describe(MemorySource({}, dict.fromkeys(names, one)))
    assert [layer.name for layer in d.layers] == ["", "v.blk.0", "v.blk.1", "blk.2", "blk.10"]
    assert [t.name for t in d.layers[3].tensors] == ["blk.2.a", "blk.2.b"]


def test_totals_by_type_the_largest_first():
    tensors = {
        "a": np.ones((2, 32), np.float16),
        "b": (DType.Q8_0, (64, 3), bytes(3 * 2 * 34)),
        "c": np.ones(8, np.float16),
    }
    d = describe(MemorySource({}, tensors))
    assert [(t.dtype, t.tensors, t.parameters, t.nbytes) for t in d.totals] == [
        ("Q8_0", 1, 192, 204),
        ("F16", 2, 72, 144),
    ]


def test_long_arrays_stay_undecoded(write_gguf, tmp_path: Path):
    words = [f"word{i}" for i in range(262_144)]
    nested = MemorySource({"tokenizer.ggml.tokens": words, "nested": [[1, 2], [3]] * 9}, {})
    path = write_gguf(tmp_path / "large.gguf", MemorySource(dict(nested.metadata), {}))
    start = time.perf_counter()
    with open_gguf(path) as file:
        d = describe(file)
    assert time.perf_counter() - start < 5  # 0.2 s on a quiet machine; decoding takes more memory
    entries = {e.key: e.value for e in d.metadata}
    assert entries["tokenizer.ggml.tokens"] == ArraySummary(262_144, words[:6])
    assert entries["nested"] == ArraySummary(
        18, [ArraySummary(2, [1, 2]), ArraySummary(1, [3])] * 3
    )
