"""The choice of kernels: one measurement, and the copy of a weight for a product."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import OutOfMemory, Unsupported
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.ml import Backend, BackendParams, DType, Optimize, new_backend
from ggmodel.ml.ggml import attention, measurements
from ggmodel.ml.ggml.ggml_backend import GGMLBackend
from ggmodel.ml.ggml.weights import extra_buffer_types
from ggmodel.native import ffi, lib
from tests.ml.harness import METADATA, Blocks, blocks, nmse, normal

MANY, FEW = 16, 1
NOWHERE, EVERYWHERE = ((faster,) * len(measurements.COLUMNS) for faster in (False, True))
PLAIN_FOR_MANY = (False, False, False, True, True, True, True)


@pytest.fixture(autouse=True)
def ggml_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our own kernels, which test_products.py tests."""
    monkeypatch.setattr(measurements, "own_is_faster", lambda dtype: NOWHERE)
    monkeypatch.setattr(attention, "instructions", attention.ANY)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder of remembered results, with nothing decided yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measurements, "_decided", {})
    return tmp_path / "ggmodel" / "native"


@pytest.fixture
def rearranging() -> Any:
    """The buffer type that rearranges Q4_0 on this processor."""
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    types = extra_buffer_types(cpu)
    if not types:
        pytest.fail("this ggml rearranges nothing: build one with GGML_CPU_REPACK")
    return types[-1]


def test_a_number_of_columns_counts_as_the_next_lower_one_tried():
    assert measurements.COLUMNS == (1, 2, 4, 9, 16, 64, 512)
    at = [measurements.at(PLAIN_FOR_MANY, n) for n in (0, 1, 3, 8, 9, 15, 512)]
    assert at == [False, False, False, False, True, True, True]


def test_one_column_is_tried_on_weights_that_fill_no_cache():
    with measurements.Bench() as bench:
        for columns, least in ((1, 64 << 20), (4, 0)):
            timed = measurements._product(bench, DType.Q8_0, columns)
            weight = lib.ggml_get_first_tensor(timed.weights_ctx)
            assert abs(lib.ggml_nbytes(weight) - least) < 1 << 20


@pytest.mark.parametrize(
    ("first", "second", "ours", "stored"),
    [(1, 2, True, True), (1, 1, True, False), (1, 0.95, True, False), (1, 0.85, False, False)],
)
def test_ours_yields_to_a_clearly_faster_kernel_and_a_rearranged_copy_too(
    rearranging: Any,
    monkeypatch: pytest.MonkeyPatch,
    first: float,
    second: float,
    ours: bool,
    stored: bool,
):
    monkeypatch.setattr(
        measurements.Bench, "seconds", lambda _, pairs: [[first, second] for _ in pairs]
    )
    every = len(measurements.COLUMNS)
    assert measurements._measure_own(DType.Q4_0) == [ours] * every
    assert measurements._measure(DType.Q4_0, rearranging, (False,) * every) == [stored] * every


def test_a_tried_weight_has_the_bytes_of_no_single_scale():
    """ggml is faster with weights of zeros than with any model's."""
    with measurements.Bench() as bench:
        for own in (True, False):
            timed = measurements._product(bench, DType.Q8_0, 1, own=own)
            weight = lib.ggml_get_first_tensor(timed.weights_ctx)
            values = np.frombuffer(ffi.buffer(weight.data, lib.ggml_nbytes(weight)), np.uint8)
            scales = np.ascontiguousarray(values.reshape(-1, 34)[:, :2]).view(np.float16)
            assert len(np.unique(scales)) > 500
            assert 0.005 < scales.min() < scales.max() < 2


def test_without_memory_for_a_trial_the_file_stays_as_it_is(
    cache: Path, rearranging: Any, monkeypatch: pytest.MonkeyPatch
):
    def measure(*args: Any) -> list[bool]:
        raise OutOfMemory("none is left")

    monkeypatch.setattr(measurements, "_measure", measure)
    assert measurements.plain_is_faster(DType.Q4_0, rearranging) == NOWHERE
    assert not list(cache.glob("*"))


def test_a_dtype_is_measured_once(cache: Path, rearranging: Any, monkeypatch: pytest.MonkeyPatch):
    first = measurements.plain_is_faster(DType.Q4_0, rearranging)
    assert len(first) == len(measurements.COLUMNS)
    (file,) = cache.glob("kernels-*.json")
    assert list(json.loads(file.read_text()).values()) == [list(first)]
    monkeypatch.setattr(measurements, "_measure", lambda *args: pytest.fail("measured again"))
    measurements._decided.clear()
    assert measurements.plain_is_faster(DType.Q4_0, rearranging) == first


