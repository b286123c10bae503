"""Which layers go to which device, worked out from what dry runs report.

Nothing here talks to a device: a dry run and an allocation are callables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from ...errors import OutOfMemory
from ...ml import (
    AllocationStatus,
    BackendMemory,
    DeviceID,
    DeviceInfo,
    GPULayers,
    GPULayersList,
    by_free_memory,
)

log = logging.getLogger("ggmodel.runner")

DryRun = Callable[[GPULayersList], BackendMemory]
T = TypeVar("T")

_MOST_RUNS = 10  # of a search; two or three are the rule
_NONE = -1  # the budget of a device that is to take nothing, not even an empty layer


def layout(
    memory: BackendMemory,
    devices: Sequence[DeviceInfo],
    layers: int | None = None,
    *,
    overhead: int = 0,
    backoff: float = 0.0,
) -> GPULayersList:
    """The best layers for each device by one report.

    Layers are packed from the last one backwards, each device taking consecutive ones: on the
    fewest devices that hold them all, evenly by share of what a device has room for. If not all
    fit, the output layer is the first to stay on the CPU. The best devices are taken first and get
    the last layers: those of this machine, then remote ones, then GPUs that use system memory;
    within each the library with the largest device, and the device with the most free memory.

    Args:
        memory: what a dry run with any layout reported.
        layers: exactly that many, also where they do not fit: the last ones, without the output
            layer unless it takes all; negative is all. None takes as many as fit.
        overhead: bytes to leave free on each device, besides its minimum.
        backoff: the share of a device's free memory not to be counted on.
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
    """Layers by `layout`, until a dry run with them leads to them again.

    What is needed depends on the layout itself: a device in use needs room for its graphs, and a
    tied embedding is needed twice once the output layer leaves the CPU. Where that leads back to a
    layout seen before, the largest of all figures count from then on.
    """
    if not devices or layers == 0:
        if layers:
            log.warning("gpu_layers is %d, but there is no device to place layers on", layers)
        return GPULayersList()
    current, seen = GPULayersList(), set[GPULayersList]()
    worst: _Needs | None = None
    circling = False
    for _ in range(_MOST_RUNS):
        seen.add(current)
        needs = _Needs.of(dry_run(current))
        worst = needs if worst is None else worst.merged(needs)
        following = _layout(worst if circling else needs, devices, layers, overhead, backoff)
        if following == current:
            return current
        if following in seen and not circling:
            circling = True
            following = _layout(worst, devices, layers, overhead, backoff)
        if circling and following in seen:
            return following
        current = following
    assert worst is not None
    return _layout(worst, devices, layers, overhead, backoff)


def with_backoff(
    allocate: Callable[[GPULayersList], T], choose: Callable[[float], GPULayersList]
) -> T:
    """Allocates what was chosen, and less wherever a device turns out to have less room than it
    said; the last resort is the CPU alone. For layouts that are ours to choose: who asked for a
    number of layers or named them gets `OutOfMemory`.

    Args:
        allocate: leaves nothing behind when it raises `OutOfMemory`.
        choose: layers for a share of the free memory not to be counted on, such as
            `lambda backoff: search(dry_run, devices, backoff=backoff)`.

    Raises:
        OutOfMemory: it was the CPU that had not enough, or the CPU alone has not either.
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
    """Whether fewer layers on devices would make it worse."""
    memory, failed = error.memory, AllocationStatus.FAILED
    return (
        isinstance(memory, BackendMemory)
        and memory.cpu.status is failed
        and all(gpu.status is not failed for gpu in memory.gpus)
    )


@dataclass(frozen=True)
class _Needs:
    """Bytes that each layer needs, wherever it is, and the graphs of each device."""

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
        """The larger of each two figures."""
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
    """The best last; of equals the first."""
    largest: dict[str, int] = {}
    for d in devices:
        largest[d.library] = max(d.free_memory, largest.get(d.library, 0))
    return sorted(
        by_free_memory(list(devices)[::-1]),
        key=lambda d: (not d.integrated, d.library != "RPC", largest[d.library], d.library),
    )


def _placed(ranked: list[DeviceInfo], end: int, counts: list[int]) -> GPULayersList:
    """The layers below `end`, so many for each device."""
    placed = []
    start = end - sum(counts)
    for device, count in zip(ranked, counts, strict=True):
        if count:
            layers = tuple(range(start, start + count))
            placed.append(GPULayers(device.id, device.library, layers))
        start += count
    return GPULayersList(placed)


def _packed(needs: Sequence[int], room: Sequence[int], *, forced: bool = False) -> list[int]:
    """How many layers each device takes: as many as fit, on as few devices as hold so many.

    Args:
        forced: all of them, whether they fit or not.
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
    """How many layers each device takes within its budget, if from the last layer and the last
    device backwards each takes what it can. No other way of taking gets further."""
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
    """The same layers with the least possible largest share of a device's room: as long as all
    devices can stay below the largest share there is, they do."""
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
