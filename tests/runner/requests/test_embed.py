"""Embeddings against transformers, alone and together, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ComputeError, ConfigError, PromptError, TokenizerError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.model import Input, MultimodalEmbedding
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse
from tests.golden.files import Golden

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
# Float32 sums taken in another order, as for the goldens' logits.
EXACT = 1e-8

# The blocks of llama without its head, between embedding and a dense layer on the pooled rows.
PROJECTED = """
from ggmodel import Model, gguf, register
from ggmodel.models.llama import Layer, Llama, LlamaConfig
from ggmodel.nn import Embedding, Linear, RMSNorm, Rotary

@register("llama")
class Projected(Model):
    ignore = ("output.weight",)
    config: LlamaConfig
    embed: Embedding = gguf("token_embd", shape=("width", None))
    layers: list[Layer] = gguf("blk", n="layers")
    norm: RMSNorm = gguf("output_norm", shape=("width",))
    dense: Linear = gguf("dense_2", shape=("width", None))
    rotary: Rotary
    caches, embedded, hidden = Llama.caches, Llama.embedded, Llama.hidden

    def project(self, ctx, pooled):
        return self.dense(pooled)
"""
ENCODER = (
    PROJECTED.replace("caches, embedded", "embedded").replace("Llama.caches, ", "")
    + """
    def caches(self):
        from ggmodel.kvcache import Bidirectional
        return [Bidirectional(rope=self.rotary.rope()) for _ in self.layers]
"""
)
FORWARD_ONLY = """
from ggmodel import register
from ggmodel.models.llama import Llama as Base
from ggmodel import Model

@register("llama")
class Llama(Base):
    hidden = Model.hidden

    def forward(self, ctx, batch):
        return self.head(self.norm(self.embed(batch.inputs).rows(batch.outputs)))
"""
BOTH_WAYS = """
from ggmodel import register
from ggmodel.kvcache import Bidirectional
from ggmodel.models.llama import Llama as Base

@register("llama")
class Llama(Base):
    def caches(self):
        return [Bidirectional(rope=self.rotary.rope()) for _ in self.layers]