def test_a_user_without_a_home_remembers_nothing(
    cache: Path, homeless: None, rearranging: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measurements, "_measure", lambda *args: list(PLAIN_FOR_MANY))
    assert measurements.plain_is_faster(DType.Q4_0, rearranging) == PLAIN_FOR_MANY
    assert not cache.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"CPU_REPACK Q4_0 0": 7}', "\xff"])
def test_what_was_remembered_badly_is_measured_again(
    cache: Path, rearranging: Any, monkeypatch: pytest.MonkeyPatch, text: str
):
    monkeypatch.setattr(measurements, "_measure", lambda *args: list(PLAIN_FOR_MANY))
    measurements.plain_is_faster(DType.Q4_0, rearranging)
    (file,) = cache.glob("kernels-*.json")
    file.write_text(text, encoding="latin-1")
    measurements._decided.clear()
    assert measurements.plain_is_faster(DType.Q4_0, rearranging) == PLAIN_FOR_MANY
    assert json.loads(file.read_text())["CPU_REPACK Q4_0 0"] == list(PLAIN_FOR_MANY)


def test_nothing_need_be_remembered(cache: Path, rearranging: Any):
    cache.parent.mkdir(parents=True)
    cache.write_text("where the folder should be")
    assert len(measurements.plain_is_faster(DType.Q4_0, rearranging)) == len(measurements.COLUMNS)
    assert cache.read_text() == "where the folder should be"


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[bool]], None]:
    """Replaces the measurement of kernels."""

    def say(plain: Sequence[bool]) -> None:
        monkeypatch.setattr(measurements, "plain_is_faster", lambda *args: tuple(plain))

    return say


@pytest.fixture
def table() -> Blocks:
    return blocks(DType.Q4_0, normal(64, 256))


def products(backend: Backend) -> dict[int, np.ndarray]:
    """The copies that products of few and many columns read of the only weight; by columns."""
    results = {}
    w = backend.get("w")
    assert w is not None
    contexts = [backend.new_context() for _ in range(2)]
    outputs = []
    for ctx, n in zip(contexts, (FEW, MANY), strict=True):
        with ctx.trace():
            outputs.append(w.mulmat(ctx.input().from_floats(normal(n, 256, seed=n))))
            ctx.forward(outputs[-1])
    backend.allocate(*(ctx.graph for ctx in contexts))
    backend.load()
    for ctx, y in zip(contexts, outputs, strict=True):
        ctx.compute(y)
        results[y.dim(1)] = y.numpy().reshape(y.dim(1), -1)
        ctx.close()
    return results


def kinds(backend: Backend) -> set[str]:
    assert isinstance(backend, GGMLBackend)
    return {copy.kind for copy in backend.weights.copies if copy.node.name == "w"}


@pytest.fixture
def mapped(tmp_path: Path, table: Blocks) -> Path:
    import gguf

    path = tmp_path / "w.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_block_count(2)
    raw = np.frombuffer(table.data, np.uint8).reshape(64, -1)
    writer.add_tensor("w", raw, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("plain", "optimize", "from_file", "from_memory"),
    [
        (NOWHERE, Optimize.SPEED, {"fast"}, {"fast"}),
        (NOWHERE, Optimize.MEMORY, {"fast"}, {"fast"}),
        (PLAIN_FOR_MANY, Optimize.SPEED, {"fast", "mapped"}, {"fast", "plain"}),
        (PLAIN_FOR_MANY, Optimize.MEMORY, {"mapped"}, {"plain"}),
        (EVERYWHERE, Optimize.SPEED, {"mapped"}, {"plain"}),
    ],
    ids=["rearranged", "rearranged-memory", "both", "one-of-both", "plain"],
)
def test_copies(
    rearranging: Any,
    faster: Callable[[Sequence[bool]], None],
    table: Blocks,
    mapped: Path,
    plain: Sequence[bool],
    optimize: Optimize,
    from_file: set[str],
    from_memory: set[str],
):
    faster(plain)
    params = BackendParams(num_threads=1, optimize=optimize)
    memory = MemorySource(METADATA, {"w": (DType.Q4_0, (256, 64), table.data)})
    for source, want in ((open_gguf(mapped), from_file), (memory, from_memory)):
        with source, new_backend(source, params) as backend:
            for n, got in products(backend).items():
                x = normal(n, 256, seed=n).astype(float)
                assert nmse(got, x @ table.values.T) < 1e-4  # rounding of activations to Q8_0
            assert kinds(backend) == want
            counted = backend.backend_memory()
            assert isinstance(backend, GGMLBackend)
            copies = sum(copy.nbytes for copy in backend.weights.copies)
            assert sum(counted.cpu.weights) + counted.input_weights == copies


