"""The interpreter: graphs beyond their single ops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from ggmodel.errors import ComputeError, Error, GraphError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import AllocationStatus, Backend, BackendParams, Context, DType, new_backend
from tests.ml.harness import METADATA, backend_of, blocks, normal

QUANTISED = blocks(DType.Q8_0, normal(6, 64))


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    tensors = {
        "token_embd.weight": normal(10, 8),
        "blk.1.w": normal(16, 8, seed=1),
        "output.weight": (DType.Q8_0, (64, 6), QUANTISED.data),
    }
    with backend_of(tensors, name="reference") as backend:
        yield backend


def weight(backend: Backend, name: str):
    found = backend.get(name)
    assert found is not None
    return found


def test_it_runs_without_ggml():
    code = (
        "import sys, numpy as np\n"
        "from ggmodel.gguf_file import MemorySource\n"
        "from ggmodel.ml import new_backend\n"
        "source = MemorySource({'general.architecture': 'x'}, {'w': np.ones((2, 3), 'f4')})\n"
        "with new_backend(source, name='reference') as b, b.new_context() as c, c.trace():\n"
        "    y = b.get('w').mulmat(c.input().from_floats([1, 2, 3]))\n"
        "    c.forward(y).compute(y)\n"
        "    assert y.floats().tolist() == [6, 6]\n"
        "assert 'ggmodel.native' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_feeds_are_filled_and_host_data_read_anew_for_each_run(backend: Backend, ctx: Context):
    feed = ctx.feed(lambda step: step, DType.F32, 3)
    host = ctx.input().from_floats([1, 2, 3])
    out = feed + host
    ctx.forward(out)
    executable = backend.compile(ctx.graph, (out,))
    for step in (1.0, np.array([1, 10, 100], np.float32)):
        for values in ([1, 2, 3], [-1, 0, 1]):
            host.from_floats(values)
            executable.run(step)
            np.testing.assert_array_equal(executable.value(out).ravel(), step + np.array(values))


def test_views_share_the_memory_of_what_they_view(backend: Backend, ctx: Context):
    x = ctx.input().from_floats(normal(4, 6)).duplicate()
    view = x.permute(1, 0, 2, 3).slice(0, 1, 3)  # columns of which are rows 1 and 2 of x
    before = view.contiguous()
    ctx.forward(before)
    ctx.forward(ctx.input().from_floats(np.zeros((6, 2))).copy(view))
    after = view.contiguous()
    ctx.forward(after)
    executable = backend.compile(ctx.graph, (before, after, x, view))
    executable.run()
    want = normal(4, 6)
    np.testing.assert_array_equal(executable.value(before)[0, 0], want[1:3].T)
    assert not executable.value(after).any()
    assert not executable.value(view).any()
    want[1:3] = 0
    np.testing.assert_array_equal(executable.value(x)[0, 0], want)


def test_writes_happen_in_the_order_of_forward(ctx: Context):
    x = ctx.input().from_floats([0, 0]).duplicate()
    one, two = (ctx.input().from_floats([v, v]) for v in (1, 2))
    for written, seen in ((one, 1), (two, 2)):
        ctx.forward(written.copy(x))
        read = x.scale(1)
        ctx.forward(read).compute(read)
        assert read.floats().tolist() == [seen, seen]


def test_states_outlive_graphs(backend: Backend):
    with backend.new_context() as keep:
        state = keep.layer(1).zeros(DType.F16, 4, 3)
        begun = keep.layer(0).from_floats([5, 6])
        for row in (2, 0):
            with backend.new_context() as ctx, ctx.trace():
                ids = ctx.input().from_bytes(DType.I64, np.array([row], np.int64).tobytes(), 1)
                values = ctx.input().from_floats(np.full((1, 4), row + 1))
                ctx.forward(state.set_rows(values, ids)).compute()
        want = [[1] * 4, [0] * 4, [3] * 4]
        np.testing.assert_array_equal(state.numpy(), want)
        assert begun.floats().tolist() == [5, 6]
        memory = backend.backend_memory()
        assert (memory.cpu.cache[1], memory.cpu.cache[0]) == (24, 8)
    assert sum(backend.backend_memory().cpu.cache) == 0
    with backend.new_context() as ctx, ctx.trace():
        read = state.cast(DType.F32)
        with pytest.raises(GraphError, match="freed"):
            ctx.forward(read).compute(read)


def test_only_outputs_keep_their_values(backend: Backend, ctx: Context):
    x = ctx.input().from_floats(normal(3))
    middle = x.scale(2)
    out = middle.scale(2)
    ctx.forward(out)
    executable = backend.compile(ctx.graph, (out,))
    executable.run()
    np.testing.assert_array_equal(executable.value(x).ravel(), normal(3))
    with pytest.raises(GraphError, match="name it as an output"):
        executable.value(middle)
    kept = backend.compile(ctx.graph, (middle, out))
    kept.run()
    np.testing.assert_array_equal(kept.value(middle).ravel(), normal(3) * 2)


def test_bad_indices_are_refused_before_anything_is_written(backend: Backend, ctx: Context):
    state = ctx.layer(0).zeros(DType.F32, 2)
    ids = ctx.feed(lambda step: step, DType.I32, 2)
    ctx.forward(ctx.input().from_floats([1, 1]).copy(state))
    out = weight(backend, "token_embd.weight").rows(ids)
    ctx.forward(out)
    executable = backend.compile(ctx.graph, (out,))
    for bad in ([0, 10], [-1, 0]):
        with pytest.raises(ComputeError, match="selects rows"):
            executable.run(np.array(bad, np.int32))
        assert not state.floats().any()
    executable.run(np.array([9, 0], np.int32))
    np.testing.assert_array_equal(executable.value(out)[0, 0], normal(10, 8)[[9, 0]])


def test_weights_are_read_from_the_source(backend: Backend, ctx: Context):
    w = weight(backend, "output.weight")
    assert w.bytes() == QUANTISED.data
    np.testing.assert_array_equal(w.floats(), QUANTISED.values.astype(np.float32).ravel())
    part = w.slice(1, 2, 4).cast(DType.F32)
    ctx.forward(part).compute(part)
    np.testing.assert_array_equal(part.numpy(), QUANTISED.values[2:4])


def test_memory(backend: Backend, ctx: Context):
    memory = backend.backend_memory()
    assert memory.input_weights == 10 * 8 * 4
    assert memory.cpu.weights == [0, 16 * 8 * 4, len(QUANTISED.data)]
    assert memory.cpu.status is AllocationStatus.ALLOCATED and not memory.mapped
    out = ctx.input().from_floats(normal(1000))
    for _ in range(5):
        out = out.scale(2)
    ctx.forward(out)
    before = backend.backend_memory().cpu.graph
    backend.reserve(ctx.graph)
    # The input and two results at a time.
    assert backend.backend_memory().cpu.graph == max(before, 12_000)


def test_attention_is_fused_where_that_is_asked_for(reference: Backend, flash_reference: Backend):
    assert not reference.flash_attention and reference.cache_config.permuted_v
    assert flash_reference.flash_attention and not flash_reference.cache_config.permuted_v
    with new_backend(MemorySource(METADATA, {}), name="reference") as backend:
        assert not backend.flash_attention


def test_loading():
    source = MemorySource(METADATA, {"w": normal(4)})
    with new_backend(source, name="reference") as backend:
        shares: list[float] = []
        with pytest.raises(Error, match="cancelled"):
            backend.load(shares.append, lambda: True)
        backend.load(shares.append)
        assert shares == [1.0]
    dry = BackendParams(alloc_memory=False)
    with new_backend(source, dry, "reference") as backend, backend.new_context() as ctx:
        state = ctx.layer(0).zeros(DType.F32, 1 << 40)
        assert backend.backend_memory().cpu.cache[0] == 4 << 40
        with pytest.raises(GraphError, match="alloc_memory"):
            backend.load()
        with pytest.raises(GraphError, match="no value"):
            state.raw()


def test_a_closed_backend_says_so():
    backend = backend_of({"w": normal(4)}, name="reference")
    ctx = backend.new_context()
    with ctx.trace():
        out = weight(backend, "w").scale(2)
    ctx.forward(out)
    executable = backend.compile(ctx.graph, (out,))
    executable.run()
    backend.close()
    backend.close()
    assert backend.closed and not executable.valid
    for use in (
        executable.run,
        lambda: executable.value(out),
        lambda: backend.compile(ctx.graph, ()),
        lambda: weight(backend, "w").raw(),
        backend.load,
    ):
        with pytest.raises(GraphError, match="closed"):
            use()
    executable.close()
