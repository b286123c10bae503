"""Gemma 3n and Gemma 4, whose last layers read the keys and values of earlier ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import LoadError
from ggmodel.model import find
from ggmodel.workbench.golden import Golden, nmse, source_of, weights
from tests.golden.text import golden_of
from tests.kvcache.history import parts

CASES = ["gemma3n/published", "gemma3n/untied", "gemma4/published"]
TABLE = 1e-6  # ggml's GELU reads a table in F16
# Queries, keys and values of 32 numbers with one scale, in layers that do not divide scores.
KEYS = {"f16": 2e-6, "q8_0": 5e-3}


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return golden_of(request.param)


def multimodal(golden: Golden) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The text as it stands in a published checkpoint, without the towers beside it."""
    kind = golden.config["model_type"].removesuffix("_text")
    named = golden.config["architectures"][0].replace("CausalLM", "ConditionalGeneration")
    inner = {k: v for k, v in golden.config.items() if k != "architectures"}
    config = {"architectures": [named], "model_type": kind, "text_config": inner}
    renamed = {
        n.replace("model.", "model.language_model.", 1): w for n, w in golden.weights().items()
    }
    return config, renamed


def unused(golden: Golden) -> dict[str, np.ndarray]:
    """Keys and values that published checkpoints have in layers that share those of others."""
    layers, shared = (golden.config[k] for k in ("num_hidden_layers", "num_kv_shared_layers"))
    found = {}
    for i in range(layers - shared, layers):
        name = f"model.layers.{i}.self_attn."
        width = golden.tensors[f"{name}q_norm.weight"][0]
        heads = golden.config["num_key_value_heads"] * width
        shapes = {"k_proj": (heads, golden.config["hidden_size"]), "k_norm": (width,)}
        for part, shape in {**shapes, "v_proj": shapes["k_proj"]}.items():
            found[f"{name}{part}.weight"] = weights.weight(f"{name}{part}.weight", shape)
    return found


def test_only_layers_of_their_own_store_anything(golden: Golden):
    with ggmodel.load(source_of(golden)) as model:
        model.generate(golden.prompt.tolist(), max_tokens=1)
        stored = sorted(i for part in parts(model.engine.cache) for i in part.stored.keys)
    own = golden.config["num_hidden_layers"] - golden.config["num_kv_shared_layers"]
    assert stored == list(range(own))


def test_keys_that_nobody_reads_change_nothing(golden: Golden):
    found, prompt = [], golden.prompt.tolist()
    arch = find(golden.architecture)
    for more in ({}, unused(golden)):
        source = from_hf(arch, golden.config, {**golden.weights(), **more})
        with ggmodel.load(source, kv_type="f32") as model:
            found.append(model.logits(prompt))
        assert ("blk.3.attn_k.weight" in source.tensors) is bool(more)
    assert np.array_equal(*found)


@pytest.mark.parametrize("kv_type", KEYS)
def test_rounded_keys_and_values(golden: Golden, kv_type: str):
    with ggmodel.load(source_of(golden), kv_type=kv_type, flash_attention="on") as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < KEYS[kv_type]


def test_users_at_once_get_what_each_gets_alone(golden: Golden):
    """Prompts that begin alike, beyond the end of the context, over four slots."""
    prompt = golden.prompt.tolist()
    prompts = [prompt, [*prompt[:20], *prompt[:7]], prompt[:25], [*prompt[:20], 9, 8, 7]]
    options: dict[str, Any] = {"kv_type": "f32", "context_length": 40, "batch_size": 16}

    def answer(model: ggmodel.LoadedModel, prompt: list[int]) -> list[int]:
        return model.generate(prompt, max_tokens=30, temperature=0).tokens

    alone = []
    for each in prompts:
        with ggmodel.load(source_of(golden), **options) as model:
            alone.append(answer(model, each))
    with (
        ggmodel.load(source_of(golden), parallel=4, **options) as model,
        ThreadPoolExecutor(4) as pool,
    ):
        assert list(pool.map(lambda each: answer(model, each), prompts)) == alone


def test_the_text_of_a_published_checkpoint(golden: Golden):
    config, renamed = multimodal(golden)
    arch = find(golden.architecture)
    with ggmodel.load(from_hf(arch, config, renamed), kv_type="f32") as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < TABLE
    towers = {
        "model.touch_tower.conv_stem.conv.weight": np.zeros((4, 12), np.float32),
        "model.touch_tower.output_proj.weight": np.zeros((4, 4), np.float32),
    }
    with pytest.raises(LoadError, match=r"model\.touch_tower\.conv_stem"):
        from_hf(arch, config, {**renamed, **towers})
    with pytest.warns(UserWarning, match="tower"):
        whole = from_hf(arch, config, {**renamed, **towers}, strict=False)
    assert not any("tower" in name for name in whole.tensors)
