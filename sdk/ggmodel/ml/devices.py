"""Devices: identity, description, comparison, and the memory report of a model on them.

Nothing here talks to a device; a backend fills in the values. Memory is in bytes; a model's is
reported by device, layer and purpose.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

_MIB = 1 << 20
_SOFTWARE = "llvmpipe"  # Mesa's device that is the CPU

VISIBLE_DEVICES = {"CUDA": "CUDA_VISIBLE_DEVICES", "ROCm": "ROCR_VISIBLE_DEVICES"}
"""The environment variable that hides a library's devices."""


class DeviceComparison(enum.IntEnum):
    """Result of comparing two device descriptions."""

    UNIQUE = 0
    """Two devices."""
    SAME_BACKEND = 1
    """One device, seen twice through the same library."""
    DUPLICATE = 2
    """One device, seen through two libraries."""


@dataclass(frozen=True)
class DeviceID:
    """Identity of a device within this process.

    Attributes:
        id: unique among the devices of one library. A number counts the visible ones.
        library: the library that drives it: "CPU", "CUDA", "ROCm", "Metal", "Vulkan", "RPC", …
    """

    id: str
    library: str = ""


@dataclass(frozen=True)
class DeviceInfo(DeviceID):
    """A device.

    Attributes:
        name: the backend's name for it, such as "CUDA0"; may change from run to run.
        description: the product's name, such as "NVIDIA H200".
        filter_id: the id to put into the environment variable that hides devices: the number
            before any were hidden.
        integrated: a GPU that uses system memory.
        pci_id: "domain:bus:device.function", the same for every library; "" if unknown.
        total_memory: bytes that models can use at most.
        free_memory: bytes that are free now.
        compute_major, compute_minor: the compute capability; −1 if unknown. On ROCm the parts of
            the gfx number.
        driver_major, driver_minor: the driver's version; 0 if unknown.
        library_path: the folders the library was loaded from; the last one is its own.
    """

    name: str = ""
    description: str = ""
    filter_id: str = ""
    integrated: bool = False
    pci_id: str = ""
    total_memory: int = 0
    free_memory: int = 0
    compute_major: int = -1
    compute_minor: int = -1
    driver_major: int = 0
    driver_minor: int = 0
    library_path: tuple[str, ...] = ()

    @property
    def device_id(self) -> DeviceID:
        """Its identity alone."""
        return DeviceID(self.id, self.library)

    def compute(self) -> str:
        """The compute capability: "8.6", on ROCm "gfx90a"; "" if unknown."""
        if self.compute_major < 0:
            return ""
        if self.library.casefold() == "rocm":
            return f"gfx{self.compute_major:x}{self.compute_minor:02x}"
        return f"{self.compute_major}.{self.compute_minor}"

    def driver(self) -> str:
        """The driver's version: "12.4"; "" if unknown."""
        return f"{self.driver_major}.{self.driver_minor}" if self.driver_major else ""

    def minimum_memory(self) -> int:
        """Bytes to leave free: the library's own use, whatever the model."""
        return (512 if self.library == "Metal" else 457) * _MIB

    def compare(self, other: DeviceInfo) -> DeviceComparison:
        """Whether the other describes the same device, and through the same library or not."""
        if self.pci_id != other.pci_id:
            return DeviceComparison.UNIQUE
        if not self.pci_id and self.device_id != other.device_id:
            return DeviceComparison.UNIQUE
        if self.library == other.library:
            return DeviceComparison.SAME_BACKEND
        return DeviceComparison.DUPLICATE

    def is_better(self, other: DeviceInfo) -> bool:
        """Whether *the other* is preferable: the same library in a newer version.

        The version is the end of the last folder's name: "cuda_v12" is newer than "cuda_v9".
        Folders are comparable only if they differ in numbers alone; False otherwise.
        """
        mine, others = self._library_version(), other._library_version()
        return mine[0] == others[0] and mine[1] < others[1]

    def _library_version(self) -> tuple[tuple[str, ...], list[int]]:
        """The parts that comparable versions share, and the version."""
        folder = PurePath(self.library_path[-1]).name if self.library_path else ""
        family, _, version = folder.partition("_")
        numbers = [int(n) for n in re.findall(r"\d+", version)]
        return (family, re.sub(r"[\d.]+", "", version)), numbers

    def preferred_library(self, other: DeviceInfo) -> bool:
        """Whether its library should drive a device that both libraries see."""
        own = ("CUDA", "ROCm")  # the vendors' libraries; general ones like Vulkan are slower
        return self.library in own and other.library not in own

    def needs_init_validation(self) -> bool:
        """Whether it needs a trial in a child process: it may be listed and crash when used."""
        return self.library in ("CUDA", "ROCm")

    def add_init_validation(self, env: MutableMapping[str, str]) -> None:
        """Sets the variable that makes a process initialise it fully, so that it crashes early."""
        env["GGML_CUDA_INIT"] = "1"

    def to_json(self) -> dict[str, Any]:
        """A runner's answer: the interface's key names, empty values left out."""
        values = {key: getattr(self, name) for name, key in _KEYS.items()}
        values["LibraryPath"] = list(self.library_path)
        return {k: v for k, v in values.items() if v or k in _ALWAYS_THERE}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DeviceInfo:
        """The device of a runner's answer; see `to_json`.

        Raises:
            ValueError: a value is of another kind.
        """
        arguments = {name: values[key] for name, key in _KEYS.items() if key in values}
        arguments["library_path"] = tuple(arguments.get("library_path") or ())
        for attribute in fields(cls):
            value = arguments.get(attribute.name, attribute.default)
            if type(value) is not type(attribute.default) and attribute.name != "id":
                raise ValueError(f"{attribute.name} of a device is {value!r:.80}")
        return cls(**arguments)


