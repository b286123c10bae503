"""Requests: slots, batches, state, and what is refused."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import (
    ComputeError,
    ConfigError,
    Error,
    GraphError,
    OutOfMemory,
    PromptError,
    TensorError,
    TokenizerError,
    Unsupported,
)
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendMemory
from ggmodel.model import Step
from ggmodel.runner import LoadedModel
from tests.golden.files import Golden

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35]


def test_logits_neither_read_nor_leave_state(model: LoadedModel, golden: Golden):
    before = model.logits(PROMPT)
    stream = model.stream(PROMPT, temperature=0, max_tokens=20)
    tokens = [next(stream).token for _ in range(5)]
    during = model.logits(PROMPT)
    tokens += [piece.token for piece in stream]
    assert before.tobytes() == during.tobytes() == model.logits(PROMPT).tobytes()
    assert tokens == model.generate(PROMPT, temperature=0, max_tokens=20).tokens


def test_steps_are_counted():
    with ggmodel.load(STORIES, parallel=2, threads=1) as model:

        def counted(work: Callable[[], object]) -> tuple[int, int]:
            before = model.engine.computed
            work()
            steps, sequences = np.subtract(model.engine.computed, before).tolist()
            return steps, sequences

        assert model.engine.computed == (0, 0)
        # The prompt's step gives the first token.
        options: Any = {"temperature": 0, "max_tokens": 4}
        assert counted(lambda: model.generate("Once upon a time", **options)) == (4, 4)
        assert counted(lambda: model.embed([[1, 2, 3], [4, 5]])) == (1, 2)
        assert counted(lambda: model.logits(PROMPT)) == (1, 1)
        texts = ["The dog", "There was a cat"]
        steps, sequences = counted(lambda: model.batch(texts, **options))
        assert 4 <= steps <= 8 and sequences == 8  # one may begin before the other


def test_steps_that_fail_are_not_counted_but_those_in_their_place(
    monkeypatch: pytest.MonkeyPatch,
):
    with ggmodel.load(STORIES, parallel=2, threads=1) as model:
        run, failed, alone = model.engine.graphs.run, list[int](), list[int]()

        def fails_together(step: Step, meanwhile: Any = None) -> np.ndarray:
            sequences = len({*step.sequences.tolist()})
            if sequences > 1:
                failed.append(sequences)
                raise ComputeError("not together")
            alone.append(sequences)
            return run(step, meanwhile)

        monkeypatch.setattr(model.engine.graphs, "run", fails_together)
        model.batch(["The dog", "There was a cat"], temperature=0, max_tokens=32)
        assert failed and model.engine.computed == (len(alone), len(alone))


def test_closing_a_stream_frees_its_slot_and_cells(model: LoadedModel):
    for _ in range(5):
        stream = model.stream(PROMPT, temperature=0)
        next(stream)
        with pytest.raises(Error, match="all 1 sequences are in use"):
            model.generate(PROMPT, max_tokens=1)
        stream.close()
        model.engine.call(lambda: None)  # after that
        (slot,) = model.engine.sequences.all
        # The computed tokens stay for a prompt that begins alike, and no more than those.
        cache: Any = model.engine.cache
        assert slot.free and (cache.table.position >= 0).sum() == len(slot.tokens)
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
        ([1, None], PromptError, "NoneType"),
        ([1.5], PromptError, "float"),
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
        ({"gpu_layers": 1.5}, ConfigError),
        ({"gpu_layers": {"CUDA9": 1}}, ConfigError),
        ({"override_tensor": {"ffn": "CUDA9"}}, ConfigError),
        ({"override_tensor": {"(": "CPU"}}, ConfigError),
        ({"rpc": ["host"]}, ConfigError),
        ({"rpc": ["host:1"], "backend": "reference"}, Unsupported),
        ({"mmproj": "x.gguf"}, ConfigError),
        ({"batch_size": 0}, ConfigError),
        ({"parallel": -1}, ConfigError),
        ({"context_length": 0}, ConfigError),
        ({"threads": -2}, ConfigError),
        ({"batch_size": True}, ConfigError),
        ({"context_length": 2**40}, OutOfMemory),
    ],
)
def test_bad_options(source: MemorySource, options: dict, error: type[Error]):
    with pytest.raises(error):
        ggmodel.load(source, **options)


def test_negative_ids_are_nobodys_images(model: LoadedModel):
    for ids in ([-1, 3], [3, -19], np.array([2, -1])):
        with pytest.raises(PromptError, match="token id -"):
            model.generate(ids)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "option",
    [
        {"num_keep": "a"},
        {"num_keep": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "3"},
        {"stop": 5},
        {"stop": [5]},
        {"top_logprobs": -2},
        {"truncate": "x"},
        {"context_shift": 1},
    ],
    ids=str,
)
def test_bad_request_options(model: LoadedModel, option: dict):
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*must be"):
        model.generate(PROMPT, **option)


@pytest.mark.parametrize(
    "option", [{"temperature": -1}, {"top_p": 1.5}, {"min_p": -0.1}, {"top_k": -1}, {"seed": -2}]
)
def test_bad_sampling_options(model: LoadedModel, option: dict):
    with pytest.raises(ConfigError, match=next(iter(option))):
        model.generate(PROMPT, **option)
    with pytest.raises(ConfigError, match="max_tokens"):
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
        assert all(slot.free and not slot.tokens for slot in model.engine.sequences.all)


def test_a_closed_model_says_so(source: MemorySource):
    model = ggmodel.load(source)
    stream = model.stream(PROMPT)
    next(stream)
    model.close()
    model.close()
    for call in (model.logits, model.generate):
        with pytest.raises(GraphError, match="closed"):
            call(PROMPT)
    with pytest.raises(Error, match="closed"):
        list(stream)


def resident() -> int:
    """Bytes of this process; memory that malloc keeps for later is given back before."""
    gc.collect()
    with suppress(AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.slow
@pytest.mark.alone
def test_opening_and_closing_500_times_leaks_nothing(
    source: MemorySource, tmp_path: Path, write_gguf, vary
):
    good = write_gguf(tmp_path / "good.gguf", source)
    truncated, text = tmp_path / "truncated.gguf", tmp_path / "text.gguf"
    truncated.write_bytes(good.read_bytes()[:-1000])
    text.write_text("no model")
    bad = [
        truncated,
        text,
        write_gguf(tmp_path / "less.gguf", vary(source, drop=["output_norm.weight"])),
        write_gguf(tmp_path / "key.gguf", vary(source, metadata={"llama.block_count": None})),
        write_gguf(tmp_path / "arch.gguf", vary(source, metadata={"general.architecture": "x"})),
    ]

    def cycle(times: int) -> None:
        for i in range(times):
            with ggmodel.load(good, threads=1, context_length=32, batch_size=8) as model:
                model.generate([1, 2], max_tokens=2)
            if i % 10 == 0:
                for path in bad:
                    with pytest.raises(Error):
                        ggmodel.load(path, threads=1)

    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    cycle(50)
    files, before = open_files(), resident()
    cycle(450)
    # A leaked cache would be 16 kB a time, a leaked mapping 330 kB: over 7 MB.
    assert resident() - before < 4 << 20
    assert open_files() - files < 9  # a leak would be 450, or 45 for each file that is refused


@pytest.mark.slow
@pytest.mark.alone
def test_a_model_that_is_dropped_is_freed(source: MemorySource):
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    gc.collect()
    before = threads()
    models = [ggmodel.load(source, threads=2, context_length=32) for _ in range(5)]
    tokens = models[0].stream(PROMPT, max_tokens=3)
    models.clear()
    gc.collect()
    assert len(list(tokens)) == 3  # a request keeps its model
    del tokens
    gc.collect()
    # The kernel takes a thread off the list a moment after it has let the one that joins it go on.
    end = time.monotonic() + 10
    while threads() > before and time.monotonic() < end:
        time.sleep(0.001)
    assert threads() <= before


def test_a_forked_child_says_that_it_cannot_compute(source: MemorySource):
    code = (
        "import os, sys, ggmodel\n"
        "model = ggmodel.load(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try:\n"
        "    model.generate([1], max_tokens=2)\n"
        "except ggmodel.Error as error:\n"
        "    os._exit(7 if 'forked' in str(error) else 8)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(STORIES)], timeout=60)
    assert done.returncode == 7


def test_output_wider_than_the_embedding_is_refused(source: MemorySource, vary):
    wide = np.zeros((80, source.tensors["output.weight"].shape[0]), np.float32)
    with pytest.raises(TensorError, match="logits for 80 tokens but takes only 64"):
        ggmodel.load(vary(source, tensors={"output.weight": wide}))


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_a_request_that_ends_in_nan_leaves_others_alone(
    source: MemorySource, flash_attention: str, vary
):
    options = {"kv_type": "f32", "flash_attention": flash_attention, "context_length": 64}
    with ggmodel.load(source, **options) as model:
        want = model.generate(PROMPT, temperature=0, max_tokens=20).tokens
    bad = next(token for token in range(64) if token not in {*PROMPT, *want})
    table = np.frombuffer(source.data("token_embd.weight"), np.float32).reshape(64, -1).copy()
    table[bad] = np.nan
    poisoned = vary(source, tensors={"token_embd.weight": table})
    with ggmodel.load(poisoned, parallel=2, **options) as model:
        stream = model.stream(PROMPT, temperature=0, max_tokens=20)
        tokens = [next(stream).token for _ in range(5)]
        for _ in range(2):
            with pytest.raises(ComputeError, match="nan"):
                model.generate([1, 2, 3, bad], temperature=0)
        tokens += [piece.token for piece in stream]
        assert tokens == want
        assert model.generate(PROMPT, temperature=0, max_tokens=20).tokens == want


def test_a_cache_that_only_fits_layer_by_layer_is_refused(source: MemorySource):
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cell = source.tensors["blk.0.attn_k.weight"].shape[1] * 4
    cells = int(0.3 * memory) // cell  # each layer's keys take 30 %, all four tensors 120 %
    with pytest.raises(OutOfMemory, match="context_length") as caught:
        ggmodel.load(source, kv_type="f32", context_length=cells)
    assert isinstance(caught.value.memory, BackendMemory)
    assert sum(caught.value.memory.cpu.cache) > memory


def test_scores_are_the_log_probabilities_of_the_prompt(model: LoadedModel):
    tokens = [*PROMPT, *PROMPT[::-1], *PROMPT]  # several batches
    logits = model.logits(tokens).astype(np.float64)
    shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = shares[np.arange(len(tokens) - 1), tokens[1:]]
    scores = model.score(tokens)
    assert scores.dtype == np.float32 and scores.shape == (len(tokens) - 1,)
    np.testing.assert_allclose(scores, want, atol=1e-5)
    assert model.score(tokens[:1]).shape == (0,)


@pytest.mark.timeout(60)
def test_a_request_whose_beginning_breaks_ends_with_the_error(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    """It waits no longer, and has no sequence yet."""

    def broken(*args: Any) -> Any:
        raise RuntimeError("a fault of the engine")

    with monkeypatch.context() as patch:
        patch.setattr(model.engine.sequences, "take", broken)
        with pytest.raises(RuntimeError, match="a fault of the engine"):
            model.generate(PROMPT, max_tokens=3)
    assert len(model.generate(PROMPT, max_tokens=3).tokens) == 3
