"""Models compared with their originals: against numpy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.quantize import quantize
from ggmodel.errors import ComputeError, ConfigError
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.runner import LoadedModel
from ggmodel.workbench.compare import Comparison, compare, compared
from ggmodel.workbench.compare.modules import (
    ModuleLoss,
    SwappedSource,
    by_module,
    grid,
    modules_of,
)
from ggmodel.workbench.text_statistics import perplexity
from tests.workbench.models import STORIES

TEXT = (
    "Once upon a time, there was a little fox who lived near the river. One day, the fox found a "
    "shiny stone. It asked the owl what to do. The owl smiled and said that stones like to be seen."
)
HOW: dict[str, Any] = {"kv_type": "f32", "context_length": 32, "threads": 1, "gpu_layers": 0}
# Sums in float32 of 1536 shares, each rounded by 6e-8, of logits up to 20 with steps of 2e-6.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "q4.gguf"
    with open_gguf(STORIES) as source:
        quantize(source, path, "q4_K_M", allow_requantize=True)
    return path


@pytest.fixture(scope="module")
def pair(file: Path) -> Iterator[tuple[LoadedModel, LoadedModel]]:
    with ggmodel.load(STORIES, **HOW) as original, ggmodel.load(file, **HOW) as model:
        yield original, model


def last(*arguments: Any, **more: Any) -> Comparison:
    *_, result = compare(*arguments, **more)
    return result


def log_softmax(rows: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    return x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1))[:, None]


def by_hand(pair: tuple[LoadedModel, LoadedModel], context: int) -> np.ndarray:
    """Divergences of the second half of each chunk, float64."""
    original, _ = pair
    assert original.tokenizer is not None
    ids = original.tokenizer.encode(TEXT, parse_special=False)
    each = []
    for start in range(0, len(ids) - context + 1, context):
        chunk = [original.tokenizer.bos, *ids[start + 1 : start + context]]
        p, q = (log_softmax(m.logits(chunk)[context // 2 : -1]) for m in pair)  # type: ignore[arg-type]
        each.append((np.exp(p) * (p - q)).sum(1))
    return np.concatenate(each)


@pytest.mark.parametrize("context", [8, 17])
def test_the_second_half_of_each_chunk(pair: tuple[LoadedModel, LoadedModel], context: int):
    expected, result = by_hand(pair, context), last(*pair, TEXT, context)
    np.testing.assert_allclose(result.divergences, expected, rtol=0, atol=CLOSE)
    values = result.as_dict()
    kl = values["kl_divergence"]
    assert kl["mean"] == pytest.approx(expected.mean(), abs=CLOSE)
    error = expected.std() / np.sqrt(len(expected) - 1)
    assert kl["error"] == pytest.approx(error, abs=CLOSE)
    for name, share in {"median": 50, "90%": 90, "95%": 95, "99%": 99, "max": 100}.items():
        assert kl[name] == pytest.approx(np.percentile(expected, share), abs=CLOSE)
    assert values["tokens"] == len(expected) > 10
    places = values["by_position"]
    assert (places[0]["from"], places[-1]["to"]) == (context // 2 + 1, context - 1)
    tokens = sum(p["tokens"] for p in places)
    mean = sum(p["tokens"] * p["kl_divergence"] for p in places) / tokens
    assert (tokens, mean) == (len(expected), pytest.approx(kl["mean"]))


def test_perplexities_are_those_of_each_model(pair: tuple[LoadedModel, LoadedModel]):
    result = last(*pair, TEXT, 16).as_dict()
    for model, found in zip(pair, result["perplexity"], strict=True):
        *_, expected = perplexity(model, TEXT, 16)
        assert found["value"] == pytest.approx(expected.value, rel=CLOSE)
        assert found["error"] == pytest.approx(expected.error, rel=CLOSE)
    a, b = (p["value"] for p in result["perplexity"])
    assert result["ln_perplexity_ratio"]["mean"] == pytest.approx(np.log(b / a), abs=CLOSE)


def test_a_model_loses_nothing_beside_itself(pair: tuple[LoadedModel, LoadedModel]):
    result = last(pair[0], pair[0], TEXT, 16)
    assert result.divergences.max() == 0 and result.same_top.all()
    assert np.array_equal(*result.losses)


def test_chunks_one_by_one(pair: tuple[LoadedModel, LoadedModel]):
    results = list(compare(*pair, TEXT, 8))
    assert [r.chunks for r in results] == list(range(1, len(results) + 1))
    assert len(results) == results[0].of_chunks
    first = last(*pair, TEXT, 8, chunks=2)
    np.testing.assert_array_equal(first.divergences, results[1].divergences)


def test_a_text_shorter_than_a_context(pair: tuple[LoadedModel, LoadedModel]):
    result = last(*pair, "Once upon a time")
    assert result.positions[0] == 1 and result.of_chunks == 1
    assert len(result.divergences) == result.of_tokens - 1


def test_tokens_without_a_share_count_nothing():
    p = np.array([[0, 1, -np.inf], [0, 1, 2]], np.float32)
    q = np.array([[0, 2, -np.inf], [0, 1, -np.inf]], np.float32)
    scores = compared(p, q, np.array([0, 1], np.int32))
    a, b = log_softmax(p[:1, :2]), log_softmax(q[:1, :2])
    assert scores.divergences[0] == pytest.approx((np.exp(a) * (a - b)).sum(), abs=1e-7)
    assert scores.divergences[1] == np.inf  # what the original says may happen cannot
    assert scores.same_top.tolist() == [True, False]
    assert scores.losses[:, 0] == pytest.approx([-a[0, 0], -b[0, 0]], abs=1e-7)


def test_logits_that_are_no_numbers():
    nothing = np.full((1, 3), np.nan, np.float32)
    with pytest.raises(ComputeError, match="NaN; `ggmodel trace` shows"):
        compared(nothing, nothing, np.zeros(1, np.int32))


def test_other_tokens(
    pair: tuple[LoadedModel, LoadedModel],
    source: MemorySource,
    vary: Any,
    vocabulary: dict[str, Any],
):
    with (
        ggmodel.load(vary(source, metadata=vocabulary), **HOW) as other,
        pytest.raises(ConfigError, match=r"have other tokens .* give files of one model"),
    ):
        last(pair[0], other, TEXT, 16)


@pytest.mark.parametrize(
    ("context", "chunks", "message"),
    [
        (7, None, "chunks of 7 tokens"),
        (33, None, "context of 32"),
        (16, 0, "0 chunks; there must be at least 1"),
    ],
)
def test_what_cannot_be_cut(
    pair: tuple[LoadedModel, LoadedModel], context: int, chunks: int | None, message: str
):
    with pytest.raises(ConfigError, match=message):
        last(*pair, TEXT, context, chunks)


def test_a_model_with_a_shorter_context(pair: tuple[LoadedModel, LoadedModel], file: Path):
    with (
        ggmodel.load(file, **{**HOW, "context_length": 8}) as short,
        pytest.raises(ConfigError, match="is loaded with a context of 8; load it with"),
    ):
        last(pair[0], short, TEXT, 16)


class TestModules:
    """One module's weights at a time."""

    def test_the_loss_is_that_of_a_file_with_these_weights(
        self, pair: tuple[LoadedModel, LoadedModel]
    ):
        names = "layers.0.*.?"
        losses = {m.module: m for m in by_module(*pair, TEXT, 16, 2, names, **HOW)}
        assert [*losses] == ["layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v"]
        original, model = (m.source for m in pair)
        for module, loss in losses.items():
            name = f"blk.0.attn_{module[-1]}.weight"
            info = model.info(name)
            tensors = {
                t.name: (t.dtype, t.shape, bytes(original.data(t.name)))
                for t in original.tensors.values()
            }
            tensors[name] = info.dtype, info.shape, bytes(model.data(name))
            mixed = MemorySource(original.metadata, tensors)
            with ggmodel.load(mixed, **HOW) as by_hand:
                expected = last(pair[0], by_hand, TEXT, 16, 2)
            assert loss.kl_divergence == pytest.approx(expected.divergences.mean(), abs=1e-7)
            assert loss.kl_divergence > 0
            assert loss.same_top == expected.same_top.mean()
            assert (loss.original, loss.model) == ("Q8_0", info.dtype.name)
            assert loss.nbytes == info.nbytes

    def test_all_modules_are_the_whole(self, pair: tuple[LoadedModel, LoadedModel]):
        (loss,) = by_module(pair[0], pair[1], TEXT, 16, 9, "layers", **HOW)
        assert loss.module == "layers"
        # The embedding is Q8_0 in both.
        expected = last(*pair, TEXT, 16)
        assert loss.kl_divergence == pytest.approx(expected.divergences.mean(), abs=1e-7)

    def test_equal_weights_are_left_out(self, pair: tuple[LoadedModel, LoadedModel]):
        assert list(by_module(pair[0], pair[0], TEXT, 16, **HOW)) == []

    def test_names(self, pair: tuple[LoadedModel, LoadedModel]):
        report = pair[0].report
        every = modules_of(report)
        assert list(every)[:3] == ["embed", "layers.0.attn_norm", "layers.0.attn.q"]
        assert every["layers.1.ffn.down"] == ["blk.1.ffn_down.weight"]
        layers = modules_of(report, "layers.*")
        assert list(layers)[:2] == ["layers.0", "layers.1"] and len(layers["layers.0"]) == 9
        assert sorted(n for one in every.values() for n in one) == sorted(pair[0].source.tensors)
        with pytest.raises(ConfigError, match=r"no module with weights is called 'layer.\*'"):
            modules_of(report, "layer.*")

    def test_files_of_other_models(
        self, pair: tuple[LoadedModel, LoadedModel], source: MemorySource
    ):
        original = pair[0].source
        with pytest.raises(ConfigError, match="give files of one model"):
            SwappedSource(original, source, ["blk.0.attn_q.weight"])
        with pytest.raises(ConfigError, match="no such tensor"):
            SwappedSource(original, MemorySource({}, {}), ["blk.0.attn_q.weight"])

    def test_a_picture_by_layer(self):
        def loss(name: str, value: float) -> ModuleLoss:
            return ModuleLoss(name, "F16", "Q4_K", 1, value, 1.0)

        drawn = grid([loss("embed", 1), loss("layers.0.attn.q", 2), loss("layers.1.ffn", 3)])
        assert drawn.rows == ["embed", "layers.0", "layers.1"]
        assert drawn.columns == ["", "attn.q", "ffn"]
        n = np.nan
        np.testing.assert_array_equal(drawn.values, [[1, n, n], [n, 2, n], [n, n, 3]])
