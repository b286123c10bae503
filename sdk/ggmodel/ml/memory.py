"""The memory report of a model, by device, layer and purpose."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field

from .devices import DeviceID

logger = logging.getLogger("ggmodel.ml")

_CPU = DeviceID("0", "CPU")


class AllocationStatus(enum.IntEnum):
    """State of an allocation."""

    UNALLOCATED = 0
    FAILED = 1
    ALLOCATED = 2


@dataclass
class DeviceMemory:
    """Bytes needed on one device.

    Attributes:
        name: the backend's name for the device; may change from run to run.
        weights, cache: one figure a layer; the last slot is the output layer.
        graph: compute buffers; not per layer.
        status: state of the last allocation on it.
        device: its identity.
    """

    name: str
    weights: list[int]
    cache: list[int]
    graph: int = 0
    status: AllocationStatus = AllocationStatus.UNALLOCATED
    device: DeviceID = _CPU

    def size(self) -> int:
        """Bytes altogether: weights, cache and graph."""
        return sum(self.weights) + sum(self.cache) + self.graph

    def __str__(self) -> str:
        """ "CPU: weights 1,024, cache 512, graph 256 bytes (allocated)"."""
        return (
            f"{self.name}: weights {sum(self.weights):,}, cache {sum(self.cache):,}, "
            f"graph {self.graph:,} bytes ({self.status.name.lower()})"
        )


@dataclass
class BackendMemory:
    """Bytes needed so far, including the last attempted allocation even if it failed.

    Attributes:
        cpu: system memory, without the GPUs' share of it.
        gpus: one entry a device.
        input_weights: embeddings, always on the CPU; part of no device's size.
        mapped: bytes of weights that stay in the mapped file; the devices' weights count them too.
    """

    cpu: DeviceMemory
    gpus: list[DeviceMemory] = field(default_factory=list)
    input_weights: int = 0
    mapped: int = 0

    def size(self) -> int:
        """Bytes on all devices, input weights included."""
        return self.input_weights + self.cpu.size() + sum(g.size() for g in self.gpus)

    def __str__(self) -> str:
        """A line for each device, then the input weights and the sum."""
        lines = [str(device) for device in (*self.gpus, self.cpu)]
        return "\n".join(
            (*lines, f"input weights {self.input_weights:,}, in all {self.size():,} bytes")
        )

    def log(self, level: int = logging.INFO) -> None:
        """Writes a summary, a line for each device, to the logger "ggmodel.ml"."""
        for line in str(self).splitlines():
            logger.log(level, "%s", line)
