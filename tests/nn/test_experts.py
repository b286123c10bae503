"""Routers beside numpy in float64; what declarations of experts, latents and drafts say."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ggmodel import nn
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import new_backend
from ggmodel.model import HeadPart, config_class, find
from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden

EXPERTS, TOKENS, USED = 8, 6, 3
RANDOM = np.random.default_rng(5)
SCORES = RANDOM.normal(size=(TOKENS, EXPERTS)).astype(np.float32)
BIAS = RANDOM.normal(size=EXPERTS).astype(np.float32)

ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "shares": {"normalize": False},
    "sigmoid": {"sigmoid": True, "scale": 2.5},
    "bias": {"bias": BIAS},
    "epsilon": {"sigmoid": True, "epsilon": 0.5},
    "groups": {"groups": 4, "groups_used": 2, "group_best": 1, "normalize": False},
    "groups of two": {"sigmoid": True, "bias": BIAS, "groups": 4, "groups_used": 2},
    "one group": {"sigmoid": True, "groups": 2, "groups_used": 1},
}


def expected(options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights, [tokens, used]."""
    o = {"groups": 1, "groups_used": 1, "group_best": 2, "epsilon": 0.0, "scale": 1.0, **options}
    scores = SCORES.astype(np.float64)
    e = np.exp(scores)
    shares = e / (1 + e) if o.get("sigmoid") else e / e.sum(1, keepdims=True)
    choice = shares + o.get("bias", 0)
    groups = choice.reshape(TOKENS, o["groups"], -1)
    if o["groups"] > 1:
        ranks = np.sort(groups, axis=2)[:, :, -o["group_best"] :].sum(2)
        least = np.sort(ranks, axis=1)[:, -o["groups_used"], None]
        groups = np.where((ranks >= least)[:, :, None], groups, -np.inf)
    ids = np.argsort(-groups.reshape(TOKENS, EXPERTS), axis=1)[:, :USED]
    weights = np.take_along_axis(shares, ids, axis=1)
    if o.get("normalize", True):
        weights /= weights.sum(1, keepdims=True) + o["epsilon"]
    return ids, weights * o["scale"]


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_chooses_and_weighs(name: str):
    options = {"group_best": 2, **ROUTERS[name]}
    backend = new_backend(MemorySource({"general.architecture": "none"}, {}), name="reference")
    with backend, backend.new_context() as ctx, ctx.trace():
        if "bias" in options:
            options["bias"] = ctx.input().from_floats(BIAS)
        ids, weights = nn.choose_experts(ctx.input().from_floats(SCORES), USED, **options)
        chosen = ids.contiguous(USED, TOKENS)
        ctx.forward(chosen, weights).compute(chosen, weights)
        got = np.asarray(chosen.numpy()).reshape(TOKENS, USED), weights.floats()
    want = expected(ROUTERS[name])
    assert np.array_equal(got[0], want[0])
    assert nmse(got[1].reshape(TOKENS, USED), want[1]) < 1e-12


@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.7, 5.0])
@pytest.mark.parametrize("used", [1, 2, 3])
def test_sparse_mixer_weighs_each_expert_among_those_left(tolerance: float, used: int):
    backend = new_backend(MemorySource({"general.architecture": "none"}, {}), name="reference")
    with backend, backend.new_context() as ctx, ctx.trace():
        ids, weights = nn.sparse_mixer(ctx.input().from_floats(SCORES), used, tolerance)
        chosen = ids.contiguous(used, TOKENS)
        ctx.forward(chosen, weights).compute(chosen, weights)
        got = np.asarray(chosen.numpy()).reshape(TOKENS, used), weights.floats()
    want = np.zeros((TOKENS, used))
    for t, scores in enumerate(SCORES.astype(np.float64)):
        left = {*range(EXPERTS)}
        for i in range(used):
            best = max(left, key=scores.__getitem__)
            top = scores[best]
            near = [e for e in left if top - scores[e] <= tolerance * max(abs(scores[e]), top)]
            want[t, i] = 1 / np.exp(scores[near] - top).sum()
            assert got[0][t, i] == best
            left.remove(best)
    assert nmse(got[1].reshape(TOKENS, used), want) < 1e-12