@pytest.mark.parametrize("between", [False, True])
def test_only_the_largest_and_the_smallest_batch_decide_which_copies_there_are(
    rearranging: Any, faster: Callable[[Sequence[bool]], None], table: Blocks, between: bool
):
    faster((False, False, False, False, True, False, False))
    source = MemorySource(METADATA, {"w": (DType.Q4_0, (256, 64), table.data)})
    with new_backend(source, BackendParams(num_threads=1)) as backend:
        w = backend.get("w")
        assert w is not None
        with backend.new_context() as ctx, ctx.trace():
            for n in (512, 63, 1) if between else (512, 1):
                ctx.forward(w.mulmat(ctx.input().from_floats(normal(n, 256))))
        backend.allocate(ctx.graph)
        assert kinds(backend) == {"fast"}


def test_our_kernel_yields_to_the_rearranged_copy_where_that_is_faster(
    rearranging: Any, faster: Callable[[Sequence[bool]], None], monkeypatch: pytest.MonkeyPatch
):
    faster(PLAIN_FOR_MANY)
    monkeypatch.setattr(measurements, "own_is_faster", lambda dtype: EVERYWHERE)
    table = blocks(DType.Q4_0, normal(512, 256))
    source = MemorySource(METADATA, {"w": (DType.Q4_0, (256, 512), table.data)})
    with new_backend(source, BackendParams(num_threads=1)) as backend:
        w = backend.get("w")
        assert w is not None
        with backend.new_context() as ctx, ctx.trace():
            made = {n: w.mulmat(ctx.input().from_floats(normal(n, 256))) for n in (FEW, MANY)}
            ctx.forward(*made.values())
        backend.allocate(ctx.graph)
        assert isinstance(backend, GGMLBackend)
        assert kinds(backend) == {"fast", "plain"}
        assert {n: backend.weights.multiplied(y) for n, y in made.items()} == {
            FEW: False,
            MANY: True,
        }


def test_a_dtype_is_looked_up_once(
    rearranging: Any, monkeypatch: pytest.MonkeyPatch, table: Blocks
):
    asked: list[DType] = []
    monkeypatch.setattr(
        measurements, "plain_is_faster", lambda dtype, _: asked.append(dtype) or PLAIN_FOR_MANY
    )
    weights = dict.fromkeys("abc", (DType.Q4_0, (256, 64), table.data))
    with new_backend(MemorySource(METADATA, weights), BackendParams(num_threads=1)) as backend:
        with backend.new_context() as ctx, ctx.trace():
            x = ctx.input().from_floats(normal(1, 256))
            for name in weights:
                w = backend.get(name)
                assert w is not None
                ctx.forward(w.mulmat(x))
        backend.allocate(ctx.graph)
    assert asked == [DType.Q4_0]


def test_each_product_reads_the_copy_that_is_faster(
    rearranging: Any, faster: Callable[[Sequence[bool]], None], table: Blocks
):
    faster(PLAIN_FOR_MANY)
    source = MemorySource(METADATA, {"w": (DType.Q4_0, (256, 64), table.data)})
    with new_backend(source, BackendParams(num_threads=1)) as backend:
        assert isinstance(backend, GGMLBackend)
        products(backend)
        w = backend.get("w")
        assert w is not None
        for n in (1, 8, 9, 512):
            with backend.new_context() as ctx, ctx.trace():
                y = w.mulmat(ctx.input().from_floats(normal(n, 256)))
                read = backend.weights.tensor(w, y, 0, fast=True)
            assert (read == backend.weights._fast[w.uid]) == (n < 9)


