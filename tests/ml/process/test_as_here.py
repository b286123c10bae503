"""A backend in a process computes and refuses what the same backend does here.

So do the tests of contexts, indices and replay, which run on both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from ggmodel.errors import FormatError
from ggmodel.gguf_file import (
    GGUF,
    JoinedSource,
    MemorySource,
    TensorInfo,
    TensorSource,
    open_gguf,
)
from ggmodel.ml import Backend, BackendParams, DType, FlashAttention, Tensor, new_backend
from ggmodel.ml.process import ProcessBackend, RunnerProcess
from ggmodel.model import config_class, fill, find
from ggmodel.runner.engine.engine import Engine
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import source_of
from tests.conftest import WriteGGUF
from tests.golden.files import GREEDY, load_golden
from tests.ml.conftest import Make
from tests.ml.harness import METADATA, Blocks, backend_of, blocks, normal, tensor


def attention(backend: Backend) -> list[bytes]:
    """Two steps on a cache that they write in place, with quantised weights: raw results."""
    d, heads, cells = 32, 2, 256
    w = backend.get("q")
    assert w is not None
    results = []
    with backend.new_context() as ctx, ctx.trace():
        keys = ctx.layer(0).zeros(DType.F16, d * heads, cells)
        values = ctx.layer(1).zeros(DType.F16, d * heads, cells)
        x = ctx.feed(lambda step: normal(3, 64, seed=step), DType.F32, 64, 3)
        cells_of = ctx.feed(lambda step: np.arange(3) + 3 * step, DType.I32, 3)
        mask = ctx.feed(
            lambda step: np.where(np.arange(cells) < 3 * step + 3, 0, -np.inf),
            DType.F16 if backend.flash_attention else DType.F32, cells, 3,
        )  # fmt: skip
        q = w.mulmat(x)
        ctx.forward(keys.set_rows(q, cells_of), values.set_rows(q.sqr(), cells_of))
        out = q.reshape(d, heads, 3).scaled_dot_product_attention(
            keys.reshape(d, heads, cells).cast(DType.F32),
            values.reshape(d, heads, cells).cast(DType.F32),
            mask, scale=0.2, cache_config_applied=False,
        )  # fmt: skip
        ctx.forward(out)
        executable = backend.compile(ctx.graph, (out, q))
        for step in range(2):
            executable.run(step)
            results += [executable.value(out).tobytes(), executable.value(q).tobytes()]
        results += [keys.bytes(), values.bytes()]
    return results


@pytest.mark.parametrize("name", ["ggml", "reference"])
@pytest.mark.parametrize("flash", [FlashAttention.OFF, FlashAttention.ON])
def test_a_cache_bit_for_bit(shared: RunnerProcess, name: str, flash: FlashAttention):
    q = blocks(DType.Q8_0, normal(64, 64))
    source = MemorySource(METADATA, {"q": (DType.Q8_0, (64, 64), q.data)})
    params = BackendParams(num_threads=1, flash_attention=flash)
    with (
        new_backend(source, params, name) as here,
        new_backend(source, params, name, runner=shared) as there,
    ):
        assert isinstance(there, ProcessBackend)
        assert there.flash_attention == here.flash_attention
        assert there.cache_config == here.cache_config
        here.load()
        there.load()
        assert attention(there) == attention(here)
        assert there.backend_memory().cpu.weights == here.backend_memory().cpu.weights
        assert there.backend_devices() == here.backend_devices() == []


def test_a_reserved_graph_counts_as_here(shared: RunnerProcess, in_process: Make):
    reports = []
    for backend in (backend_of(), in_process(shared)):
        with backend, backend.new_context() as ctx, ctx.trace():
            ctx.layer(1).zeros(DType.F16, 64, 4)
            x = ctx.feed(lambda step: step, DType.F32, 1000)
            ctx.forward(x.sqr())
            ctx.reserve()
            reports.append(backend.backend_memory())
    assert reports[0] == reports[1]
    assert reports[0].cpu.graph and reports[0].cpu.cache[1] == 512


def test_a_long_chain(backend: Backend):
    """Longer than Python's stack is deep."""
    with backend.new_context() as ctx, ctx.trace():
        y = ctx.input().from_floats([1.0])
        for _ in range(min(ctx.max_graph_nodes(), sys.getrecursionlimit())):
            y = y.scale(1)
        ctx.compute(y)
        assert y.floats().tolist() == [1]