_KEYS = {f.name: f.name for f in fields(DeviceInfo)} | {
    "library": "backend",
    "integrated": "integration",
    "compute_major": "ComputeMajor",
    "compute_minor": "ComputeMinor",
    "library_path": "LibraryPath",
}
_ALWAYS_THERE = "id name description total_memory ComputeMajor ComputeMinor LibraryPath".split()

# several devices


def _grouped(
    devices: Iterable[DeviceInfo], key: Callable[[DeviceInfo], Hashable]
) -> list[list[DeviceInfo]]:
    groups: dict[Hashable, list[DeviceInfo]] = {}
    for device in devices:
        groups.setdefault(key(device), []).append(device)
    return list(groups.values())


def by_library(devices: Iterable[DeviceInfo]) -> list[list[DeviceInfo]]:
    """Devices grouped by library, in the order first seen."""
    return _grouped(devices, lambda d: d.library)


def by_performance(devices: Iterable[DeviceInfo]) -> list[list[DeviceInfo]]:
    """Devices grouped by speed (integrated or not), in the order first seen."""
    return _grouped(devices, lambda d: d.integrated)


def by_free_memory(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Devices by free memory, ascending, integrated ones before all others: the last is best."""
    return sorted(devices, key=lambda d: (not d.integrated, d.free_memory))


def flash_attention_supported(devices: Iterable[DeviceInfo]) -> bool:
    """Whether all of them have the fused attention op.

    CUDA needs compute capability 7 or more, except 7.2 (Jetson Xavier). Mesa's software device for
    Vulkan crashes in it.
    """
    return all(map(_fuses, devices))


def _fuses(device: DeviceInfo) -> bool:
    if device.library == "CUDA":
        capability = (device.compute_major, device.compute_minor)
        return capability >= (7, 0) and capability != (7, 2)
    if device.library == "Vulkan":
        return not device.description.startswith(_SOFTWARE)
    return device.library.casefold() == "cpu" or device.library in ("Metal", "ROCm")


def get_visible_devices_env(
    devices: Iterable[DeviceInfo], must_filter: bool = False
) -> dict[str, str]:
    """Environment variables that show these devices alone to a process.

    Args:
        must_filter: hide CUDA devices too. Off by default, because ROCm reads CUDA's variable.
    """
    visible: dict[str, list[str]] = {}
    for device in devices:
        if device.library == "ROCm" or (must_filter and device.library in VISIBLE_DEVICES):
            ids = visible.setdefault(VISIBLE_DEVICES[device.library], [])
            ids.append(device.filter_id or device.id)
    return {variable: ",".join(ids) for variable, ids in visible.items()}


def library_paths(devices: Iterable[DeviceInfo]) -> list[str]:
    """The folders of the devices' libraries, each once."""
    return list(dict.fromkeys(folder for d in devices for folder in d.library_path))


def without_duplicates(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """One description for each device, in the order first seen.

    Among versions of a library the newest that drives all of its devices is taken, else the newest
    for each device; among libraries the preferred one, else the first.
    """
    kept: list[DeviceInfo] = []
    for device in _of_one_version(devices):
        for i, other in enumerate(kept):
            comparison = other.compare(device)
            if comparison is DeviceComparison.UNIQUE:
                continue
            newer = comparison is DeviceComparison.SAME_BACKEND and other.is_better(device)
            if newer or device.preferred_library(other):
                kept[i] = device
            break
        else:
            kept.append(device)
    return kept


def _of_one_version(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Keeps one version of a library where it drives all of the library's devices."""
    chosen: dict[str, str] = {}
    for group in by_library(devices):
        everything = {d.pci_id or d.id for d in group}
        best: DeviceInfo | None = None
        for version in _grouped(group, _folder):
            complete = {d.pci_id or d.id for d in version} == everything
            if complete and (best is None or best.is_better(version[0])):
                best = version[0]
        if best is not None:
            chosen[best.library] = _folder(best)
    return [d for d in devices if _folder(d) == chosen.get(d.library, _folder(d))]


def _folder(device: DeviceInfo) -> str:
    return device.library_path[-1] if device.library_path else ""


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
