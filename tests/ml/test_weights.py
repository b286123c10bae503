"""Weights: their memory, their loading, and the end of a backend."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import (
    ConfigError,
    Error,
    FormatError,
    GraphError,
    OutOfMemory,
    TensorError,
    Unsupported,
)
from ggmodel.gguf_file import MemorySource, TensorSource, open_gguf
from ggmodel.gguf_file.values import KeyValues
from ggmodel.ml import (
    AllocationStatus,
    Backend,
    BackendMemory,
    BackendParams,
    DType,
    FlashAttention,
    Tensor,
    new_backend,
    register_backend,
)
from ggmodel.ml.ggml import measurements, transfer
from ggmodel.ml.ggml.ggml_backend import GGMLBackend
from ggmodel.ml.params import INPUT, layer_of
from ggmodel.native import ffi
from tests.ml.harness import METADATA, backend_of, blocks, nmse, normal

ONE = BackendParams(num_threads=1)


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GGUF of numpy arrays; the first tensor has an odd size on purpose."""

    def make(alignment: int = 32, **tensors: np.ndarray) -> Path:
        import gguf

        path = tmp_path / f"model-{alignment}.gguf"
        writer = gguf.GGUFWriter(path, "test")
        writer.add_block_count(2)
        if alignment != 32:
            writer.add_custom_alignment(alignment)
        for name, array in {"odd": normal(3), **tensors}.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def weight(backend: Backend, name: str) -> Tensor:
    found = backend.get(name)
    assert found is not None
    return found


def product(backend: Backend, name: str, x: np.ndarray) -> np.ndarray:
    with backend.new_context() as ctx, ctx.trace():
        y = weight(backend, name).mulmat(ctx.input().from_floats(x))
        ctx.forward(y).compute(y)
        return y.numpy()


def address(backend: Backend, node: Tensor) -> int:
    """The address of the copy that ops read."""
    assert isinstance(backend, GGMLBackend)
    with backend.new_context() as ctx, ctx.trace():
        reader = node.scale(1)
        t = backend.weights.tensor(node, reader, 0, fast=False)
    return int(ffi.cast("uintptr_t", t.data))


def test_weights_of_a_file_are_mapped(make_file: Callable[..., Path]):
    w = normal(8, 32)
    with open_gguf(make_file(w=w)) as source, new_backend(source, ONE) as backend:
        backend.load()
        node = weight(backend, "w")
        assert backend.backend_memory().mapped == sum(t.nbytes for t in source.tensors.values())
        view = source.mapped(0)
        assert view is not None
        start = int(ffi.cast("uintptr_t", ffi.from_buffer(view)))
        assert address(backend, node) == start + source.tensors["w"].offset
        np.testing.assert_array_equal(node.numpy(), w)
        x = normal(2, 32, seed=1)
        assert nmse(product(backend, "w", x), x.astype(float) @ w.T) < 1e-11


def test_weights_in_memory_are_copied():
    w = normal(8, 32)
    with backend_of({"w": w}) as backend:
        assert backend.backend_memory().mapped == 0
        assert address(backend, weight(backend, "w")) != w.ctypes.data
        x = normal(2, 32, seed=1)
        assert nmse(product(backend, "w", x), x.astype(float) @ w.T) < 1e-11


def test_weights_at_odd_offsets_are_copied(make_file: Callable[..., Path]):
    w, v = normal(8, 32), normal(4, 32, seed=2)
    with open_gguf(make_file(8, w=w, v=v)) as source, new_backend(source, ONE) as backend:
        crooked = {n for n, t in source.tensors.items() if t.offset % 32}
        assert crooked  # else this file tests nothing
        backend.load()
        straight = sum(t.nbytes for n, t in source.tensors.items() if n not in crooked)
        assert backend.backend_memory().mapped == straight
        x = normal(2, 32, seed=1)
        for name, values in (("w", w), ("v", v)):
            assert nmse(product(backend, name, x), x.astype(float) @ values.T) < 1e-11


