"""Files of random weights: small ones of each shape."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import make_model
from benchmarks.make_model import SHAPES, TYPES, Shape, make

import ggmodel
from ggmodel.gguf_file import open_gguf
from ggmodel.ml.tensor import to_float32
from ggmodel.tokenizer import Tokenizer

POOL = 1 << 18
LLAMAS = [name for name, shape in SHAPES.items() if shape.architecture == "llama"]


def tiny(name: str, **changes: int) -> Shape:
    """A shape with the same kinds of everything."""
    small = {
        "layers": 8, "width": 256, "ffn": 512, "heads": 4, "kv_heads": 2, "head_dim": 64,
        "vocabulary": 1024, "context": 512,
    }  # fmt: skip
    return dataclasses.replace(SHAPES[name], **(small | changes))


def parameters(shape: Shape) -> int:
    return sum(int(np.prod(ne)) for _, ne in make_model.tensors(shape))


def test_the_shapes_are_those_of_the_models():
    """As published: 1.24, 8.03, 0.135, 1.00 and 0.75 billion parameters; of 30.5 a quarter."""
    found = {name: parameters(shape) for name, shape in SHAPES.items()}
    assert found == {
        "llama-1b": 1_235_814_400 + 32,  # and the rope factors
        "llama-8b": 8_030_261_248,
        "smollm-135m": 134_515_008,
        "gemma3-1b": 999_885_952,
        "qwen35-0.8b": 752_393_024,
        "qwen3moe-12-layers": 7_788_614_656,
        "qwen3moe-even": 7_788_614_656,
    }


@pytest.mark.parametrize("name", LLAMAS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_llama_runs(tmp_path: Path, name: str, kind: str):
    file = tmp_path / "model.gguf"
    make(file, name, tiny(name), kind, pool=POOL)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    with ggmodel.load(file) as model:
        text = "the cat\u00e9 sat"
        assert model.detokenize(model.tokenize(text, add_special=False)) == text
        logits = model.logits("a small fox")
        assert logits.shape[1] == 1024 and np.isfinite(logits).all()
        assert logits.std() > 1e-3  # they are not all alike
        assert len(model.generate("a small fox", temperature=0, max_tokens=8).tokens) > 0


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_in_the_file(tmp_path: Path, name: str):
    shape = tiny(name)
    file = tmp_path / "model.gguf"
    make(file, name, shape, "f32", pool=POOL)
    with open_gguf(file) as source:
        assert {n: t.shape for n, t in source.tensors.items()} == dict(make_model.tensors(shape))
        tokenizer = Tokenizer.from_metadata(source.metadata)
        assert tokenizer.size == len(set(source.metadata["tokenizer.ggml.tokens"].tolist())) == 1024
        assert tokenizer.add_bos == (name in ("llama-1b", "llama-8b", "gemma3-1b"))
        assert file.stat().st_size == max(t.offset + t.nbytes for t in source.tensors.values())
        for n, t in source.tensors.items():
            values = to_float32(
                np.frombuffer(source.data(n), np.uint8).view(np.float32), t.dtype, t.shape
            )
            if "norm" in n:
                assert (values == 1).all()
            elif n.endswith(("ssm_a", "ssm_dt.bias")):
                assert len(set(values.tolist())) == 1
            elif n == "rope_freqs.weight":
                assert values[0] == 1 and values[-1] == 32
            else:
                values = values / (shape.embedding if n == "token_embd.weight" else 1.0)
                assert abs(values.mean()) < 1e-3 and values.std() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "qwen35-0.8b"])
def test_the_mixture(tmp_path: Path, name: str):
    """The first and the last eighth of 8 layers, and every third between them."""
    file = tmp_path / "model.gguf"
    make(file, name, tiny(name), "q4_K_M", pool=POOL)
    with open_gguf(file) as source:
        kinds = {
            n.replace("_exps", ""): t.dtype.name
            for n, t in source.tensors.items()
            if len(t.shape) > 1 and "gate_inp" not in n
        }
    larger = {n for n, kind in kinds.items() if kind == "Q6_K"}
    assert set(kinds.values()) == {"Q4_K", "Q6_K"}
    output = "token_embd.weight" if SHAPES[name].tied else "output.weight"
    assert larger == {output} | {
        f"blk.{i}.{part}.weight" for i in (0, 3, 6, 7) for part in ("attn_v", "ffn_down")
    }


def test_rows_that_blocks_do_not_divide(tmp_path: Path):
    file = tmp_path / "model.gguf"
    make(file, "odd", tiny("smollm-135m", width=96, head_dim=24), "q4_K_M", pool=POOL)
    with open_gguf(file) as source:
        kinds = collections.Counter(
            (t.dtype.name, n.split(".")[-2]) for n, t in source.tensors.items() if len(t.shape) > 1
        )
    assert kinds["Q8_0", "token_embd"] == 1
    assert (kinds["Q5_0", "attn_v"], kinds["Q8_0", "attn_v"]) == (4, 4)
    assert (kinds["Q4_K", "ffn_down"], kinds["Q6_K", "ffn_down"]) == (4, 4)


def test_matrices_differ_and_a_seed_repeats(tmp_path: Path):
    first, again, other = (tmp_path / f"{n}.gguf" for n in range(3))
    for file, seed in ((first, 0), (again, 0), (other, 1)):
        make(file, "llama", tiny("smollm-135m", vocabulary=512), "f16", seed=seed, pool=1 << 20)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    with open_gguf(first) as source:
        gates = {bytes(source.data(f"blk.{i}.ffn_gate.weight")) for i in range(8)}
    assert len(gates) == 8


def test_what_fails_leaves_nothing(tmp_path: Path):
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "m.gguf", "m", tiny("smollm-135m"), "f16", pool=POOL, progress=stop)
    assert not list(tmp_path.iterdir())


def test_the_command_names_what_there_is():
    command = [sys.executable, make_model.__file__, "llama-7b", "x.gguf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "smollm-135m" in done.stderr