def test_sparse_mixer_needs_an_expert():
    backend = new_backend(MemorySource({"general.architecture": "none"}, {}), name="reference")
    with (
        backend,
        backend.new_context() as ctx,
        ctx.trace(),
        pytest.raises(ConfigError, match="expert_used_count must be 1 or more"),
    ):
        nn.sparse_mixer(ctx.input().from_floats(SCORES), 0, 0.1)


def test_other_functions_of_scores_are_refused():
    with pytest.raises(ConfigError, match=r"expert_gating_func is 3; supported: 1, softmax, and 2"):
        nn.GatedExperts(SimpleNamespace(gating=3))


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"expert_groups": 3}, "expert_group_count is 3; it must divide 8"),
        ({"expert_groups": 2, "expert_groups_used": 3}, "expert_group_used_count is 3; it must be"),
        ({"expert_groups": 4, "experts_used": 3}, "it must be 2 or less, usable"),
    ],
)
def test_groups_that_cannot_be(numbers: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        nn.ExpertsConfig(
            experts=8, layers=1, width=8, ffn=8, heads=1, eps=1e-5, context=8, **numbers
        )


def test_rows_of_heads_go_both_ways():
    h = SimpleNamespace(heads=2, plain=3, out=1)
    fused = np.arange(2 * 4 * 5, dtype=np.float32).reshape(8, 5)
    parts = [HeadPart("kv", i, ("plain", "out"), "heads") for i in range(2)]
    joined = [part.join([fused], h) for part in parts]
    assert [x.shape for x in joined] == [part.shape([fused.shape], h) for part in parts]
    assert [x.shape for x in joined] == [(2, 3, 5), (2, 1, 5)]
    back = np.full_like(fused, np.nan)
    for part, x in zip(parts, joined, strict=True):
        ((name, (rows, values)),) = part.split(x, h).items()
        assert name == "kv"
        back[rows] = values
    assert np.array_equal(back, fused)
    with pytest.raises(ConfigError, match=r"kv: \[7, 5\] are not 2 heads of 4 rows"):
        parts[0].join([fused[:7]], h)


def test_the_second_use_of_the_magnitude():
    golden = load_golden("deepseek2", "v3")
    source = from_hf(find("deepseek2"), golden.config, golden.weights())
    assert source.metadata["deepseek2.rope.scaling.yarn_log_multiplier"] == pytest.approx(0.1)
    h: Any = config_class(find("deepseek2"))(
        **{"blocks": 1, "width": 8, "ffn": 8, "heads": 1, "eps": 1e-6, "context": 8},
        **{"kv_heads": 1, "rank": 4, "head_dim": 6, "value_dim": 4, "query_dim": 4, "out_dim": 2},
        **{"rope_dims": 2, "scaling": "yarn", "rope_factor": 4.0, "yarn_log": 0.07},
    )
    assert h.scale == pytest.approx((1 + 0.07 * math.log(4)) ** 2 / 2)
    assert h.yarn_magnitude == 1.0  # as files by llama.cpp's converter mean it


def test_layers_that_draft_are_left_out():
    golden = load_golden("glm4moe", "air")
    weights = golden.weights()
    last = golden.config["num_hidden_layers"] - 1
    drafting = {
        name.replace(f"layers.{last}.", f"layers.{last + 1}."): value
        for name, value in weights.items()
        if f"layers.{last}." in name
    }
    assert drafting
    source = from_hf(find("glm4moe"), golden.config, {**weights, **drafting})
    assert source.tensors.keys() == from_hf(find("glm4moe"), golden.config, weights).tensors.keys()
