"""Heads for multi-token prediction: beside the published formula in float64, and as drafters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import DType
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.drafting import Costs
from ggmodel.runner.engine.memory_plan import HeadStep
from ggmodel.runner.engine.next_token import NextTokenHead
from ggmodel.runner.engine.sequences import common_prefix
from tests.golden.files import load_golden

EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
Weights = dict[str, np.ndarray]


def head_weights(config: dict[str, Any], seed: int = 0) -> Weights:
    """The weights of Qwen 3.5's head, with the names of a checkpoint."""
    chance = np.random.default_rng(seed)
    width, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {
        "fc": (width, 2 * width),
        "layers.0.self_attn.q_proj": (2 * heads * dim, width),
        "layers.0.self_attn.k_proj": (kv_heads * dim, width),
        "layers.0.self_attn.v_proj": (kv_heads * dim, width),
        "layers.0.self_attn.o_proj": (width, heads * dim),
        "layers.0.mlp.gate_proj": (ffn, width),
        "layers.0.mlp.up_proj": (ffn, width),
        "layers.0.mlp.down_proj": (width, ffn),
    }
    norms = {
        **dict.fromkeys(("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), width),
        "layers.0.input_layernorm": width,
        "layers.0.post_attention_layernorm": width,
        "layers.0.self_attn.q_norm": dim,
        "layers.0.self_attn.k_norm": dim,
    }
    weights = {n: chance.standard_normal(s) * s[1] ** -0.5 for n, s in shapes.items()}
    weights |= {n: chance.standard_normal(size) * 0.2 for n, size in norms.items()}
    return {f"mtp.{name}.weight": w.astype(np.float32) for name, w in weights.items()}


def golden_with_head() -> tuple[dict[str, Any], Weights]:
    golden = load_golden("qwen35", "published")
    return golden.config, golden.weights() | head_weights(golden.config)


def formula(config: dict[str, Any], w: Weights, tokens: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The head's hidden states float64 [n, width], as published: of the tokens behind those that
    the hidden states h [n, width] belong to."""
    m = {name: value.astype(np.float64) for name, value in w.items()}
    dim, heads = config["head_dim"], config["num_attention_heads"]
    kv_heads, n = config["num_key_value_heads"], len(tokens)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"])
        return x / scale * (1 + m[f"mtp.{name}.weight"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ m[f"mtp.{name}.weight"].T

    rope = config["rope_parameters"]
    rotated = int(dim * rope["partial_rotary_factor"])
    rates = rope["rope_theta"] ** (-np.arange(0, rotated, 2) / rotated)
    angles = np.arange(n)[:, None, None] * rates

    def rotate(x: np.ndarray) -> np.ndarray:
        a, b = x[..., : rotated // 2], x[..., rotated // 2 : rotated]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., rotated:]], -1)

    e = m["model.embed_tokens.weight"][tokens]
    both = [norm(e, "pre_fc_norm_embedding"), norm(h, "pre_fc_norm_hidden")]
    x = linear(np.concatenate(both, -1), "fc")
    y = norm(x, "layers.0.input_layernorm")
    q, gate = np.split(linear(y, "layers.0.self_attn.q_proj").reshape(n, heads, 2 * dim), 2, -1)
    k = linear(y, "layers.0.self_attn.k_proj").reshape(n, kv_heads, dim)
    v = linear(y, "layers.0.self_attn.v_proj").reshape(n, kv_heads, dim)
    q = rotate(norm(q, "layers.0.self_attn.q_norm"))
    k = rotate(norm(k, "layers.0.self_attn.k_norm"))
    k, v = (np.repeat(a, heads // kv_heads, 1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * dim**-0.5
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out = np.einsum("hij,jhd->ihd", shares, v) / (1 + np.exp(-gate))
    x = x + linear(out.reshape(n, -1), "layers.0.self_attn.o_proj")
    y = norm(x, "layers.0.post_attention_layernorm")
    up = linear(y, "layers.0.mlp.gate_proj")
    up = up / (1 + np.exp(-up)) * linear(y, "layers.0.mlp.up_proj")
    return norm(x + linear(up, "layers.0.mlp.down_proj"), "norm")


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return from_hf(find("qwen35"), *golden_with_head())


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costs, "measured", lambda self, size: True)
    monkeypatch.setattr(Costs, "of", lambda self, size: 1.0)
    monkeypatch.setattr(Costs, "largest", property(lambda self: 32))
    monkeypatch.setattr(NextTokenHead, "seconds", lambda self, lengths: 0.0)


@pytest.fixture
def plain(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, context_length=128, parallel=3, **EXACT) as model:
        yield model


def test_the_tensors_have_llama_cpps_names(source: MemorySource):
    assert source.metadata["qwen35.block_count"] == 5
    assert source.metadata["qwen35.nextn_predict_layers"] == 1
    head = {name for name in source.tensors if name.startswith("blk.4.")}
    parts = "attn_norm attn_q attn_q_norm attn_k attn_k_norm attn_v attn_output ffn_gate ffn_up"
    parts += " ffn_down post_attention_norm nextn.eh_proj nextn.enorm nextn.hnorm"
    assert head == {f"blk.4.{n}.weight" for n in [*parts.split(), "nextn.shared_head_norm"]}
    _, weights = golden_with_head()
    norm = np.frombuffer(source.data("blk.4.nextn.hnorm.weight"), np.float32)
    assert np.allclose(norm, 1 + weights["mtp.pre_fc_norm_hidden.weight"])


def test_a_checkpoint_without_its_tensors_has_no_head():
    golden = load_golden("qwen35", "published")
    source = from_hf(find("qwen35"), golden.config, golden.weights())
    assert source.metadata["qwen35.block_count"] == 4
    with pytest.raises(Unsupported, match="has no head for multi-token prediction"):
        ggmodel.load(source, draft="own", context_length=64)


def test_without_draft_it_is_not_loaded(plain: LoadedModel):
    assert plain.model.mtp is None and plain.engine.head is None  # type: ignore[attr-defined]


def test_the_head_computes_the_published_formula(source: MemorySource):
    config, weights = golden_with_head()
    with ggmodel.load(source, draft="own", context_length=64, **EXACT) as model:
        head = model.engine.head
        assert head is not None
        chance = np.random.default_rng(3)
        tokens = chance.integers(0, config["vocab_size"], 9).astype(np.int32)
        states = chance.standard_normal((9, config["hidden_size"])).astype(np.float32)
        places = np.arange(9, dtype=np.int32)

        def compute() -> tuple[np.ndarray, np.ndarray]:
            step = HeadStep(tokens, places, 0 * places, places, states=states)
            step.components = np.repeat(places[None], model.model.own_components(), axis=0)
            head._cache.start_forward(step)
            logits = head._graphs.run(step).copy()
            assert head._graphs.states is not None
            return logits, head._graphs.states.copy()

        logits, got = model.engine.call(compute)
    want = formula(config, weights, tokens, states.astype(np.float64))
    np.testing.assert_allclose(got, want, atol=2e-5)
    embedding = weights["model.embed_tokens.weight"].astype(np.float64)
    np.testing.assert_allclose(logits, want @ embedding.T, atol=2e-5)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.5, "seed": 3}])
def test_answers_are_the_same(
    source: MemorySource, plain: LoadedModel, eager: None, options: dict[str, Any]
):
    """With a head of random weights, which is hardly ever right."""
    with ggmodel.load(source, draft="own", context_length=128, parallel=3, **EXACT) as model:
        for first in range(3, 9):
            prompt = list(range(first, first + 12))
            want = plain.generate(prompt, max_tokens=40, **options)
            got = model.generate(prompt, max_tokens=40, **options)
            assert got.tokens == want.tokens and got.usage.drafted > 20
        prompts = [list(range(n, n + 9)) for n in range(3, 12)]
        got = model.batch(prompts, max_tokens=30, **options)
        want = plain.batch(prompts, max_tokens=30, **options)
        assert [g.tokens for g in got] == [w.tokens for w in want]


def test_hidden_states_reach_the_head(source: MemorySource, eager: None):
    """Its drafts are those of the formula, from the states behind the model's logits."""
    config, weights = golden_with_head()
    with ggmodel.load(source, draft="own", draft_tokens=1, context_length=64, **EXACT) as model:
        head, drafts = model.engine.head, list[tuple[int, list[int]]]()
        assert head is not None
        draft = head.draft

        def noted(lengths: Any) -> Any:
            made = draft(lengths)
            drafts.extend((len(s.tokens) + len(s.pending), tokens) for s, tokens in made.items())
            return made

        head.draft = noted  # type: ignore[method-assign]
        prompt = [5, 6, 7, 8, 9]
        answer = model.generate(prompt, max_tokens=20, temperature=0).tokens
        text = np.array(prompt + answer, np.int32)
        states = hidden_states(model, text)
        first = len(prompt)
        following = formula(config, weights, text[first:], states[first - 1 : -1])
        embedding = weights["model.embed_tokens.weight"].astype(np.float64)
        best = (following @ embedding.T).argmax(-1)
    assert len(drafts) > 8
    for length, tokens in drafts:
        assert tokens == [best[length - first - 1]]


def hidden_states(model: LoadedModel, text: np.ndarray) -> np.ndarray:
    """The states after the model's last norm, float64 [n, width], made of its logits."""
    rows = model.logits(text.tolist()).astype(np.float64)
    embedding = np.frombuffer(model.source.data("token_embd.weight"), np.float32)
    embedding = embedding.reshape(-1, model.engine.memory_plan.states_width).astype(np.float64)
    assert model.source.tensors["token_embd.weight"].dtype is DType.F32
    return np.linalg.lstsq(embedding, rows.T, rcond=None)[0].T


def test_a_head_that_knows_the_answer_is_accepted(source: MemorySource, eager: None):
    """The embedding alone decides: the model and its head say the successor of each token."""
    with ggmodel.load(source, draft="own", context_length=128, **EXACT) as model:
        want = model.generate([5, 6, 7], max_tokens=60, temperature=0)
        head = model.engine.head
        assert head is not None
        told, draft = [5, 6, 7, *want.tokens], head.draft

        def right(lengths: Any) -> Any:
            draft(lengths)
            known = {s: len(s.tokens) + len(s.pending) for s in lengths}
            return {s: told[n : n + lengths[s]] for s, n in known.items() if told[n:]}

        head.draft = right  # type: ignore[method-assign]
        got = model.generate([5, 6, 7], max_tokens=60, temperature=0)
        assert common_prefix(got.tokens, want.tokens) == 60
        assert got.usage.accepted > 40