def rearrange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no other kernel be faster than that of rearranged weights."""
    for faster in ("own_is_faster", "plain_is_faster"):
        monkeypatch.setattr(measurements, faster, lambda *of: (False,) * len(measurements.COLUMNS))


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q4_K], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_rearranged_copy_gives_the_same_products(
    dtype: DType, tied: bool, monkeypatch: pytest.MonkeyPatch
):
    rearrange(monkeypatch)
    table = blocks(dtype, normal(64, 256))
    tensors = {"output.weight": (dtype, (256, 64), table.data)}
    x = normal(5, 256, seed=1)
    plain = backend_of(tensors)
    with new_backend(MemorySource(METADATA, tensors), ONE) as backend:
        assert isinstance(backend, GGMLBackend)
        w = weight(backend, "output.weight")
        with backend.new_context() as ctx, ctx.trace():
            y = w.mulmat(ctx.input().from_floats(x))
            r = w.rows(ctx.input().from_ints([63, 0, 7]))
            ctx.forward(y, *([r] if tied else []))
            backend.allocate(ctx.graph)  # places by what the graph reads
            backend.load()
            rearranged = w.uid in backend.weights._fast
            assert rearranged == bool(backend.weights.extra_buffer_types)
            ctx.compute(*((y, r) if tied else (y,)))
        # The same blocks and rounding of activations; sums in another order.
        assert nmse(y.numpy(), product(plain, "output.weight", x)) < 1e-4
        assert nmse(y.numpy(), x.astype(float) @ table.values.T) < 1e-4
        if tied:
            np.testing.assert_array_equal(r.numpy(), table.values[[63, 0, 7]].astype("f4"))
        np.testing.assert_array_equal(w.numpy(), table.values.astype("f4"))  # of the source
    plain.close()


def test_a_weight_that_only_products_read_was_not_kept_for_others():
    table = blocks(DType.Q4_0, normal(64, 256))
    tensors = {"output.weight": (DType.Q4_0, (256, 64), table.data)}
    with new_backend(MemorySource(METADATA, tensors), ONE) as backend:
        assert isinstance(backend, GGMLBackend)
        w = weight(backend, "output.weight")
        with backend.new_context() as ctx, ctx.trace():
            ctx.forward(w.mulmat(ctx.input().zeros(DType.F32, 256, 1)))
            backend.allocate(ctx.graph)
            backend.load()
        with backend.new_context() as ctx, ctx.trace():
            r = w.rows(ctx.input().from_ints([3]))
            if w.uid in backend.weights._plain:  # a build without rearranging buffers
                ctx.compute(r)
                np.testing.assert_array_equal(r.numpy(), table.values[[3]].reshape(-1))
            else:
                with pytest.raises(Error, match=r"output\.weight.*allocate"):
                    ctx.compute(r)


# loading


def big() -> MemorySource:
    chunks = 3 * (16 << 20) // 4 // 1024 + 1  # three chunks and a bit
    tensors = {"a": np.ones((chunks, 1024), np.float32), "b": normal(64), "c": normal(64)}
    return MemorySource(METADATA, tensors)


def test_progress_is_monotonic_and_ends_at_one():
    seen: list[float] = []
    with new_backend(big(), ONE) as backend:
        backend.load(seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == 1.0 and seen.count(1.0) == 1
        assert len(seen) >= 4
        backend.load(seen.append)  # nothing is left to do
        assert seen[-1] == 1.0


def test_progress_of_a_mapped_file_ends_at_one(make_file: Callable[..., Path]):
    seen: list[float] = []
    with new_backend(make_file(w=normal(4, 32)), ONE) as backend:
        backend.load(seen.append)
    assert seen[-1] == 1.0


def test_cancelling_raises_and_loading_can_begin_anew():
    with new_backend(big(), ONE) as backend:
        calls = iter([False, False, True])
        with pytest.raises(Error, match="cancelled"):
            backend.load(cancel=lambda: next(calls))
        assert next(calls, None) is None
        seen: list[float] = []
        backend.load(seen.append)
        assert seen == sorted(seen) and seen[-1] == 1.0
        got = product(backend, "a", np.ones((1, 1024), np.float32))
        assert (got == 1024).all()


def test_a_closed_backend_says_so():
    backend = backend_of({"w": normal(4)})
    w = weight(backend, "w")
    backend.close()
    backend.close()
    assert backend.closed
    for use in (backend.load, backend.allocate, w.numpy):
        with pytest.raises(GraphError, match="closed"):
            use()


def test_a_backend_closes_the_file_it_opened_and_no_other(make_file: Callable[..., Path]):
    path = make_file(w=normal(4, 32))
    with new_backend(path, ONE) as backend:
        pass
    with pytest.raises(Error):
        backend.source.data("w")
    with open_gguf(path) as source:
        with new_backend(source, ONE):
            pass
        assert source.data("w").nbytes == 512


@pytest.mark.parametrize("name", ["ggml", "reference"])
def test_a_weight_of_a_file_that_changed_is_not_read(make_file: Callable[..., Path], name: str):
    path = make_file(w=normal(64, 1024))
    with new_backend(path, ONE, name) as backend:
        backend.load()
        node = weight(backend, "w")
        np.testing.assert_array_equal(node.numpy(), normal(64, 1024))
        os.truncate(path, 5000)
        for _ in range(2):
            with pytest.raises(FormatError, match=r"model-32\.gguf has changed on disk"):
                node.numpy()


class Wrapped(TensorSource):
    """A source by a user, which passes on no more than it must."""

    def __init__(self, inner: TensorSource):
        self.inner, self.name, self.files = inner, "wrapped", inner.files
        self.metadata, self.tensors = inner.metadata, inner.tensors

    def data(self, name: str) -> memoryview:
        return self.inner.data(name)

    def mapped(self, file: int) -> memoryview | None:
        return self.inner.mapped(file)

    def close(self) -> None:
        self.inner.close()


def test_a_wrapped_file_that_changes_gives_no_results(make_file: Callable[..., Path]):
    path, x = make_file(w=normal(64, 1024)), normal(1, 1024)
    with Wrapped(open_gguf(path)) as source, new_backend(source, ONE) as backend:
        backend.load()
        product(backend, "w", x)
        os.truncate(path, 5000)
        for _ in range(2):
            with pytest.raises(FormatError, match="file of wrapped has changed on disk"):
                product(backend, "w", x)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.alone
def test_opening_and_closing_leaks_nothing(make_file: Callable[..., Path]):
    path = make_file(w=normal(8, 1024, dtype=np.float16))
    x = normal(64, 1024)  # of which a product with halves makes 128 KiB of halves

    def once(i: int) -> None:
        with new_backend(path, BackendParams(num_threads=2)) as backend:
            if i % 3 == 0:  # a load that fails
                with pytest.raises(RuntimeError, match="stop"):
                    backend.load(stop)
                return
            backend.load()
            with backend.new_context() as ctx, ctx.trace():
                state = ctx.layer(0).zeros(DType.F32, 1 << 14)
                y = weight(backend, "w").mulmat(ctx.input().from_floats(x))
                ctx.forward(y).compute(y)
                assert state.n_elements

    def stop(share: float) -> None:
        raise RuntimeError("stop")

    for i in range(20):
        once(i)
    gc.collect()
    files, threads, memory = (
        len(os.listdir("/proc/self/fd")),
        os.listdir("/proc/self/task"),
        resident(),
    )
    for i in range(300):
        once(i)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files
    # The system drops a thread from the list a moment after `join` returns.
    end = time.monotonic() + 10
    while len(os.listdir("/proc/self/task")) > len(threads) and time.monotonic() < end:
        time.sleep(0.001)
    assert len(os.listdir("/proc/self/task")) <= len(threads)
    assert resident() - memory < 8 << 20  # one state of 64 KiB left a time would be 13 MiB


def resident_of(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked at as Linux shows it")
def test_what_was_rearranged_leaves_memory_though_the_file_is_read_ahead(
    tmp_path: Path, write_gguf: Any, monkeypatch: pytest.MonkeyPatch
):
    populate = transfer.populate

    def slowly(piece: memoryview) -> None:
        time.sleep(0.02)
        populate(piece)

    monkeypatch.setattr(transfer, "_PIECE", 1 << 20)
    monkeypatch.setattr(transfer, "populate", slowly)
    rearrange(monkeypatch)
    rows, columns = 1024, 4096
    data = np.random.default_rng(0).integers(0, 256, rows * columns // 32 * 18, np.uint8).tobytes()
    shape = (columns, rows)
    path = write_gguf(
        tmp_path / "model.gguf",
        MemorySource(METADATA, {f"blk.{i}.w": (DType.Q4_0, shape, data) for i in range(2)}),
    )
    with new_backend(path, ONE) as backend, backend.new_context() as ctx, ctx.trace():
        x = ctx.input().from_floats(normal(1, columns))
        for i in range(2):
            ctx.forward(weight(backend, f"blk.{i}.w").mulmat(x))
        backend.allocate(ctx.graph)
        assert isinstance(backend, GGMLBackend)
        assert {copy.kind for copy in backend.weights.copies} == {"fast"}
        end = time.monotonic() + 10
        while not resident_of(path) and time.monotonic() < end:
            time.sleep(0.001)
        assert resident_of(path) > 0
        backend.load()
        time.sleep(0.2)  # whoever still read would be done
        # Pages that a weight shares with its neighbours stay.
        assert resident_of(path) <= 8 * 4096


def test_more_weights_than_memory_are_an_error(monkeypatch: pytest.MonkeyPatch):
    source = MemorySource(METADATA, {"w": normal(4, 32)})
    with new_backend(source, ONE) as backend:
        monkeypatch.setattr("ggmodel.ml.ggml.memory.physically_possible", lambda n: False)
        with pytest.raises(OutOfMemory, match="512 bytes for weight 'w'") as caught:
            backend.load()
        memory = caught.value.memory
        assert isinstance(memory, BackendMemory)
        assert memory.cpu.weights == [0, 0, 512]
        assert memory.cpu.status is AllocationStatus.FAILED
        monkeypatch.undo()
        backend.load()
        np.testing.assert_array_equal(weight(backend, "w").numpy(), normal(4, 32))


# making backends


def test_backends_are_registered_once():
    def factory(source: Any, params: Any) -> Backend:
        raise AssertionError

    register_backend("test_weights", factory)
    with pytest.raises(Error, match="already registered"):
        register_backend("test_weights", factory)
    with pytest.raises(Unsupported, match="ggml"):
        new_backend(MemorySource(METADATA, {}), name="nothing")


@pytest.mark.parametrize(("given", "want"), [("auto", -1), ("ON", 1), ("off", 0), (1, 1), (-1, -1)])
def test_flash_attention_is_parsed(given: str | int, want: int):
    assert FlashAttention.parse(given) == want


@pytest.mark.parametrize("wrong", ["", "yes", 2, None])
def test_wrong_flash_attention_is_an_error(wrong: Any):
    with pytest.raises(Unsupported):
        FlashAttention.parse(wrong)


@pytest.mark.parametrize("count", [-1, 1 << 31, 1 << 60, "two", 2.5])
def test_an_absurd_block_count_is_an_error(count: Any):
    source = MemorySource({**METADATA, "test.block_count": count}, {"w": normal(4)})
    with pytest.raises(ConfigError, match=r"test\.block_count"):
        new_backend(source)


def test_a_file_without_an_architecture_is_an_error():
    with pytest.raises(ConfigError, match=r"general\.architecture"):
        new_backend(MemorySource({}, {"w": normal(4)}))


# memory


def test_the_report_counts_by_layer():
    tensors = {
        "token_embd.weight": normal(4, 8),
        "blk.0.a": normal(16),
        "blk.1.a": normal(32),
        "blk.1.b": normal(1),
        "output_norm.weight": normal(8),
    }
    with backend_of(tensors) as backend, backend.new_context() as ctx:
        ctx.layer(1).zeros(DType.F16, 10)
        ctx.layer(0).zeros(DType.Q8_0, 32)
        memory = backend.backend_memory()
        assert memory.input_weights == 128
        # Tensors begin at multiples of 32 bytes: one of 4 bytes takes 32, one of 34 takes 64.
        assert memory.cpu.weights == [64, 160, 32]
        assert memory.cpu.cache == [64, 32, 0]
        assert memory.size() == 128 + 256 + 96 + memory.cpu.graph
        ctx.close()
        assert backend.backend_memory().cpu.cache == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("token_embd.weight", INPUT),
        ("position_embd.weight", INPUT),
        ("token_types.weight", INPUT),
        ("token_embd_norm.weight", INPUT),
        ("blk.0.attn_q.weight", 0),
        ("blk.3.ffn_down.bias", 3),
        ("blk.10.x", 10),
        ("blk.99.x", 12),
        ("output.weight", 12),
        ("output_norm.weight", 12),
        ("cls.weight", 12),
        ("v.blk.3.attn_q.weight", 12),
        ("a.blk.3.attn_q.weight", 12),
        ("mm.0.weight", 12),
        ("dense.0.weight", 12),
        ("blk.x.weight", 12),
        ("blk", 12),
        ("blk.", 12),
        ("blk0.weight", 12),
        ("token_embd2.weight", 12),
        ("x.token_embd.weight", 12),
        ("", 12),
        ("blk." + "9" * 6000 + ".x", 12),
    ],
)
def test_placement_is_by_whole_segments(name: str, layer: int):
    assert layer_of(name, 12) == layer


# metadata

KEYS = {
    "general.architecture": "arch",
    "arch.count": 4,
    "arch.rate": 0.5,
    "arch.flag": True,
    "arch.name": "n",
    "arch.list": [1, 2],
    "general.size": 7,
    "tokenizer.n": 8,
    "clip.vision.count": 9,
}


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("count", int, 4),
        ("count", float, 4.0),
        ("count", list, [4]),
        ("rate", float, 0.5),
        ("flag", bool, True),
        ("name", str, "n"),
        ("list", list, [1, 2]),
        ("general.size", int, 7),
        ("tokenizer.n", int, 8),
        ("clip.vision.count", int, 9),
        ("missing", int, None),
        ("general.missing", str, None),
    ],
)
def test_keys_are_looked_up_below_the_architecture(key: str, kind: type, value: object):
    found = KeyValues(MemorySource(KEYS, {}).metadata).get(key, kind)
    assert found == value and (value is None or type(found) is kind)


@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        ("count", str, ("arch.count", "a string", "int")),
        ("count", bool, ("arch.count", "a boolean", "int")),
        ("rate", int, ("arch.rate", "an integer", "float")),
        ("flag", int, ("arch.flag", "an integer", "bool")),
        ("flag", float, ("arch.flag", "a number", "bool")),
        ("name", int, ("arch.name", "an integer", "str")),
        ("list", int, ("arch.list", "an integer", "list")),
        ("general.size", str, ("general.size", "a string", "int")),
    ],
)
def test_a_key_of_the_wrong_type_is_named(key: str, kind: type, words: tuple[str, ...]):
    keys = KeyValues(MemorySource(KEYS, {}).metadata, "file.gguf")
    with pytest.raises(ConfigError) as caught:
        keys.get(key, kind)
    for word in (*words, "file.gguf"):
        assert word in str(caught.value)


def test_a_dtype_a_method_cannot_take_names_the_weight():
    with backend_of({"w": normal(4)}) as backend, backend.new_context() as ctx, ctx.trace():
        w = weight(backend, "w")
        with pytest.raises(TensorError, match="'w'"):
            w.rows(w)
