"""Qwen 3.5: layers that are not loaded, names of published checkpoints, the order of heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, LoadError
from ggmodel.gguf_file import TensorSource
from ggmodel.model import Chain, NegatedExp, Operation, find
from ggmodel.nn import TAPS, TileHeads
from ggmodel.workbench.golden import source_of
from tests.conftest import Vary
from tests.golden.text import golden_of


def logits(source: TensorSource, prompt: np.ndarray) -> np.ndarray:
    with ggmodel.load(source, kv_type="f32", flash_attention="off", threads=1) as model:
        return model.logits(prompt.tolist())


@pytest.mark.parametrize("listed", [True, False])
def test_layers_that_guess_are_left_out(vary: Vary, listed: bool):
    golden = golden_of("qwen35/published")
    source = source_of(golden)
    recurrent = [True, True, True, False, False] if listed else None
    guessing = {
        "qwen35.block_count": 5,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.attention.recurrent_layers": recurrent,
    }
    layer = {f"blk.4.{name}.weight": np.ones(64, np.float32) for name in ("attn_norm", "odd")}
    got = logits(vary(source, metadata=guessing, tensors=layer), golden.prompt)
    assert np.array_equal(got, logits(source, golden.prompt))
    with pytest.raises(LoadError, match=r"blk\.4\.odd"):
        logits(vary(source, tensors=layer), golden.prompt)


def published(case: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A golden's checkpoint with the names of the published ones, which see."""
    golden = golden_of(case)
    config = {k: v for k, v in golden.config.items() if k != "architectures"}
    kind = golden.config["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")
    weights = {
        name.replace("model.", "model.language_model.", 1): value
        for name, value in golden.weights().items()
    }
    for prefix in {name.partition("experts.")[0] for name in weights if ".experts." in name}:
        parts = [
            np.stack(
                [
                    weights.pop(f"{prefix}experts.{i}.{part}_proj.weight")
                    for i in range(config["num_experts"])
                ]
            )
            for part in ("gate", "up", "down")
        ]
        weights[f"{prefix}experts.gate_up_proj"] = np.concatenate(parts[:2], axis=1)
        weights[f"{prefix}experts.down_proj"] = parts[2]
    weights["mtp.norm.weight"] = np.ones(64, np.float32)
    tower = {"out_hidden_size": config["hidden_size"]}  # whose tensors are in another file
    return {"architectures": [kind], "text_config": config, "vision_config": tower}, weights


@pytest.mark.parametrize("case", ["qwen35/published", "qwen35/experts"])
def test_published_names(case: str):
    config, weights = published(case)
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"]
    want = source_of(golden_of(case))
    got = from_hf(find(want.metadata["general.architecture"]), config, weights)
    assert got.tensors == want.tensors
    assert all(bytes(got.data(name)) == bytes(want.data(name)) for name in want.tensors)


HEADS: Any = SimpleNamespace(groups=2, values=6, state=4, tiled=True)


def test_heads_lie_as_ggml_repeats_their_keys():
    x = np.arange(8 + 6 * 4, dtype=np.float32)  # 8 elements of keys come before
    got = TileHeads("state").to_gguf(x, HEADS)
    assert (got[:8] == x[:8]).all()
    assert (got[8:].reshape(6, 4)[:, 0] == 8 + 4 * np.array([0, 3, 1, 4, 2, 5])).all()
    assert (TileHeads("state").to_hf(got, HEADS) == x).all()


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (TileHeads(), (6, 5)),
        (TileHeads("state", axis=1), (5, 24)),
        (Chain(TAPS, TileHeads("state")), (40, 1, 3)),
        (Chain(TileHeads(), NegatedExp()), (6,)),
    ],
    ids=["rows", "columns", "taps", "rates"],
)
def test_weights_return(op: Operation, shape: tuple[int, ...]):
    x = np.random.default_rng(0).uniform(0.1, 1, shape)
    there = op.to_gguf(x, HEADS)
    assert there.shape == op.shape(shape, HEADS)
    assert not np.array_equal(there.reshape(-1), x.reshape(-1))
    assert np.allclose(op.to_hf(there, HEADS), x)


def test_results_follow_the_order_of_rows():
    weight, x = np.random.default_rng(1).normal(size=(24, 5)), np.arange(5.0)
    op = TileHeads("state")
    assert np.allclose(op.results(weight @ x, HEADS), op.to_gguf(weight, HEADS) @ x)
    columns = TileHeads("state", axis=1)
    assert (columns.results(x, HEADS) == x).all()


@pytest.mark.parametrize(("groups", "rows"), [(4, 24), (2, 23)])
def test_heads_that_do_not_fit_are_refused(groups: int, rows: int):
    odd: Any = SimpleNamespace(groups=groups, values=6, state=4, tiled=True)
    with pytest.raises(ConfigError, match="heads of"):
        TileHeads("state").to_gguf(np.zeros(rows), odd)


def test_heads_that_stay_neighbours_are_not_moved():
    neighbours: Any = SimpleNamespace(groups=2, values=6, state=4, tiled=False)
    x = np.arange(24.0)
    assert (TileHeads("state").to_gguf(x, neighbours) == x).all()
