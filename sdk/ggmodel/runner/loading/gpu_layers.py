"""GPU layers: the option's spellings, and the split of layers over devices by dry runs.

The split goes by memory reports and talks to no device: dry runs and allocations are callables.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import ConfigError, OutOfMemory
from ...ml import (
    AllocationStatus,
    BackendMemory,
    DeviceID,
    DeviceInfo,
    GPULayers,
    GPULayersList,
    by_free_memory,
    without_duplicates,
)

log = logging.getLogger("ggmodel.runner")

DryRun = Callable[[GPULayersList], BackendMemory]
T = TypeVar("T")

_MOST_RUNS = 10  # dry runs of a search, which mostly takes two or three
_NONE = -1  # budget of a device without layers: not even an empty one fits


def layout(
    memory: BackendMemory,
    devices: Sequence[DeviceInfo],
    layers: int | None = None,
    *,
    overhead: int = 0,
    backoff: float = 0.0,
) -> GPULayersList:
    """The best layers for each device, by one memory report.

    Layers are packed from the last one backwards, consecutive ones on each device, on the fewest
    devices that hold them all, evenly by share of each device's room. If not all fit, the output
    layer stays on the CPU first. The best devices get the last layers: local devices come before
    remote ones, and these before GPUs that use system memory; within each kind the library with
    the largest device and the device with the most free memory come first.

    Args:
        memory: the report of a dry run with any layout.
        layers: exactly this many, even if they do not fit: the last ones, without the output
            layer unless all are taken; negative is all. None takes as many as fit.
        overhead: bytes to leave free on each device, besides its minimum.
        backoff: the share of a device's free memory that is left alone.
    """
    return _layout(_Needs.of(memory), devices, layers, overhead, backoff)


def search(
    dry_run: DryRun,
    devices: Sequence[DeviceInfo],
    layers: int | None = None,
    *,
    overhead: int = 0,
    backoff: float = 0.0,
) -> GPULayersList:
    """Layers by `layout`, repeated until a dry run confirms them.

    The memory needed depends on the layout: a device in use needs room for its graphs, and a tied
    embedding is needed twice once the output layer leaves the CPU. If that leads back to an earlier
    layout, the largest figures seen count from then on.
    """
    if not devices or layers == 0:
        if layers:
            log.warning("gpu_layers is %d, but there is no device to place layers on", layers)
        return GPULayersList()
    current, tried = GPULayersList(), set[GPULayersList]()
    worst: _Needs | None = None
    circling = False
    for _ in range(_MOST_RUNS):
        tried.add(current)
        needs = _Needs.of(dry_run(current))
        worst = needs if worst is None else worst.merged(needs)
        following = _layout(worst if circling else needs, devices, layers, overhead, backoff)
        if following == current:
            return current
        if following in tried and not circling:
            circling = True
            following = _layout(worst, devices, layers, overhead, backoff)
        if circling and following in tried:
            return following
        current = following
    assert worst is not None
    return _layout(worst, devices, layers, overhead, backoff)


def with_backoff(
    allocate: Callable[[GPULayersList], T], choose: Callable[[float], GPULayersList]
) -> T:
    """Allocates the chosen layers, and fewer if a device has less room than it reported; in the end
    the CPU takes all. For automatic layouts only: a requested number of layers is never reduced.

    Args:
        allocate: leaves nothing behind when it raises `OutOfMemory`.
        choose: layers for a share of the free memory to leave alone, such as
            `lambda backoff: search(dry_run, devices, backoff=backoff)`.

    Raises:
        OutOfMemory: the CPU lacks memory, with devices or alone.
    """
    failed = set[GPULayersList]()
    for tenths in range(10):
        layers = choose(tenths / 10)
        if not layers:
            break
        if layers in failed:
            continue
        try:
            return allocate(layers)
        except OutOfMemory as error:
            if _only_the_cpu_failed(error):
                raise
            log.warning("%s do not fit, trying fewer: %s", layers, error)
            failed.add(layers)
    return allocate(GPULayersList())


def _only_the_cpu_failed(error: OutOfMemory) -> bool:
    """Whether only the CPU lacked memory: fewer layers on devices would make that worse."""
    memory, failed = error.memory, AllocationStatus.FAILED
    return (
        isinstance(memory, BackendMemory)
        and memory.cpu.status is failed
        and all(gpu.status is not failed for gpu in memory.gpus)
    )


@dataclass(frozen=True)
class _Needs:
    """Bytes of each layer, and of each device's graphs."""

    layers: tuple[int, ...]
    graphs: Mapping[DeviceID, int]

    @classmethod
    def of(cls, memory: BackendMemory) -> _Needs:
        kinds = [kind for d in (memory.cpu, *memory.gpus) for kind in (d.weights, d.cache)]
        return cls(
            tuple(map(sum, zip(*kinds, strict=True))),
            {DeviceID(d.device.id, d.device.library): d.graph for d in memory.gpus},
        )

    def merged(self, other: _Needs) -> _Needs:
        """The larger figures of both."""
        graphs = {
            device: max(self.graphs.get(device, 0), other.graphs.get(device, 0))
            for device in {**self.graphs, **other.graphs}
        }
        return _Needs(tuple(map(max, self.layers, other.layers)), graphs)


