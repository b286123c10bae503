"""How much memory a model takes, by device, layer and purpose."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class AllocationStatus(enum.IntEnum):
    """What became of an allocation."""

    UNALLOCATED = 0
    FAILED = 1
    ALLOCATED = 2


@dataclass
class DeviceMemory:
    """Bytes needed on one device.

    Attributes:
        weights, cache: one figure a layer; the last slot is the output layer.
        graph: compute buffers; not per layer.
    """

    name: str
    weights: list[int]
    cache: list[int]
    graph: int = 0
    status: AllocationStatus = AllocationStatus.UNALLOCATED

    def size(self) -> int:
        """Bytes altogether."""
        return sum(self.weights) + sum(self.cache) + self.graph


@dataclass
class BackendMemory:
    """Bytes needed so far, the last attempted allocation included, also when it failed.

    Attributes:
        input_weights: embeddings, always on the CPU; part of no device's size.
        mapped: bytes of weights that lie in the mapped file rather than in memory of their own;
            they are counted in the devices' weights too.
    """

    cpu: DeviceMemory
    gpus: list[DeviceMemory] = field(default_factory=list)
    input_weights: int = 0
    mapped: int = 0

    def size(self) -> int:
        """Bytes on all devices, input weights included."""
        return self.input_weights + self.cpu.size() + sum(g.size() for g in self.gpus)