def test_reading_a_weight_otherwise_is_no_product(
    rearranging: Any, faster: Callable[[Sequence[bool]], None], table: Blocks
):
    """A tied table: rows of many ids, and a product of one column, which is faster rearranged."""
    faster(PLAIN_FOR_MANY)
    source = MemorySource(METADATA, {"w": (DType.Q4_0, (256, 64), table.data)})
    params = BackendParams(num_threads=1, optimize=Optimize.MEMORY)
    with new_backend(source, params) as backend, backend.new_context() as ctx, ctx.trace():
        w = backend.get("w")
        assert w is not None
        y = w.mulmat(ctx.input().from_floats(normal(1, 256)))
        ctx.forward(y, w.rows(ctx.input().from_ints([0] * 64)), w.cast(DType.F32))
        backend.allocate(ctx.graph)
        assert kinds(backend) == {"fast", "plain"}


def test_columns_that_were_not_traced_read_no_copy_that_counts_as_not_there(
    rearranging: Any, faster: Callable[[Sequence[bool]], None], mapped: Path
):
    faster(PLAIN_FOR_MANY)
    with open_gguf(mapped) as source, new_backend(source, BackendParams(num_threads=1)) as backend:
        assert isinstance(backend, GGMLBackend)
        w = backend.get("w")
        assert w is not None
        with backend.new_context() as ctx, ctx.trace():
            ctx.forward(w.mulmat(ctx.input().from_floats(normal(FEW, 256))))
            backend.allocate(ctx.graph)
        assert kinds(backend) == {"fast"}
        with backend.new_context() as ctx, ctx.trace():
            y = w.mulmat(ctx.input().from_floats(normal(512, 256)))
            assert backend.weights.tensor(w, y, 0, fast=True) == backend.weights._fast[w.uid]


def test_measurements_that_disagree_are_not_remembered(
    cache: Path, rearranging: Any, monkeypatch: pytest.MonkeyPatch
):
    found = iter([[False] * 7, [True] * 7])
    monkeypatch.setattr(measurements, "_measure", lambda *args: next(found))
    assert measurements.plain_is_faster(DType.Q4_0, rearranging) == NOWHERE
    assert not list(cache.glob("*"))


def test_a_process_does_not_change_its_mind(
    cache: Path, rearranging: Any, monkeypatch: pytest.MonkeyPatch
):
    """A dry run and the load after it choose the same copies, though trials disagree each time."""
    found = itertools.cycle([[False], [True], [True], [False]])
    monkeypatch.setattr(measurements, "_measure", lambda *args: 7 * next(found))

    def choices() -> list[Any]:
        return [measurements.plain_is_faster(t, rearranging) for t in (DType.Q4_0, DType.Q8_0)]

    first = choices()
    assert first == [NOWHERE, EVERYWHERE]
    assert [choices() for _ in range(3)] == [first] * 3
    assert not list(cache.glob("*"))


def test_threads_that_measure_at_once_decide_alike(
    cache: Path, rearranging: Any, monkeypatch: pytest.MonkeyPatch
):
    both = threading.Barrier(2)

    def measure(*args: Any) -> list[bool]:
        both.wait(60)
        return [threading.current_thread().name.endswith("1")] * 7

    monkeypatch.setattr(measurements, "_measure", measure)
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(measurements.plain_is_faster, DType.Q4_0, rearranging) for _ in "ab"
        ]
    assert asked[0].result() == asked[1].result()


def test_without_memory_for_both_there_is_one(
    rearranging: Any,
    faster: Callable[[Sequence[bool]], None],
    table: Blocks,
    monkeypatch: pytest.MonkeyPatch,
):
    faster(PLAIN_FOR_MANY)
    little = type("Little", (), {"free_memory": 2 * len(table.data) - 1})
    monkeypatch.setattr("ggmodel.ml.ggml.weights.system_info", lambda: little)
    source = MemorySource(METADATA, {"w": (DType.Q4_0, (256, 64), table.data)})
    with new_backend(source, BackendParams(num_threads=1)) as backend:
        products(backend)
        assert kinds(backend) == {"plain"}


def test_experts_count_the_columns_that_each_has_on_average():
    source = MemorySource(METADATA, {"w": normal(8, 16, 32)})
    with new_backend(source, BackendParams(num_threads=1)) as backend:
        w = backend.get("w")
        assert w is not None
        with backend.new_context() as ctx, ctx.trace():
            x = ctx.input().from_floats(normal(64, 1, 32))
            ids = ctx.input().from_ints(np.zeros((64, 2)))
            y = w.mulmat_id(x, ids)
        from ggmodel.ml.ggml.weights import _columns

        assert _columns(y) == 64 * 2 // 8


def test_an_unknown_aim_is_refused():
    with pytest.raises(Unsupported, match="'speed' or 'memory', not 'looks'"):
        Optimize.parse("looks")