def _layout(
    needs: _Needs,
    devices: Sequence[DeviceInfo],
    layers: int | None,
    overhead: int,
    backoff: float,
) -> GPULayersList:
    ranked = _ranked(devices)
    room = [
        int(d.free_memory * (1 - backoff))
        - d.minimum_memory()
        - needs.graphs.get(d.device_id, 0)
        - overhead
        for d in ranked
    ]
    blocks = len(needs.layers) - 1
    if layers is not None:
        count = blocks + 1 if not 0 <= layers <= blocks else layers
        end = max(count, blocks)
        return _placed(ranked, end, _packed(needs.layers[end - count : end], room, forced=True))
    whole = _packed(needs.layers, room)
    without = _packed(needs.layers[:blocks], room)
    if sum(whole) <= blocks and sum(without) >= sum(whole):
        return _placed(ranked, blocks, without)
    return _placed(ranked, blocks + 1, whole)


def _ranked(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Devices, the best last."""
    largest: dict[str, int] = {}
    for d in devices:
        largest[d.library] = max(d.free_memory, largest.get(d.library, 0))
    return sorted(
        by_free_memory(list(devices)[::-1]),
        key=lambda d: (not d.integrated, d.library != "RPC", largest[d.library], d.library),
    )


def _placed(ranked: list[DeviceInfo], end: int, counts: list[int]) -> GPULayersList:
    """The layers before `end`: `counts` layers for each device."""
    placed = []
    start = end - sum(counts)
    for device, count in zip(ranked, counts, strict=True):
        if count:
            layers = tuple(range(start, start + count))
            placed.append(GPULayers(device.id, device.library, layers))
        start += count
    return GPULayersList(placed)


def _packed(needs: Sequence[int], room: Sequence[int], *, forced: bool = False) -> list[int]:
    """Layers per device: as many as fit, on the fewest devices that hold that many.

    Args:
        forced: take all layers, even if they do not fit.
    """
    usable = [r if r > 0 else _NONE for r in room]
    best, chosen = [0] * len(room), usable
    for unused in range(len(room) - 1, -1, -1):
        budgets = [_NONE] * unused + usable[unused:]
        counts = _greedy(needs, budgets)
        if sum(counts) > sum(best):
            best, chosen = counts, budgets
        if sum(best) == len(needs):
            break
    if forced and room and sum(best) < len(needs):
        best, chosen = [0] * (len(room) - 1) + [len(needs)], [max(r, 1) for r in room]
    return _balanced(needs[len(needs) - sum(best) :], chosen, best)


def _greedy(needs: Sequence[int], budgets: Sequence[int]) -> list[int]:
    """Layers per device within its budget: from the last layer and the last device backwards each
    takes what it can. No other order takes more."""
    counts = [0] * len(budgets)
    left = len(needs)
    for device in reversed(range(len(budgets))):
        budget = budgets[device]
        while left and needs[left - 1] <= budget:
            budget -= needs[left - 1]
            left -= 1
            counts[device] += 1
    return counts


def _balanced(needs: Sequence[int], room: Sequence[int], counts: list[int]) -> list[int]:
    """The same layers, redistributed so that the largest used share of a device's room is least."""
    from fractions import Fraction  # slow to import

    while True:
        used, start = [], 0
        for count in counts:
            used.append(sum(needs[start : start + count]))
            start += count
        largest = max((Fraction(u, r) for u, r in zip(used, room, strict=True) if u), default=None)
        if largest is None:
            return counts
        # The most that is still a smaller share.
        budgets = [-(-largest.numerator * r // largest.denominator) - 1 for r in room]
        better = _greedy(needs, budgets)
        if sum(better) < len(needs):
            return counts
        counts = better


GPULayersOption = int | str | Mapping[str, int | Iterable[int]] | GPULayersList

_ALLOWED = (
    "'auto', a number of layers (-1 is all), or layers by device, such as 'CUDA0=0-15,CUDA1=16-32' "
    "or {'CUDA0': range(16), 'CUDA1': range(16, 33)}"
)


@dataclass(frozen=True)
class GPURequest:
    """The layers wanted on devices; as many as fit without count and names.

    Attributes:
        count: number of layers, placed by the layout; negative is all.
        named: device by name or "LIBRARY:id", and its layers or their number.
    """

    count: int | None = None
    named: tuple[tuple[str, int | Sequence[int]], ...] | None = None

    @property
    def automatic(self) -> bool:
        """Whether ggmodel chooses the layout, and may take fewer layers."""
        return self.count is None and self.named is None


def parse_gpu_layers(value: object) -> GPURequest:
    """Reads "auto", a number, "CUDA0=0-15,CUDA1=16-32", a mapping of devices to layers or to
    numbers of layers, or a `GPULayersList`.

    Raises:
        ConfigError: another value; the message lists the allowed ones.
    """
    if isinstance(value, GPULayersList):
        return GPURequest(named=tuple((f"{g.library}:{g.id}", g.layers) for g in value))
    if isinstance(value, Mapping):
        return GPURequest(
            named=tuple((_name(k, value), _layers(v, value)) for k, v in value.items())
        )
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return GPURequest(count=value)
    if isinstance(value, str):
        text = value.strip()
        if text == "auto":
            return GPURequest()
        if re.fullmatch(r"-1|[0-9]{1,9}", text):
            return GPURequest(count=int(text))
        if "=" in text:
            return GPURequest(named=tuple(_assignment(part, value) for part in text.split(",")))
    raise _refused(value)


def choose_layers(
    request: GPURequest,
    dry_run: DryRun,
    devices: Sequence[DeviceInfo],
    block_count: int,
    *,
    overhead: int = 0,
    backoff: float = 0.0,
) -> GPULayersList:
    """The requested layers: named ones as they are, others by `search`.

    Raises:
        ConfigError: an unknown device or layer is named.
    """
    if request.named is not None:
        return named_layers(request.named, devices, block_count)
    once = without_duplicates(devices)  # several libraries may drive one device
    return search(dry_run, once, request.count, overhead=overhead, backoff=backoff)


def named_layers(
    named: Iterable[tuple[str, int | Sequence[int]]],
    devices: Sequence[DeviceInfo],
    block_count: int,
) -> GPULayersList:
    """The layers of named devices, checked.

    A number takes that many of the model's last layers, in the order of the devices; all layers
    include the output layer.

    Raises:
        ConfigError: an unknown device or layer, or a device named twice.
    """
    pairs = [(_device(name, devices), layers) for name, layers in named]
    ids = [device.device_id for device, _ in pairs]
    if len(set(ids)) < len(ids):
        twice = next(d for d, _ in pairs if ids.count(d.device_id) > 1)
        raise ConfigError(f"gpu_layers names {twice.name} twice")
    counts = [layers for _, layers in pairs if isinstance(layers, int)]
    if counts and len(counts) < len(pairs):
        raise ConfigError("gpu_layers: give each device its layers, or each a number of layers")
    total = sum(counts)
    start = max(total, block_count) - total
    placed = []
    for device, layers in pairs:
        if isinstance(layers, int):
            layers = range(start, start + layers)
            start = layers.stop
        if layers and not 0 <= layers[0] <= layers[-1] <= block_count:
            wrong = layers[0] if layers[0] < 0 else layers[-1]
            raise ConfigError(
                f"gpu_layers gives {device.name} layer {wrong}; the model has 0 to "
                f"{block_count - 1}, and {block_count} is its output layer"
            )
        placed.append(GPULayers(device.id, device.library, tuple(layers)))
    return GPULayersList(placed)


def _device(name: str, devices: Sequence[DeviceInfo]) -> DeviceInfo:
    for device in devices:
        if name.casefold() in (device.name.casefold(), _qualified(device).casefold()):
            return device
    names = ", ".join(f"{d.name} ({_qualified(d)})" for d in devices) or "none"
    raise ConfigError(f"gpu_layers: there is no device {name!r}; there is {names}")


def _qualified(device: DeviceInfo) -> str:
    return f"{device.library}:{device.id}"


def _name(key: object, value: object) -> str:
    if isinstance(key, str):
        return key
    raise _refused(value)


def _layers(layers: object, value: object) -> int | Sequence[int]:
    """A number, or layers in ascending order."""
    if isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0:
        return layers
    # A range may have any length, so it stays a range until it is checked against the model.
    if isinstance(layers, range):
        return layers if layers.step > 0 else layers[::-1]
    if isinstance(layers, Iterable) and not isinstance(layers, (str, bytes)):
        numbers = list(layers)
        if all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            return tuple(sorted(numbers))
    raise _refused(value)


def _assignment(text: str, value: str) -> tuple[str, int | Sequence[int]]:
    """ "CUDA0=0-15" or "CUDA0=16"."""
    match = re.fullmatch(r"\s*(.+?)\s*=\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", text)
    if match is None:
        raise _refused(value)
    name, first, last = match[1], int(match[2]), match[3]
    if last is None:
        return name, first
    if int(last) < first:
        raise _refused(value)
    return name, range(first, int(last) + 1)


def _refused(value: object) -> ConfigError:
    return ConfigError(f"gpu_layers is {value!r:.80}; give {_ALLOWED}")
