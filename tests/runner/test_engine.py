"""Requests: slots, batches, state, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import (
    ComputeError,
    ConfigError,
    Error,
    GraphError,
    PromptError,
    TokenizerError,
    Unsupported,
)
from ggmodel.gguf import MemorySource
from ggmodel.runner import LoadedModel
from tests.golden.files import Golden

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35]


def test_logits_neither_read_nor_leave_state(model: LoadedModel, golden: Golden):
    before = model.logits(PROMPT)
    stream = model.stream(PROMPT, temperature=0, max_tokens=20)
    tokens = [next(stream).token for _ in range(5)]
    during = model.logits(PROMPT)
    tokens += [piece.token for piece in stream]
    assert before.tobytes() == during.tobytes() == model.logits(PROMPT).tobytes()
    assert tokens == model.generate(PROMPT, temperature=0, max_tokens=20).tokens


def test_closing_a_stream_frees_its_slot_and_cells(model: LoadedModel):
    for _ in range(5):
        stream = model.stream(PROMPT, temperature=0)
        next(stream)
        with pytest.raises(Error, match="all 1 sequences are in use"):
            model.generate(PROMPT, max_tokens=1)
        stream.close()
        assert (model.engine.cache.position == -1).all()
    assert len(model.generate(PROMPT, max_tokens=3).tokens) == 3


def test_interleaved_streams_equal_each_alone(source: MemorySource):
    prompts = [PROMPT, PROMPT[::-1], [7] * 20]
    with ggmodel.load(source, kv_type="f32", context_length=256) as model:
        alone = [model.generate(p, temperature=0, max_tokens=30).tokens for p in prompts]
    with ggmodel.load(source, kv_type="f32", context_length=256, parallel=3) as model:
        streams = [model.stream(p, temperature=0, max_tokens=30) for p in prompts]
        together = [[next(s).token for s in streams] for _ in range(30)]
    assert [list(tokens) for tokens in zip(*together, strict=True)] == alone


def test_streams_from_many_threads(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=256, parallel=4) as model:
        want = model.generate(PROMPT, temperature=0, max_tokens=40).tokens
        got: list[list[int]] = []

        def work() -> None:
            got.append(model.generate(PROMPT, temperature=0, max_tokens=40).tokens)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert got == [want] * 4


def test_a_prompt_longer_than_the_batch(source: MemorySource):
    prompt = (PROMPT * 12)[:115]
    with ggmodel.load(source, kv_type="f32", context_length=256, batch_size=512) as model:
        whole, after = model.logits(prompt), model.generate(prompt, max_tokens=5, temperature=0)
    with ggmodel.load(source, kv_type="f32", context_length=256, batch_size=8) as model:
        np.testing.assert_allclose(model.logits(prompt), whole, atol=1e-4)
        assert model.generate(prompt, max_tokens=5, temperature=0).tokens == after.tokens


def test_generation_stops_at_the_end_of_the_context(model: LoadedModel):
    done = model.generate([1] * 250, temperature=0)
    assert (len(done.tokens), done.finish_reason) == (6, "length")
    assert done.usage.prompt_tokens == 250
    assert model.generate([1] * 256, temperature=0).tokens == []


def test_logprobs_are_those_of_the_logits(model: LoadedModel):
    done = model.generate(PROMPT, temperature=0, max_tokens=4, logprobs=True)
    rows = model.logits(PROMPT + done.tokens)[len(PROMPT) - 1 : -1].astype(np.float64)
    want = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    assert done.logprobs is not None
    np.testing.assert_allclose(done.logprobs, want[range(4), done.tokens], atol=1e-5)
    assert model.generate(PROMPT, max_tokens=1).logprobs is None


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], PromptError, "empty"),
        ([1, 64], PromptError, "token id 64 is not in the vocabulary of 64"),
        ([-1], PromptError, "token id -1"),
        ([2**40], PromptError, "token id 1099511627776"),
        ([1] * 257, PromptError, "has 257 tokens, the context 256"),
        ("text", TokenizerError, "no vocabulary"),
        ([1, None], Unsupported, "NoneType"),
        ([1.5], Unsupported, "float"),
    ],
)
def test_bad_prompts(model: LoadedModel, prompt, error: type[Error], message: str):
    for call in (model.logits, model.generate, model.stream):
        with pytest.raises(error, match=message):
            call(prompt)
    assert len(model.generate(PROMPT, max_tokens=2).tokens) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kv_type": "q8_0"}, Unsupported),
        ({"kv_type": "nonsense"}, Unsupported),
        ({"flash_attention": "maybe"}, Unsupported),
        ({"backend": "torch"}, Unsupported),
        ({"gpu_layers": 3}, Unsupported),
        ({"rpc": ["host:1"]}, Unsupported),
        ({"mmproj": "x.gguf"}, Unsupported),
        ({"batch_size": 0}, ConfigError),
        ({"parallel": -1}, ConfigError),
        ({"context_length": 0}, ConfigError),
        ({"threads": -2}, ConfigError),
        ({"threads": 10**6}, Error),
    ],
)
def test_bad_options(source: MemorySource, options: dict, error: type[Error]):
    with pytest.raises(error):
        ggmodel.load(source, **options)


@pytest.mark.parametrize(
    "option", [{"temperature": -1}, {"top_p": 1.5}, {"min_p": -0.1}, {"top_k": -1}, {"seed": -2}]
)
def test_bad_sampling_options(model: LoadedModel, option: dict):
    with pytest.raises(ConfigError, match=next(iter(option))):
        model.generate(PROMPT, **option)
    with pytest.raises(PromptError, match="max_tokens"):
        model.generate(PROMPT, max_tokens=-1)


def broken(source: MemorySource, name: str, value: float) -> MemorySource:
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    dtype, shape, data = tensors[name]
    array = np.frombuffer(data, np.float32).copy()
    array[:] = value
    tensors[name] = (dtype, shape, array.tobytes())
    return MemorySource(dict(source.metadata), tensors)


def test_nan_logits_end_the_request_and_nothing_else(source: MemorySource):
    with ggmodel.load(broken(source, "output_norm.weight", np.nan)) as model:
        for temperature in (0, 1):
            with pytest.raises(ComputeError, match="nan"):
                model.generate(PROMPT, temperature=temperature)
        assert np.isnan(model.logits(PROMPT)).all()
        assert len(model.engine._free) == 1


def test_a_closed_model_says_so(source: MemorySource):
    model = ggmodel.load(source)
    stream = model.stream(PROMPT)
    next(stream)
    model.close()
    model.close()
    for call in (model.logits, model.generate):
        with pytest.raises(GraphError, match="closed"):
            call(PROMPT)
    with pytest.raises(Error):
        next(stream)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_opening_and_closing_a_thousand_times_leaks_nothing(source: MemorySource):
    def cycle(times: int) -> None:
        for _ in range(times):
            with ggmodel.load(source, threads=1, context_length=32, batch_size=8) as model:
                model.generate([1, 2], max_tokens=2)

    def failing(times: int) -> None:
        bad = MemorySource(dict(source.metadata), {"token_embd.weight": np.zeros((64, 64))})
        for _ in range(times):
            with pytest.raises(Error):
                ggmodel.load(bad, threads=1)

    cycle(100)
    failing(20)
    files, before = len(list(Path("/proc/self/fd").iterdir())), resident()
    cycle(900)
    failing(100)
    # A leaked cache would be 16 kB a time, a leaked graph more: over 14 MB.
    assert resident() - before < 8 << 20
    assert len(list(Path("/proc/self/fd").iterdir())) <= files
