"""The bytes of `estimate` against those that `load` takes, for files, devices and contexts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF, MemorySource
from ggmodel.ml import (
    BackendMemory,
    DeviceInfo,
    DeviceMemory,
    GPULayersList,
    SystemInfo,
)
from ggmodel.model import find
from ggmodel.runner.loading.preparation import Devices
from ggmodel.runner.options import Options
from ggmodel.workbench import estimate as module
from ggmodel.workbench.estimate import Estimate, estimate_on, largest_context
from tests.golden.files import load_golden
from tests.shapes import write_llama_1b


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    # A vocabulary that cannot be built: whoever reads it fails.
    return write_llama_1b(folder / "1b.gguf", tokenizer__ggml__model="none of ours")


def test_a_draft_model_is_counted(source: MemorySource):
    options: dict[str, Any] = {"context_length": 128, "parallel": 2, "gpu_layers": 0}
    alone = ggmodel.estimate(source, **options)
    both = ggmodel.estimate(source, draft=source, **options)
    assert both.size == 2 * alone.size and both.devices[0].draft == alone.size
    with ggmodel.load(source, draft=source, **options) as model:
        assert model.draft is not None
        assert model.memory.size() + model.draft.memory.size() == both.size


@pytest.mark.parametrize("names", [["plain"], ["plain", "dora"]])
def test_adapters_are_counted(names: list[str]):
    golden = load_golden("llama", "plain_gqa")
    base = from_hf(find("llama"), golden.config, golden.weights())
    folder = Path(__file__).parents[1] / "convert" / "adapters"
    options: dict[str, Any] = {"context_length": 64, "gpu_layers": 0}
    adapters = [folder / name for name in names]
    plain = ggmodel.estimate(base, **options)
    estimate = ggmodel.estimate(base, adapters=adapters, **options)
    with ggmodel.load(base, adapters=adapters, **options) as model:
        assert (estimate.devices[0].cache, estimate.size) == (
            model.memory.cpu.cache,
            model.memory.size(),
        )
        pairs = [pair for one in model.engine.loaded for pair in one.pairs.values()]
    numbers = sum(t.n_elements for p in pairs for t in (p.a, p.b, p.gain) if t is not None)
    assert estimate.size == plain.size + 4 * numbers
    with pytest.raises(FormatError, match="does not exist"):
        ggmodel.estimate(base, adapters="none.gguf", **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context_length": 300, "parallel": 3, "batch_size": 16},
        {"kv_type": "f32", "flash_attention": "off"},
    ],
)
@pytest.mark.parametrize("mapped", [True, False])
def test_load_takes_what_was_estimated(
    source: MemorySource, write_gguf, tmp_path: Path, options: dict[str, Any], mapped: bool
):
    file = write_gguf(tmp_path / "tiny.gguf", source) if mapped else source
    estimate = ggmodel.estimate(file, gpu_layers=0, **options)
    with ggmodel.load(file, gpu_layers=0, **options) as model:
        taken = model.memory
    (cpu,) = estimate.devices
    assert (cpu.weights, cpu.cache, cpu.graph) == (
        taken.cpu.weights,
        taken.cpu.cache,
        taken.cpu.graph,
    )
    assert cpu.input_weights == taken.input_weights
    assert (estimate.size, estimate.mapped) == (taken.size(), taken.mapped)
    assert bool(estimate.mapped) == mapped
    assert cpu.layers == [0, 1, 2]
    assert (estimate.architecture, estimate.parallel) == ("llama", options.get("parallel", 1))


def test_a_large_file_in_no_time(large: Path, monkeypatch: pytest.MonkeyPatch):
    def data(self: GGUF, name: str) -> memoryview:
        raise AssertionError(f"{name} is read")

    monkeypatch.setattr(GGUF, "data", data)
    ggmodel.estimate(large, gpu_layers=0)
    start = time.perf_counter()
    estimate = ggmodel.estimate(large, gpu_layers=0)
    assert time.perf_counter() - start < 3  # 0.2 s on a quiet machine
    (cpu,) = estimate.devices
    assert (estimate.context_length, estimate.trained_context) == (4096, 131_072)
    # Keys and values of 8 heads of 64 in two bytes each.
    assert cpu.cache == [4096 * 2 * 512 * 2] * 16 + [0]
    layer = (2048 * (2 * 2048 + 2 * 512) + 3 * 2048 * 8192) // 32 * 34 + 2 * 2048 * 4
    assert cpu.weights == [layer] * 16 + [2048 * 4]
    assert cpu.input_weights == 128_256 * 2048 // 32 * 34
    assert estimate.mapped == cpu.input_weights + sum(cpu.weights)


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_the_largest_context_is_that(
    large: Path, monkeypatch: pytest.MonkeyPatch, flash_attention: str
):
    monkeypatch.setattr(module, "system_info", lambda: SystemInfo(free_memory=4 << 30))

    def tried(length: int | None = None) -> Estimate:
        return ggmodel.estimate(
            large,
            context_length=length,
            parallel=2,
            flash_attention=flash_attention,
            gpu_layers=0,
        )

    largest = tried().largest_context
    assert 4096 < largest < 131_072
    assert largest % 256 == 0
    assert tried(largest).fits
    more = tried(largest + 256)
    assert not more.fits
    assert more.largest_context == largest
    assert more.missing() == {"CPU": more.size - (4 << 30)}


def test_errors_are_those_of_load(source: MemorySource, vary):
    with pytest.raises(ggmodel.Error, match=r"blk\.0\.attn_q\.weight"):
        ggmodel.estimate(vary(source, drop=("blk.0.attn_q.weight",)))
    with pytest.raises(ggmodel.Error, match="there is no device 'CUDA7'"):
        ggmodel.estimate(source, gpu_layers="CUDA7=0-1")
    with pytest.raises(ggmodel.Error, match="parallel"):
        ggmodel.estimate(source, parallel=0)


# devices


class Steps:
    """Stands for the steps of loading: four layers of 100 bytes and of one byte a position, an
    output layer of 50, graphs of 7 bytes."""

    def __init__(self, source: object, options: Options, layers: GPULayersList | None, _: object):
        self.layers = layers or GPULayersList()
        length, plan = options.context_length or 4096, SimpleNamespace(encoders={})
        self.engine = SimpleNamespace(context_length=length, memory_plan=plan)
        self.config = SimpleNamespace(context=8192)
        self.report = SimpleNamespace(architecture="made up")
        self.backend = self

    block_count = 4

    def take_steps(self) -> None:
        pass

    def backend_memory(self) -> BackendMemory:
        def device(name: str, own: Sequence[int], **more: Any) -> DeviceMemory:
            weights = [(100 if n < 4 else 50) * (n in own) for n in range(5)]
            cache = [self.engine.context_length * (n in own and n < 4) for n in range(5)]
            return DeviceMemory(name, weights, cache, 7, **more)

        gpus = [device(f"{g.library}{g.id}", g.layers, device=g.device_id) for g in self.layers]
        elsewhere = {n for g in self.layers for n in g.layers}
        cpu = device("CPU", [n for n in range(5) if n not in elsewhere])
        return BackendMemory(cpu, gpus, input_weights=1000)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.fixture
def on(source: MemorySource, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Estimate]:
    """`on(free, *devices, …)`: an estimate with so much system memory and those devices."""

    def estimated(
        free: int, *devices: DeviceInfo, taken: int | None = None, **options: Any
    ) -> Estimate:
        monkeypatch.setattr(module, "Preparation", Steps)
        monkeypatch.setattr(module, "system_info", lambda: SystemInfo(free_memory=free))
        own = Options(alloc_memory=False, **options)
        return estimate_on(source, own, Devices([*devices]), taken=taken)

    return estimated


def gpu(room: int, id: str = "0", **more: Any) -> DeviceInfo:
    minimum = DeviceInfo("0", "CUDA").minimum_memory()
    return DeviceInfo(id, "CUDA", f"CUDA{id}", free_memory=room + minimum, **more)


def test_all_on_one_device(on):
    estimate = on(10_000, gpu(20_000, description="A GPU"))
    cuda, cpu = estimate.devices
    assert (cuda.name, cuda.description, cuda.free) == ("CUDA0", "A GPU", 20_000)
    assert (cuda.layers, cpu.layers) == ([0, 1, 2, 3, 4], [])
    assert cuda.size == 450 + 4 * 4096 + 7
    assert (cpu.size, cpu.input_weights, cpu.free) == (1007, 1000, 10_000)
    assert estimate.size == cuda.size + cpu.size
    assert (estimate.fits, estimate.missing()) == (True, {})
    # 20,000 bytes hold four layers of 4,885 positions.
    assert estimate.largest_context == 4864


def test_what_does_not_fit_stays_on_the_cpu(on):
    estimate = on(10_000, gpu(9000))
    assert [d.layers for d in estimate.devices] == [[2, 3, 4], [0, 1]]
    assert estimate.fits
    # The layers stay where they are: there is room for 4,371 positions beside these.
    assert estimate.largest_context == 4352
    estimate = on(100_000, gpu(9000), gpu_layers=-1)
    assert estimate.missing() == {"CUDA0": estimate.devices[0].size - 9000}
    assert estimate.largest_context == 2048


@pytest.mark.parametrize(
    ("taken", "options", "length"),
    [
        (0, {}, 5888),  # (50,000 − 1,450) / 2 − 7 bytes, a position takes four
        (10_000, {}, 4608),
        (30_000, {}, 4096),  # less than the default is left
        (99_999, {}, 4096),
        (0, {"context_length": 300}, 300),
        (None, {}, 4096),
    ],
)
def test_a_context_that_leaves_half_of_the_memory(on, taken, options, length: int):
    estimate = on(50_000, taken=taken, **options)
    assert estimate.context_length == length
    (cpu,) = estimate.devices
    assert cpu.size == 1000 + 450 + 7 + 4 * length


def test_a_context_that_leaves_half_of_a_gpu(on):
    estimate = on(10_000, gpu(60_000), taken=0)
    assert estimate.context_length == 7424 and [len(d.layers) for d in estimate.devices] == [5, 0]
    assert on(10_000, gpu(600_000), taken=0).context_length == 8192  # the model's own
    shared = on(50_000, gpu(600_000, integrated=True), taken=0)
    assert shared.context_length == 5888


def test_a_gpu_that_shares_memory_needs_it_twice(on):
    estimate = on(17_000, gpu(20_000, integrated=True))
    cuda, cpu = estimate.devices
    assert (cuda.shared, cpu.shared) == (True, False)
    assert estimate.missing() == {"CPU": cuda.size + cpu.size - 17_000}


def test_nothing_fits(on):
    estimate = on(500)
    assert not estimate.fits
    assert estimate.largest_context == 0


@given(
    known=st.integers(1, 20_000),
    limit=st.integers(0, 20_000),
    lines=st.lists(
        st.tuples(st.integers(-50, 5000), st.fractions(0, 3, max_denominator=7)),
        min_size=1,
        max_size=3,
    ),
    padding=st.sampled_from([1, 256, 1024]),
)
@example(known=2, limit=1, lines=[(0, 0.5)], padding=1)
def test_the_largest_context_along_lines(known: int, limit: int, lines: Any, padding: int):
    asked: list[int] = []

    def room(length: int) -> list[int]:
        asked.append(length)
        cells = -(-length // padding) * padding
        return [plenty - int(slope * cells) for plenty, slope in lines]

    found = largest_context(room, known, limit)
    assert asked[0] == known
    assert len(asked) <= 7
    lengths = [*range(256, limit, 256), limit] if limit else []
    assert found == max((n for n in lengths if min(room(n)) >= 0), default=0)


def test_a_context_that_cannot_even_be_tried():
    def room(length: int) -> list[int]:
        if length > 5000:
            raise ggmodel.errors.OutOfMemory("positions")
        return [1]

    found = largest_context(room, 1024, 10_000)
    assert found % 256 == 0
    assert 4000 < found <= 5000
