"""The memory that a model will take, from a dry run of `load` that allocates none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from ..errors import OutOfMemory
from ..gguf_file import TensorSource
from ..loading import open_adapter, open_source, resolved
from ..ml import BackendMemory, DeviceInfo, GPULayersList, system_info
from ..runner.engine.adapters import Adapter, LowRank
from ..runner.engine.memory_plan import EncoderMemory
from ..runner.loading.adapters import changes_of, strengths_of
from ..runner.loading.draft import compare_vocabularies, options_of, source_of
from ..runner.loading.gpu_layers import choose_layers
from ..runner.loading.preparation import Devices, Preparation
from ..runner.loading.resolved import ResolvedModel
from ..runner.loading.sources import Source
from ..runner.options import OWN, LoadOptions, Options, with_options

_STEP = 256  # the largest context is a multiple of this
_MOST_RUNS = 6  # dry runs in search of it; three are usual

Changes = Mapping[tuple[str, str], LowRank]  # of an adapter


@dataclass(frozen=True)
class DeviceEstimate:
    """The memory that one device needs, in bytes.

    Attributes:
        layers: computed there; the highest number in the model is the output layer.
        input_weights: embeddings; on the CPU only.
        weights, cache: one figure a layer of the model, the output layer last. Matrices of adapters
            count with the cache.
        graph: intermediate results.
        draft: all that the draft model takes there.
        free: available memory, on GPUs less the share of their library.
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
    draft: int = 0

    @property
    def size(self) -> int:
        """The sum."""
        return self.input_weights + sum(self.weights) + sum(self.cache) + self.graph + self.draft


@dataclass(frozen=True)
class Estimate:
    """The memory that loading a model would take, in bytes.

    Attributes:
        context_length: positions of a sequence. trained_context: positions the model was trained
            for.
        devices: GPUs in the order of their layers, then the CPU.
        mapped: bytes of weights used in the mapped file, without a copy. They count like others,
            for weights that are not resident are read again for every token.
        largest_context: the longest that fits with the same layers on each device: a multiple of
            256, or the trained one; 0 if none fits, or none was looked for.
        encoders: memory for images and other items, by kind; empty for models of text.
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
    encoders: Mapping[str, EncoderMemory] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """On all devices together."""
        return sum(d.size for d in self.devices)

    @property
    def fits(self) -> bool:
        """Whether each device has room."""
        return not self.missing()

    def missing(self) -> dict[str, int]:
        """Bytes that are lacking, by the name of the device."""
        rooms = zip(self.devices, _room(self.devices), strict=True)
        return {device.name: -room for device, room in rooms if room < 0}


@with_options(LoadOptions, resolved)
def estimate(file: Source, options: Options) -> Estimate:
    """The memory that `load` would take with the same options. Reads neither weights nor the
    vocabulary.

    Raises:
        Error: as `load`, except for errors of the vocabulary and of memory.
    """
    return _estimate(file, options, search=True)


@with_options(LoadOptions, resolved)
def needed(file: Source, options: Options) -> Estimate:
    """`estimate` without the search for the largest context, which takes most of its time."""
    return _estimate(file, options, search=False)


def needed_with_room(file: Source, taken: int, options: Mapping[str, Any]) -> Estimate:
    """`needed`, whose context, where the options give none, is the longest for which cache and
    graphs take half of the memory that the weights leave; at least the default of `load`.

    Args:
        taken: bytes of the CPU's free memory that are promised to others.
        options: of `load`.
    """
    function = partial(_estimate, search=False, taken=taken)
    return with_options(LoadOptions, resolved)(function)(file, **options)


def _estimate(file: Source, options: Options, search: bool, taken: int | None = None) -> Estimate:
    stored = file.adapters if isinstance(file, ResolvedModel) else ()
    adapters = [*stored, *strengths_of(options.adapters)]
    options = replace(options, alloc_memory=False, adapters=adapters)
    with ExitStack() as opened:
        source = open_source(file, options.mmproj, options.models, options.type)
        if source is not file:
            opened.enter_context(source)
        devices, draft = opened.enter_context(Devices.open(options)), None
        if options.draft is not None and options.draft != OWN:
            given = source_of(options.draft)
            draft = open_source(given, "", options.models)
            if draft is not given:
                opened.enter_context(draft)
            compare_vocabularies(source, draft)
        return estimate_on(source, options, devices, search, taken, draft)


def estimate_on(
    source: TensorSource,
    options: Options,
    devices: Devices,
    search: bool = True,
    taken: int | None = None,
    draft: TensorSource | None = None,
) -> Estimate:
    """`estimate` for opened devices, with options that allocate no memory.

    Args:
        search: for the largest context.
        taken: look for a context that leaves room; see `needed_with_room`.
        draft: the draft model.
    """
    reports: dict[tuple[int, GPULayersList], BackendMemory] = {}
    drafting = None if draft is None else _drafting(draft, options, devices)
    free = system_info().free_memory

    def measured(length: int, layers: GPULayersList) -> BackendMemory:
        if (length, layers) not in reports:
            changed = replace(options, context_length=length)
            with Preparation(source, changed, layers, devices.runner) as steps:
                steps.take_steps()
                reports[length, layers] = _with_adapters(steps, changes)
        return reports[length, layers]

    def on_devices(length: int) -> list[DeviceEstimate]:
        own = _devices(measured(length, layers), layers, devices.available, free)
        return own if drafting is None else _with_draft(own, drafting(length))

    with Preparation(source, options, None, devices.runner) as steps:
        steps.take_steps()
        length = steps.engine.context_length
        trained = getattr(steps.config, "context", length)
        architecture, blocks = steps.report.architecture, steps.backend.block_count
        changes = [_changes(steps, path) for path in strengths_of(options.adapters)]
        reports[length, GPULayersList()] = _with_adapters(steps, changes)
        encoders = steps.engine.memory_plan.encoders
    request, available = options.gpu_request, devices.available
    layers = choose_layers(request, lambda some: measured(length, some), available, blocks)
    if taken is not None and options.context_length is None:
        length = _with_room(on_devices, length, trained, taken)
        layers = choose_layers(request, lambda some: measured(length, some), available, blocks)
    largest = 0
    if search:
        largest = largest_context(lambda n: _room(on_devices(n)), length, trained)
    return Estimate(
        name=source.name,
        architecture=architecture,
        context_length=length,
        trained_context=trained,
        parallel=options.parallel,
        batch_size=options.batch_size,
        kv_type=options.cache_type.name.lower(),
        devices=on_devices(length),
        mapped=measured(length, layers).mapped + (drafting(length).mapped if drafting else 0),
        largest_context=largest,
        encoders=encoders,
    )


def _changes(steps: Preparation, path: str) -> Changes:
    """The changes by an adapter of a prepared model."""
    with closing(open_adapter(path, steps.model)) as opened:
        return changes_of(opened, steps.source)


def _with_adapters(steps: Preparation, adapters: Sequence[Changes]) -> BackendMemory:
    """The report of a prepared model, adapters included."""
    with ExitStack() as loaded:
        for changes in adapters:
            gains = {
                weight: change.magnitude
                for (weight, _), change in changes.items()
                if change.magnitude is not None
            }
            loaded.enter_context(Adapter("", steps.backend, changes, gains, ""))
        return steps.backend.backend_memory()


def _devices(
    memory: BackendMemory, layers: GPULayersList, devices: Sequence[DeviceInfo], free: int
) -> list[DeviceEstimate]:
    """The reported memory of each device, with its free memory."""
    infos = {d.device_id: d for d in devices}
    placed = {g.device_id: list(g.layers) for g in layers}
    estimates = []
    for m in memory.gpus:
        info = infos[m.device]
        room = max(0, info.free_memory - info.minimum_memory())
        own, about = placed.get(m.device, []), info.description
        parts = m.weights, m.cache, m.graph, room
        estimates.append(DeviceEstimate(m.name, about, own, 0, *parts, info.integrated))
    elsewhere = {n for own in placed.values() for n in own}
    cpu, embedded = memory.cpu, memory.input_weights
    own = [n for n in range(len(cpu.weights)) if n not in elsewhere]
    parts = cpu.weights, cpu.cache, cpu.graph, free
    return [*estimates, DeviceEstimate(cpu.name, "", own, embedded, *parts)]


def _drafting(draft: TensorSource, options: Options, devices: Devices) -> Callable[[int], Estimate]:
    """The draft model's estimate by the context length of the model."""

    @cache
    def estimated(length: int) -> Estimate:
        return estimate_on(draft, options_of(draft, options, length), devices, search=False)

    return estimated