def test_values_of_all_kinds(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        host = ctx.input().from_floats([1, 2, 3])
        q = tensor(ctx, blocks(DType.Q4_0, normal(2, 64)))
        fed = ctx.feed(lambda step: step, DType.I32, 2)
        empty = ctx.input().from_floats([])
        middle = host.scale(2)
        turned = tensor(ctx, normal(2, 3)).permute(1, 0)
        y, z, e = middle.sqr(), q.contiguous(), empty.scale(2)
        ctx.forward(y, z, turned, e, fed.cast(DType.F32))
        executable = backend.compile(ctx.graph, (y, z, turned, e, host, y))
        executable.run([7, 8])
        assert executable.value(y).tolist() == [[[[4, 16, 36]]]]
        assert executable.value(z).tobytes() == q.bytes()
        assert executable.value(turned).reshape(3, 2).tolist() == normal(2, 3).T.tolist()
        assert executable.value(e).size == 0
        assert executable.value(host).reshape(-1).tolist() == [1, 2, 3]
        assert executable.value(fed).reshape(-1).tolist() == [7, 8]
        assert executable.value(y).flags.writeable


def test_weights_are_read_here(shared: RunnerProcess, in_process: Make):
    tensors = {"w": normal(2, 3), "q": (DType.Q8_0, (32, 2), bytes(range(68)))}
    with in_process(shared, tensors) as backend:
        w, q = backend.get("w"), backend.get("q")
        assert isinstance(w, Tensor) and isinstance(q, Tensor) and backend.get("x") is None
        np.testing.assert_array_equal(w.numpy(), tensors["w"])
        assert q.bytes() == bytes(range(68))


# sources


class Odd(TensorSource):
    """A source of a class that only this process has."""

    def __init__(self, inner: TensorSource):
        self.inner, self.name, self.files = inner, "odd", inner.files
        self.metadata, self.tensors = inner.metadata, inner.tensors

    def data(self, name: str) -> memoryview:
        return self.inner.data(name)

    def mapped(self, file: int) -> memoryview | None:
        return self.inner.mapped(file)

    def info(self, name: str) -> TensorInfo:
        return self.inner.info(name)

    def close(self) -> None:
        self.inner.close()


def doubled(source: TensorSource, runner: RunnerProcess, name: str = "w") -> np.ndarray:
    """Twice a tensor, computed in the process."""
    with new_backend(source, BackendParams(num_threads=1), runner=runner) as backend:
        backend.load()
        tensor = backend.get(name)
        assert tensor is not None
        with backend.new_context() as ctx, ctx.trace():
            y = tensor.scale(2)
            ctx.compute(y)
            return y.numpy()


KEYS = {
    **METADATA,
    "test.numbers": np.arange(3, dtype=np.uint16),
    "test.nested": [[1, 2], [3]],
    "test.none": [],
    "tokenizer.ggml.tokens": ["a", "ü"],
    "test.flags": [True, False],
}


@pytest.mark.parametrize("kind", ["memory", "file", "joined", "odd", "large"])
def test_sources(kind: str, shared: RunnerProcess, tmp_path: Path, write_gguf: WriteGGUF):
    w = normal(300, 1000) if kind == "large" else normal(4, 32)
    no_text = {"test.bytes": [b"\xff\x00"]} if kind == "memory" else {}
    source: TensorSource = MemorySource({**KEYS, **no_text}, {"w": w})
    if kind == "file":
        source = GGUF(write_gguf(tmp_path / "w.gguf", source))
    elif kind == "joined":
        other = write_gguf(tmp_path / "o.gguf", MemorySource(METADATA, {"x": normal(32)}))
        source = JoinedSource(GGUF(other), source)
    elif kind == "odd":
        source = Odd(GGUF(write_gguf(tmp_path / "w.gguf", source)))
    with source:
        np.testing.assert_array_equal(doubled(source, shared), 2 * w)
        if kind == "joined":
            np.testing.assert_array_equal(doubled(source, shared, "x"), 2 * normal(32))


def test_a_relative_path(
    shared: RunnerProcess, tmp_path: Path, write_gguf: WriteGGUF, monkeypatch: pytest.MonkeyPatch
):
    write_gguf(tmp_path / "w.gguf", MemorySource(METADATA, {"w": normal(32)}))
    monkeypatch.chdir(tmp_path)
    with open_gguf("w.gguf") as source:
        np.testing.assert_array_equal(doubled(source, shared), 2 * normal(32))
        (tmp_path / "w.gguf").unlink()
        with pytest.raises(FormatError, match=re.escape(str(tmp_path / "w.gguf"))):
            new_backend(source, runner=shared)


# a model


def test_batches_to_reserve(shared: RunnerProcess):
    params = BackendParams(num_threads=1, flash_attention=FlashAttention.ON)
    with new_backend(MemorySource(METADATA, {}), params, runner=shared) as backend:
        assert [backend.batches_to_reserve(n) for n in (512, 63, 1)] == [[1], [1], []]


def test_a_llama(shared: RunnerProcess):
    golden = load_golden("llama", "plain_gqa")
    source = source_of(golden)
    results = []
    for runner in (None, shared):
        params = BackendParams(num_threads=1, flash_attention=FlashAttention.OFF)
        with new_backend(source, params, runner=runner) as backend:
            architecture = find("llama")
            model = architecture(config_class(architecture).read(backend.config))
            fill(model, backend, source.tensors, "llama", architecture.ignore)
            options = {"context_length": 256, "batch_size": 4, "parallel": 1}
            engine = Engine(model, backend, kv_type=DType.F32, **options)
            engine.backend.allocate(*engine.memory_plan.graphs)
            engine.memory_plan.reserve()
            backend.load()
            tokens = golden.prompt
            with Scoring(engine).sequence() as sequence:
                row = Scoring(engine).extend(sequence, tokens, 0)
                for _ in range(GREEDY):
                    tokens = np.append(tokens, np.int32(row.argmax()))
                    row = Scoring(engine).extend(sequence, tokens[-1:], len(tokens) - 1)
            results.append((tokens.tolist(), Scoring(engine).all_logits(tokens).tobytes()))
            assert engine.graphs.replayed > engine.graphs.recorded
            engine.close()
    assert results[0] == results[1]
    assert results[1][0] == [*golden.prompt, *golden.greedy]


def test_blocks_survive(backend: Backend):
    value = blocks(DType.Q6_K, normal(3, 256))
    assert isinstance(value, Blocks)
    with backend.new_context() as ctx, ctx.trace():
        y = tensor(ctx, value).cast(DType.F32)
        ctx.compute(y)
        np.testing.assert_array_equal(y.numpy(), value.values.astype(np.float32))
