"""The rope of a layer is declared once: another rotation of its keys is refused when a graph is
recorded. Without that a model is right until its positions move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import TensorError
from ggmodel.gguf_file import MemorySource
from ggmodel.kvcache import Causal
from ggmodel.ml import Backend, RopeType, Tensor
from ggmodel.model import LayerMemory, find
from ggmodel.nn import Rope
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden
from tests.kvcache.naive import step

LLAMA = Path(__file__).parents[1] / "models" / "outside" / "llama.py"
DECLARED = "Causal(layer.attn.rotary.rope())"
TEXT = np.random.default_rng(5).integers(3, 60, 40).astype(np.int32)


def one_layer(case: str = "plain_gqa") -> MemorySource:
    golden = load_golden("llama", case)
    weights = {
        name: values
        for name, values in golden.weights().items()
        if ".layers." not in name or ".layers.0." in name
    }
    return from_hf(find("llama"), {**golden.config, "num_hidden_layers": 1}, weights)


def edited(folder: Path, *changes: tuple[str, str]) -> Path:
    text = LLAMA.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "llama.py").write_text(text)
    return folder


def shifted(model: LoadedModel) -> tuple[np.ndarray, np.ndarray]:
    """The logits after ten positions have been removed, and those of the shorter text."""
    with Scoring(model.engine).sequence() as sequence:
        Scoring(model.engine).extend(sequence, TEXT, 0)
        model.engine.cache.remove(sequence, 10, 20)
        got = Scoring(model.engine).extend(sequence, TEXT[:1], 30)
    with Scoring(model.engine).sequence() as sequence:
        Scoring(model.engine).extend(sequence, np.concatenate([TEXT[:10], TEXT[20:]]), 0)
        return got, Scoring(model.engine).extend(sequence, TEXT[:1], 30)


MISMATCHES: dict[str, tuple[str, str, str]] = {
    "another base": (DECLARED, "Causal(nn.Rope(16, 5000.0))", "rope.*base=10000.0.*base=5000.0"),
    "another type": (
        DECLARED,
        "Causal(layer.attn.rotary.rope(RopeType.NEOX))",
        "rope.*mode=0.*RopeType.NEOX",
    ),
    "another scale": (DECLARED, "Causal(nn.Rope(16, scale=0.5))", r"scale=1.0.*scale=0\.5"),
    "fewer dims": (DECLARED, "Causal(nn.Rope(8))", "dims=16.*dims=8"),
    "another magnitude": (DECLARED, "Causal(nn.Rope(16, magnitude=2.0))", "magnitude=2.0"),
    "none declared": (DECLARED, "Causal()", "rope.*caches.. declares no rope"),
    "none used": (
        "k = rope(self.k(x).reshape(h.head_dim, h.kv_heads, -1), batch.positions)",
        "k = self.k(x).reshape(h.head_dim, h.kv_heads, -1)",
        "keys that it has not rotated",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_is_refused(name: str, tmp_path: Path):
    old, new, message = MISMATCHES[name]
    model = "from ggmodel.model import"
    folder = edited(tmp_path, (old, new), (model, f"from ggmodel.ml import RopeType\n{model}"))
    with pytest.raises(TensorError, match=message) as caught:
        ggmodel.load(one_layer(), models=folder)
    assert "layer 0" in str(caught.value)
    assert "cache.rotate(k, batch.positions)" in str(caught.value)


def test_factors_that_are_not_declared_are_refused(tmp_path: Path):
    folder = edited(tmp_path, (DECLARED, "Causal(nn.Rope(16, 500000.0))"))
    with pytest.raises(TensorError, match=r"caches\(\) declares Rope"):
        ggmodel.load(one_layer("llama3_rope"), models=folder)


def test_without_the_check_it_shows_only_after_a_shift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LayerMemory, "check_rotation", lambda self, k: None)
    source, golden = one_layer(), load_golden("llama", "plain_gqa")
    text = golden.prompt.tolist()
    wrong = edited(tmp_path, (DECLARED, "Causal(nn.Rope(16, 5000.0))"))
    with ggmodel.load(source, kv_type="f32", parallel=2) as right:
        want = right.logits(text)
        got, recomputed = shifted(right)
        assert nmse(got, recomputed) < 1e-9
    with ggmodel.load(source, models=wrong, kv_type="f32", parallel=2) as model:
        assert nmse(model.logits(text), want) < 1e-12
        got, recomputed = shifted(model)
        assert nmse(got, recomputed) > 1e-6


@pytest.mark.parametrize(("declared", "used"), [(8, 8), (8, 16)])
def test_a_rope_without_an_op_of_its_own_is_trusted(
    make_cache: Callable[..., Any], backend: Backend, declared: int, used: int
):
    """Keys that no projection made may come from anywhere."""
    cache = make_cache(1, 8, [Causal(Rope(declared))])
    batch = step((0, 0), (0, 1))
    cache.start_forward(batch)
    with backend.new_context() as ctx, ctx.trace():
        (memory,) = cache.layers(ctx, batch).values()
        k = ctx.input().from_floats(np.ones((2, 1, 16), np.float32))
        at = ctx.input().from_ints([0, 1])
        if declared == used:
            memory.put(memory.rotate(k, at).rms_norm(eps=1e-6), k)
        else:
            with pytest.raises(TensorError, match="dims=16"):
                memory.put(Rope(used)(k, at), k)
            memory.put(k, k)


def test_rotating_where_no_rope_is_declared(make_cache: Callable[..., Any], backend: Backend):
    cache = make_cache(1, 8)
    batch = step((0, 0))
    cache.start_forward(batch)
    with backend.new_context() as ctx, ctx.trace():
        (memory,) = cache.layers(ctx, batch).values()
        x: Tensor = ctx.input().from_floats(np.ones((1, 1, 16), np.float32))
        assert memory.rope is None
        with pytest.raises(TensorError, match=r"layer 0 rotates, but caches\(\) declares no rope"):
            memory.rotate(x, ctx.input().from_ints([0]))


def test_a_rope_knows_its_ops(backend: Backend):
    rope = Rope(8, 500.0, 0.5, RopeType.NEOX, magnitude=1.5)
    with backend.new_context() as ctx, ctx.trace():
        x = ctx.input().from_floats(np.ones((1, 1, 16), np.float32))
        at = ctx.input().from_ints([0])
        factors = ctx.input().from_floats(np.ones(4, np.float32))
        assert rope.made(rope(x, at))
        assert not rope.made(rope.move(x, at))  # without the magnitude
        assert not rope.made(Rope(8, 500.0, 0.5, RopeType.NEOX, factors, 1.5)(x, at))
        assert not rope.made(x.rope(at, 8, 500.0, 0.5, type=RopeType.NEOX, ext_factor=1.0))