"""


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 64, n).tolist() for n in lengths]


@pytest.fixture
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, kv_type="f32") as loaded:
        yield loaded


@pytest.mark.parametrize("batch_size", [512, 5])
@pytest.mark.parametrize("backend", ["ggml", "reference"])
def test_what_the_head_makes_of_the_rows_are_the_logits(
    source: MemorySource, golden: Golden, backend: str, batch_size: int
):
    """The head is linear, so that the mean of transformers' logits is the head's of the mean."""
    head = np.frombuffer(source.data("output.weight"), np.float32).reshape(64, 64)
    want = {
        "cls": golden.logits[0],
        "last": golden.logits[-1],
        "mean": golden.logits.mean(axis=0, dtype=np.float64),
    }
    options: dict[str, Any] = {"backend": backend, "kv_type": "f32", "batch_size": batch_size}
    with ggmodel.load(source, **options) as model:
        for pooling, logits in want.items():
            (row,) = model.embed([golden.prompt.tolist()], pooling=pooling)  # type: ignore[arg-type]
            assert row.dtype == np.float32
            assert nmse(head.astype(np.float64) @ row, logits) < EXACT


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("batch_size", [512, 16])
def test_texts_together_are_as_each_alone(
    source: MemorySource, pooling: Any, flash_attention: str, batch_size: int
):
    texts = prompts(0, [3, 40, 1, 7, 7, 2, 100, 15, 16, 17])
    options: dict[str, Any] = {"kv_type": "f32", "flash_attention": flash_attention}
    with ggmodel.load(source, context_length=128, **options) as model:
        alone = np.concatenate([model.embed([text], pooling=pooling) for text in texts])
    with ggmodel.load(source, context_length=128, batch_size=batch_size, **options) as model:
        together = model.embed(texts, pooling=pooling)
    assert together.shape == (10, 64)
    for got, want in zip(together, alone, strict=True):
        assert nmse(got, want) < EXACT


def test_several_texts_share_a_step(source: MemorySource, monkeypatch: pytest.MonkeyPatch):
    from ggmodel.runner.engine.graphs import Graphs

    steps: list[int] = []
    run = Graphs.run
    monkeypatch.setattr(Graphs, "run", lambda g, s: (steps.append(len(s.tokens)), run(g, s))[1])
    with ggmodel.load(source, kv_type="f32", batch_size=32) as model:
        model.embed(prompts(1, [8] * 6 + [70, 1, 2]))
    # The long one by itself; then four, two and those that are shorter.
    assert steps == [32, 32, 6, 32, 8 + 8 + 2 + 1]


def test_streams_go_on(model: LoadedModel):
    want = model.generate([1, 2, 3], temperature=0, max_tokens=20).tokens
    before = model.embed([[4, 5]])
    stream = model.stream([1, 2, 3], temperature=0, max_tokens=20)
    got = [next(stream).token for _ in range(5)]
    during = model.embed([[4, 5]])
    got += [piece.token for piece in stream]
    assert got == want
    assert before.tobytes() == during.tobytes()


def test_texts_get_the_tokens_that_the_vocabulary_wants(stories: LoadedModel):
    texts = ["A small fox.", ""]
    ids = [stories.tokenize(text) for text in texts]
    assert len(ids[1]) == 1  # its beginning
    assert stories.embed(texts).tobytes() == stories.embed(ids).tobytes()


def test_normalized_rows_have_length_one(stories: LoadedModel):
    texts = ["A small fox.", "The owl"]
    rows, units = stories.embed(texts), stories.embed(texts, normalize=True)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.1).all()
    np.testing.assert_allclose(units, rows / lengths, rtol=1e-6)
    assert units.dtype == np.float32


def test_zero_has_no_direction():
    from ggmodel.runner.requests.readout import normalized

    assert normalized(np.array([[0, 0], [3, 4]], np.float32)).tolist() == [
        [0, 0],
        pytest.approx([0.6, 0.8]),
    ]


@pytest.mark.parametrize(("number", "pooling"), [(0, "mean"), (1, "mean"), (2, "cls"), (3, "last")])
def test_the_file_says_how_to_pool(source: MemorySource, vary: Any, number: int, pooling: Any):
    texts = prompts(2, [5, 9])
    varied = vary(source, metadata={"llama.pooling_type": number})
    with ggmodel.load(varied, kv_type="f32") as model:
        assert model.embed(texts).tobytes() == model.embed(texts, pooling=pooling).tobytes()
        others = {"mean", "cls", "last"} - {pooling}
        for other in others:
            assert nmse(model.embed(texts), model.embed(texts, pooling=other)) > 0.01  # type: ignore[arg-type]


def test_a_file_that_ranks(source: MemorySource, vary: Any):
    with ggmodel.load(vary(source, metadata={"llama.pooling_type": 4})) as model:
        with pytest.raises(Unsupported, match="llama: the file has no head that classifies"):
            model.embed([[1]])
        assert model.embed([[1]], pooling="mean").shape == (1, 64)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([], PromptError, "there are no texts"),
        ("text", PromptError, r"embed\(\[text\]\)"),
        ([[1], []], PromptError, "text 1: the prompt is empty"),
        ([[1], [2], [1] * 257], PromptError, "text 2: the prompt has 257 tokens, the context 256"),
        ([[1], [64]], PromptError, "text 1: token id 64 is not in the vocabulary"),
        ([[1], "text"], TokenizerError, "no vocabulary"),
        ([[1], [None]], PromptError, "not of NoneType"),
    ],
)
def test_what_is_no_list_of_texts(model: LoadedModel, texts: Any, error: type, message: str):
    with pytest.raises(error, match=message):
        model.embed(texts)
    assert model.embed([[1]]).shape == (1, 64)


def test_images_are_not_embedded(model: LoadedModel):
    image = Input(0, MultimodalEmbedding(np.ones((1, 64), np.float32)))
    with pytest.raises(PromptError, match="text 1: it holds an image"):
        model.embed([[1], [1, image]])  # type: ignore[list-item]


def test_an_empty_text_without_a_token_to_begin_with(
    source: MemorySource, vary: Any, vocabulary: dict[str, Any]
):
    quiet = vary(source, metadata={**vocabulary, "tokenizer.ggml.add_bos_token": False})
    with ggmodel.load(quiet) as model, pytest.raises(PromptError, match=r"text 1: .* is empty"):
        model.embed(["abc", ""])


def test_a_pooling_that_there_is_not(model: LoadedModel):
    with pytest.raises(ConfigError, match="no pooling 'median'; there is mean, cls, last"):
        model.embed([[1]], pooling="median")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no pooling \['mean', 'rank'\]; .* or rank alone"):
        model.embed([[1]], pooling=["mean", "rank"])


def test_hidden_states_that_are_no_numbers(source: MemorySource, vary: Any):
    table = np.frombuffer(source.data("token_embd.weight"), np.float32).reshape(64, 64).copy()
    table[7] = np.nan
    with (
        ggmodel.load(vary(source, tensors={"token_embd.weight": table})) as model,
        pytest.raises(ComputeError, match="of text 1 are not finite"),
    ):
        model.embed([[1], [7]])


def test_an_architecture_without_hidden_states(source: MemorySource, tmp_path: Path):
    (tmp_path / "llama.py").write_text(FORWARD_ONLY)
    with ggmodel.load(source, models=tmp_path, strict=False) as model:
        assert model.logits([1, 2]).shape == (2, 64)
        with pytest.raises(Unsupported, match=r"llama\.py:\d+.*Llama has no embeddings"):
            model.embed([[1]])


def test_an_architecture_that_only_embeds(source: MemorySource, vary: Any, tmp_path: Path):
    (tmp_path / "llama.py").write_text(PROJECTED)
    dense = np.random.default_rng(3).normal(size=(24, 64)).astype(np.float32)
    texts = prompts(4, [5, 30, 9])
    with ggmodel.load(source, kv_type="f32") as model:
        want = model.embed(texts).astype(np.float64) @ dense.T
    varied = vary(source, tensors={"dense_2.weight": dense})
    with ggmodel.load(varied, models=tmp_path, kv_type="f32") as model:
        rows = model.embed(texts)
        assert rows.shape == (3, 24)
        assert nmse(rows, want) < EXACT
        for ask in (model.logits, model.generate, model.score):
            with pytest.raises(Unsupported, match="only embeds"):
                ask([1, 2, 3])


def test_tokens_that_see_each_other(source: MemorySource, tmp_path: Path):
    (tmp_path / "llama.py").write_text(BOTH_WAYS)
    one, other = [1, 2, 3, 4], [1, 2, 3, 5]
    with ggmodel.load(source, kv_type="f32") as model:
        causal = model.embed([one, other], pooling="cls")
    assert nmse(causal[0], causal[1]) < EXACT
    options: dict[str, Any] = {"models": tmp_path, "kv_type": "f32", "batch_size": 16}
    with ggmodel.load(source, **options) as model:
        both = model.embed([one, other], pooling="cls")
        assert nmse(both[0], both[1]) > 0.01
        assert nmse(model.embed([one], pooling="cls"), both[:1]) < EXACT
        with pytest.raises(PromptError, match="text 1 has 17 tokens, the batch 16"):
            model.embed([[1], [1] * 17])


def test_texts_of_one_length_share_a_graph(source: MemorySource, vary: Any, tmp_path: Path):
    (tmp_path / "llama.py").write_text(ENCODER)
    dense = np.random.default_rng(3).normal(size=(24, 64)).astype(np.float32)
    varied = vary(source, tensors={"dense_2.weight": dense})
    texts = prompts(4, [5, 5, 9])
    options: dict[str, Any] = {"models": tmp_path, "kv_type": "f32"}
    options |= {"batch_size": 160, "context_length": 160}
    with ggmodel.load(varied, **options) as model:
        alone = np.concatenate([model.embed([text]) for text in texts])
        graphs = model.engine.graphs
        assert (graphs.recorded, graphs.replayed) == (2, 1)
        np.testing.assert_array_equal(model.embed(texts[1:2]), alone[1:2])
        assert nmse(model.embed(texts), alone) < EXACT
        for n in range(1, 160):  # more than are kept
            model.embed([[1] * n])
        np.testing.assert_array_equal(model.embed(texts[:1]), alone[:1])
        assert len(graphs._entries) == graphs.usual == 128
        assert model.embed([[1]] * 300).shape == (300, 24)  # more than sequences of a step
