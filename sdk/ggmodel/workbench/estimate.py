"""How much memory a model will take, before any is taken: what a dry run of `load` reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import OutOfMemory
from ..gguf_file import TensorSource
from ..ml import BackendMemory, DeviceInfo, DeviceMemory, GPULayersList, system_info
from ..runner.engine.reservation import VisionMemory
from ..runner.loading.gpu_option import GPULayersOption, choose_layers
from ..runner.loading.placement import Devices
from ..runner.loading.preparation import Options, Preparation
from ..runner.loading.sources import open_source

_STEP = 256  # the largest context is a multiple of this
_MOST_RUNS = 6  # of looking for it; three are the rule


@dataclass(frozen=True)
class DeviceEstimate:
    """What one device has to hold, in bytes.

    Attributes:
        layers: that are computed there; the last one there is, is the output layer.
        input_weights: embeddings; on the CPU only.
        weights, cache: one figure a layer of the model, the output layer last.
        graph: intermediate results.
        free: what a model can have there: free memory, on GPUs less what their library takes.
        shared: it uses the CPU's memory.
    """

    name: str
    description: str
    layers: list[int]
    input_weights: int
    weights: list[int]
    cache: list[int]
    graph: int
    free: int
    shared: bool = False

    @property
    def size(self) -> int:
        """All of it."""
        return self.input_weights + sum(self.weights) + sum(self.cache) + self.graph


@dataclass(frozen=True)
class Estimate:
    """What loading a model would take, in bytes.

    Attributes:
        context_length: positions a sequence may have. trained_context: as many as the model knows.
        devices: GPUs in the order of their layers, then the CPU.
        mapped: bytes of the weights that lie in the mapped file rather than in memory of their
            own. They count like others: what is not resident is read again for every token.
        largest_context: that fits with the same layers on each device: a multiple of 256, or the
            trained one; 0 if none does.
        vision: what images take; None for models that see nothing.
    """

    name: str
    architecture: str
    context_length: int
    trained_context: int
    parallel: int
    batch_size: int
    kv_type: str
    devices: list[DeviceEstimate]
    mapped: int
    largest_context: int
    vision: VisionMemory | None = None

    @property
    def size(self) -> int:
        """On all devices together."""
        return sum(d.size for d in self.devices)

    @property
    def fits(self) -> bool:
        """Whether there is room on each device."""
        return not self.missing()

    def missing(self) -> dict[str, int]:
        """Bytes that are not free, by the name of the device."""
        rooms = zip(self.devices, _room(self.devices), strict=True)
        return {device.name: -room for device, room in rooms if room < 0}


def estimate(
    file: str | Path | TensorSource,
    *,
    type: str | None = None,
    mmproj: str | Path | None = None,
    context_length: int | None = None,
    batch_size: int = 512,
    parallel: int = 1,
    gpu_layers: GPULayersOption = "auto",
    override_tensor: Mapping[str, str] | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    optimize: str = "speed",
    rpc: Sequence[str] | None = None,
    models: str | Path | None = None,
    strict: bool = True,
) -> Estimate:
    """How much memory `load` would take with the same arguments; neither weights nor the
    vocabulary are read.

    Raises:
        Error: as `load` does, but for the vocabulary and for memory.
    """
    options = Options(
        context_length=context_length,
        batch_size=batch_size,
        parallel=parallel,
        gpu_layers=gpu_layers,
        override_tensor=override_tensor or {},
        flash_attention=flash_attention,
        kv_type=kv_type,
        optimize=optimize,
        rpc=rpc,
        models=models,
        strict=strict,
        alloc_memory=False,
    )
    source = open_source(file, mmproj, models, type)
    try:
        with Devices.open(options) as devices:
            return estimate_on(source, options, devices)
    finally:
        if source is not file:
            source.close()


def estimate_on(source: TensorSource, options: Options, devices: Devices) -> Estimate:
    """`estimate` with options that take no memory, for devices that are known."""
    reports: dict[tuple[int, GPULayersList], BackendMemory] = {}
    free = system_info().free_memory

    def measured(length: int, layers: GPULayersList) -> BackendMemory:
        if (length, layers) not in reports:
            changed = replace(options, context_length=length)
            with Preparation(source, changed, layers, devices.runner) as steps:
                steps.take_steps()
                reports[length, layers] = steps.backend.backend_memory()
        return reports[length, layers]

    def on_devices(length: int) -> list[DeviceEstimate]:
        return _devices(measured(length, layers), layers, devices.found, free)

    with Preparation(source, options, None, devices.runner) as steps:
        steps.take_steps()
        length = steps.engine.context_length
        trained = getattr(steps.config, "context", length)
        architecture, blocks = steps.report.architecture, steps.backend.block_count
        reports[length, GPULayersList()] = steps.backend.backend_memory()
        vision = steps.engine.worst.vision
    layers = choose_layers(
        options.gpu_request, lambda found: measured(length, found), devices.found, blocks
    )
    return Estimate(
        name=source.name,
        architecture=architecture,
        context_length=length,
        trained_context=trained,
        parallel=options.parallel,
        batch_size=options.batch_size,
        kv_type=options.cache_type.name.lower(),
        devices=on_devices(length),
        mapped=measured(length, layers).mapped,
        largest_context=largest_context(lambda n: _room(on_devices(n)), length, trained),
        vision=vision,
    )


def _devices(
    memory: BackendMemory, layers: GPULayersList, devices: Sequence[DeviceInfo], free: int
) -> list[DeviceEstimate]:
    """What is reported, with what is free."""
    known = {d.device_id: d for d in devices}
    placed = {g.device_id: list(g.layers) for g in layers}
    found = []
    for m in memory.gpus:
        info = known[m.device]
        room = max(0, info.free_memory - info.minimum_memory())
        own = placed.get(m.device, [])
        found.append(_device(m, info.description, own, 0, room, info.integrated))
    elsewhere = {n for own in placed.values() for n in own}
    own = [n for n in range(len(memory.cpu.weights)) if n not in elsewhere]
    return [*found, _device(memory.cpu, "", own, memory.input_weights, free)]


def _device(
    m: DeviceMemory,
    description: str,
    layers: list[int],
    input_weights: int,
    free: int,
    shared: bool = False,
) -> DeviceEstimate:
    return DeviceEstimate(
        m.name, description, layers, input_weights, m.weights, m.cache, m.graph, free, shared
    )


def _room(devices: Sequence[DeviceEstimate]) -> list[int]:
    """Bytes left on each device, the CPU last; negative where some are missing."""
    room = [d.free - d.size for d in devices]
    room[-1] -= sum(d.size for d in devices if d.shared)
    return room


def largest_context(room: Callable[[int], Sequence[int]], known: int, limit: int) -> int:
    """The largest multiple of 256, or `limit` itself, with which no device lacks room; 0 if none.

    Memory grows with the context along a line, in steps: two dry runs tell the line, others verify
    what it promises.

    Args:
        room: bytes left on each device with a context of that length.
        known: a length of which that is known already.
    """
    last = -(-limit // _STEP)  # lengths are numbered: multiples of 256, then the limit
    fits, fails = 0, last + 1
    below: _Point | None = None
    above: _Point | None = None
    for run in range(_MOST_RUNS + 1):
        if run == 0:
            number, length = known // _STEP, known
        else:
            number = last if above is None else 1 if below is None else _crossing(below, above)
            number = max(fits + 1, min(number, fails - 1))
            length = min(number * _STEP, limit)
        left = _left(room, length)
        if left is not None and min(left) >= 0:
            below, fits = (length, left), min(number, last)
        else:
            above = length, left
            if length <= limit:
                fails = min(-(-length // _STEP), fails)
        if fails - fits <= 1:
            break
    return min(fits * _STEP, limit)


_Point = tuple[int, "Sequence[int] | None"]


def _left(room: Callable[[int], Sequence[int]], length: int) -> Sequence[int] | None:
    try:
        return room(length)
    except OutOfMemory:
        return None  # not even the list of positions can be had


def _crossing(below: _Point, above: _Point) -> int:
    """The number of the last length with room on each device, if all went along a line."""
    (low, plenty), (high, lacking) = below, above
    if plenty is None or lacking is None:
        return (low + high) // 2 // _STEP
    lines = zip(plenty, lacking, strict=True)
    return min(low + (high - low) * a // (a - b) for a, b in lines if b < 0) // _STEP