def _with_draft(own: list[DeviceEstimate], draft: Estimate) -> list[DeviceEstimate]:
    """The devices with what the draft model takes there; it is on no other GPUs than the model."""
    sizes = {device.name: device.size for device in draft.devices}
    return [replace(device, draft=sizes.get(device.name, 0)) for device in own]


def _room(devices: Sequence[DeviceEstimate]) -> list[int]:
    """Bytes left on each device, the CPU last; negative if a device lacks room."""
    room = [d.free - d.size for d in devices]
    room[-1] -= sum(d.size for d in devices if d.shared)
    return room


def _with_room(
    on_devices: Callable[[int], Sequence[DeviceEstimate]], length: int, trained: int, taken: int
) -> int:
    """The longest context that leaves room, `length` at least; see `needed_with_room`."""

    def room(length: int) -> list[int]:
        return _room(_halved(on_devices(length), taken))

    longest = largest_context(room, length, trained) if length < trained else length
    return max(length, longest)


def _halved(devices: Sequence[DeviceEstimate], taken: int) -> list[DeviceEstimate]:
    """The devices, each with free memory for its weights and half of the rest.

    Args:
        taken: bytes of the CPU's, the last one's, that are not free.
    """
    weights = [d.input_weights + sum(d.weights) for d in devices]
    weights[-1] += sum(w for d, w in zip(devices, weights, strict=True) if d.shared)
    free = [*(d.free for d in devices[:-1]), devices[-1].free - taken]
    figures = zip(devices, free, weights, strict=True)
    return [replace(device, free=(room + w) // 2) for device, room, w in figures]


def largest_context(room: Callable[[int], Sequence[int]], first: int, limit: int) -> int:
    """The longest context that fits: a multiple of 256 or `limit` itself; 0 if none fits.

    Memory grows almost linearly with the context: two dry runs give the line, further ones verify
    its prediction.

    Args:
        room: length of the context → bytes left on each device.
        first: a length that was measured already.
    """
    last = -(-limit // _STEP)  # lengths are numbered: multiples of 256, then the limit
    fits, fails = 0, last + 1
    below: _Point | None = None
    above: _Point | None = None
    for run in range(_MOST_RUNS + 1):
        if run == 0:
            number, length = first // _STEP, first
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
        return None  # not even the list of positions could be allocated


def _crossing(below: _Point, above: _Point) -> int:
    """The number of the longest length with room on each device, by linear interpolation."""
    (low, plenty), (high, lacking) = below, above
    if plenty is None or lacking is None:
        return (low + high) // 2 // _STEP
    lines = zip(plenty, lacking, strict=True)
    return min(low + (high - low) * a // (a - b) for a, b in lines if b < 0) // _STEP
