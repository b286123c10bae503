"""Devices that models run on: what identifies and describes one, and how several compare.

Nothing here talks to a device; a backend fills these in. Memory is in bytes throughout.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..errors import ComputeError, Error, FormatError, Unsupported

log = logging.getLogger("ggmodel.ml")

_MIB = 1 << 20
_DISCOVERY_TIMEOUT = 30.0  # seconds; a device that sleeps takes several to wake
_REFRESH_TIMEOUT = 3.0  # seconds; an old figure is better than waiting longer

# CUDA's environment variable is read by ROCm too, so it is set only where one asks for it.
_ALWAYS_FILTERED = {"ROCm": "ROCR_VISIBLE_DEVICES"}
_FILTERED_ON_DEMAND = {"CUDA": "CUDA_VISIBLE_DEVICES"}
VISIBLE_DEVICES = {**_ALWAYS_FILTERED, **_FILTERED_ON_DEMAND}


class DeviceComparison(enum.IntEnum):
    """What two descriptions of devices have to do with each other."""

    UNIQUE = 0
    """Two devices."""
    SAME_BACKEND = 1
    """One device, seen twice through the same library."""
    DUPLICATE = 2
    """One device, seen through two libraries."""


@dataclass(frozen=True)
class DeviceID:
    """What tells a device from the others of this process.

    Attributes:
        id: unique among the devices of one library. A number counts those that are visible.
        library: what drives it: "CPU", "CUDA", "ROCm", "Metal", "Vulkan", "RPC", …
    """

    id: str
    library: str = ""


@dataclass(frozen=True)
class DeviceInfo(DeviceID):
    """A device.

    Attributes:
        name: what the backend calls it, such as "CUDA0"; may change from run to run.
        description: what people call it, such as "NVIDIA H200".
        filter_id: the id before any were hidden, where ids are numbers: what the environment
            variable that hides devices takes.
        integrated: a GPU that uses system memory.
        pci_id: "domain:bus:device.function", the same for every library; "" if unknown.
        total_memory, free_memory: bytes a model can use.
        compute_major, compute_minor: the version of its capabilities; −1 if unknown. On ROCm the
            parts of the gfx number.
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
        """The part that identifies it."""
        return DeviceID(self.id, self.library)

    def compute(self) -> str:
        """The version of its capabilities: "8.6", on ROCm "gfx90a"; "" if unknown."""
        if self.compute_major < 0:
            return ""
        if self.library.casefold() == "rocm":
            return f"gfx{self.compute_major:x}{self.compute_minor:02x}"
        return f"{self.compute_major}.{self.compute_minor}"

    def driver(self) -> str:
        """The driver's version: "12.4"; "" if unknown."""
        if not self.driver_major:
            return ""
        return f"{self.driver_major}.{self.driver_minor}"

    def minimum_memory(self) -> int:
        """Bytes to leave alone: what the library takes for itself, whatever the model."""
        return (512 if self.library == "Metal" else 457) * _MIB

    def compare(self, other: DeviceInfo) -> DeviceComparison:
        """Whether the other description is of another device, or through which library."""
        if self.pci_id != other.pci_id:
            return DeviceComparison.UNIQUE
        if not self.pci_id and self.device_id != other.device_id:
            return DeviceComparison.UNIQUE
        if self.library == other.library:
            return DeviceComparison.SAME_BACKEND
        return DeviceComparison.DUPLICATE

    def is_better(self, other: DeviceInfo) -> bool:
        """Whether *the other* is to be preferred: the same library in a newer version.

        The version is the end of the last folder's name: "cuda_v12" is newer than "cuda_v9".
        Folders that do not differ in numbers alone are not comparable: False.
        """
        mine, others = self._library_version(), other._library_version()
        return mine[0] == others[0] and mine[1] < others[1]

    def _library_version(self) -> tuple[tuple[str, ...], list[int]]:
        """What must be equal for versions to be comparable, and the version."""
        folder = PurePath(self.library_path[-1]).name if self.library_path else ""
        family, _, version = folder.partition("_")
        numbers = [int(n) for n in re.findall(r"\d+", version)]
        return (family, re.sub(r"[\d.]+", "", version)), numbers

    def preferred_library(self, other: DeviceInfo) -> bool:
        """Whether its library, rather than the other's, should drive a device that both see."""
        own = ("CUDA", "ROCm")  # the vendors' libraries; general ones like Vulkan are slower
        return self.library in own and other.library not in own

    def needs_init_validation(self) -> bool:
        """Whether it may be listed and crash once used, so that a trial is called for."""
        return self.library in ("CUDA", "ROCm")

    def add_init_validation(self, env: MutableMapping[str, str]) -> None:
        """Sets what makes a process initialise it in earnest, and crash if it would later."""
        env["GGML_CUDA_INIT"] = "1"

    def to_json(self) -> dict[str, Any]:
        """What runners answer with: the interface's key names, empty values left out."""
        values = {key: getattr(self, name) for name, key in _KEYS.items()}
        values["LibraryPath"] = list(self.library_path)
        return {k: v for k, v in values.items() if v or k in _ALWAYS_THERE}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeviceInfo:
        """The inverse of `to_json`; unknown keys are ignored.

        Raises:
            FormatError: no id, or a value of the wrong type.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
            raise FormatError(f"a device is an object with an id, not {value!r:.80}")
        given: dict[str, Any] = {}
        for field in fields(cls):
            key = _KEYS[field.name]
            if value.get(key) is None:
                continue
            item, wanted = value[key], str if field.name == "id" else type(field.default)
            if wanted is tuple:
                fits = isinstance(item, list) and all(isinstance(x, str) for x in item)
                item, kind = tuple(item) if fits else item, "list of str"
            else:
                fits, kind = type(item) is wanted, wanted.__name__
            if not fits:
                raise FormatError(
                    f"device {value['id']}: {key} is {type(item).__name__}, not {kind}"
                )
            given[field.name] = item
        return cls(**given)


_KEYS = {f.name: f.name for f in fields(DeviceInfo)} | {
    "library": "backend",
    "integrated": "integration",
    "compute_major": "ComputeMajor",
    "compute_minor": "ComputeMinor",
    "library_path": "LibraryPath",
}
_ALWAYS_THERE = (
    "id",
    "name",
    "description",
    "total_memory",
    "ComputeMajor",
    "ComputeMinor",
    "LibraryPath",
)

# groups and orders

T = TypeVar("T")


def _grouped(
    devices: Iterable[DeviceInfo], key: Callable[[DeviceInfo], T]
) -> list[list[DeviceInfo]]:
    groups: dict[T, list[DeviceInfo]] = {}
    for device in devices:
        groups.setdefault(key(device), []).append(device)
    return list(groups.values())


def by_library(devices: Iterable[DeviceInfo]) -> list[list[DeviceInfo]]:
    """Devices grouped by library, in the order first seen."""
    return _grouped(devices, lambda d: d.library)


def by_performance(devices: Iterable[DeviceInfo]) -> list[list[DeviceInfo]]:
    """Devices grouped by speed, that is integrated or not, in the order first seen."""
    return _grouped(devices, lambda d: d.integrated)


def by_free_memory(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Devices by free memory, ascending, integrated ones before all others: the last is best."""
    return sorted(devices, key=lambda d: (not d.integrated, d.free_memory))


def flash_attention_supported(devices: Iterable[DeviceInfo]) -> bool:
    """Whether every one of them has the fused attention op.

    CUDA needs capability 7 or more, but for 7.2 (Jetson Xavier).
    """
    return all(_has_flash_attention(d) for d in devices)


def _has_flash_attention(d: DeviceInfo) -> bool:
    if d.library == "CUDA":
        return d.compute_major >= 7 and (d.compute_major, d.compute_minor) != (7, 2)
    return d.library.casefold() == "cpu" or d.library in ("Metal", "ROCm", "Vulkan")


# processes


def get_visible_devices_env(
    devices: Iterable[DeviceInfo], must_filter: bool = False
) -> dict[str, str]:
    """Environment variables with which a process sees these devices and no others.

    Args:
        must_filter: hide CUDA devices too.
    """
    variables = VISIBLE_DEVICES if must_filter else _ALWAYS_FILTERED
    visible: dict[str, list[str]] = {}
    for device in devices:
        if device.library in variables:
            ids = visible.setdefault(variables[device.library], [])
            ids.append(device.filter_id or device.id)
    return {variable: ",".join(ids) for variable, ids in visible.items()}


def library_paths(devices: Iterable[DeviceInfo]) -> list[str]:
    """The folders that the devices' libraries were loaded from, each once."""
    return list(dict.fromkeys(folder for d in devices for folder in d.library_path))


def without_duplicates(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """One description for each device, in the order first seen.

    Of several versions of a library, the newest that drives all of its devices is taken, else the
    newest for each device; of several libraries the preferred one, else the first.
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
    """Without the devices of a library's other versions, if one version drives all of them."""
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


# discovery: a runner is a process, so that a device whose library crashes takes only that down


@runtime_checkable
class BaseRunner(Protocol):
    """A process that runs models, or only looks for devices."""

    def get_port(self) -> int:
        """The port it listens on, on this machine."""
        ...

    def has_exited(self) -> bool:
        """Whether it has ended: while looking for devices, one of them crashed it."""
        ...


@runtime_checkable
class RunnerDiscovery(BaseRunner, Protocol):
    """A runner that can be asked for devices."""

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        """Asks the libraries for devices and free memory; may take seconds.

        Args:
            timeout: seconds.
        """
        ...


@runtime_checkable
class FilteredRunnerDiscovery(RunnerDiscovery, Protocol):
    """A runner that knows which devices its model is on."""

    def get_active_device_ids(self) -> list[DeviceID]:
        """Devices its model uses, none before there is a model; returns at once."""
        ...


def get_devices_from_runner(
    runner: BaseRunner, timeout: float = _DISCOVERY_TIMEOUT
) -> list[DeviceInfo]:
    """The devices that a runner sees.

    Args:
        timeout: seconds.

    Raises:
        ComputeError: the runner has ended.
        Unsupported: it can be asked over its port only.
    """
    if runner.has_exited():
        raise ComputeError("the runner ended while looking for devices: one of them crashed it")
    if isinstance(runner, RunnerDiscovery):
        return runner.get_device_infos(timeout)
    raise Unsupported(
        f"asking the runner at port {runner.get_port()} over HTTP is not there yet; "
        "give the runner a method get_device_infos(timeout)"
    )


def refresh_free_memory(
    devices: Iterable[DeviceInfo],
    runners: Iterable[FilteredRunnerDiscovery] = (),
    discover: Callable[[], Iterable[DeviceInfo]] | None = None,
    timeout: float = _REFRESH_TIMEOUT,
) -> list[DeviceInfo]:
    """The devices with their free memory as of now, or as before where nobody knows.

    Args:
        runners: asked first, if active on a device not known yet: they hold it open anyway.
        discover: asked for what is still missing.
        timeout: seconds for each runner.
    """
    devices = list(devices)
    missing = {d.device_id for d in devices}
    free: dict[DeviceID, int] = {}

    def note(found: Iterable[DeviceInfo]) -> None:
        for device in found:
            if device.device_id in missing:
                missing.discard(device.device_id)
                free[device.device_id] = device.free_memory

    for runner in runners:
        if missing.isdisjoint(runner.get_active_device_ids()):
            continue
        try:
            note(runner.get_device_infos(timeout))
        except Error as error:
            log.warning("free memory: a runner did not answer: %s", error)
    if missing and discover is not None:
        note(discover())
    return [replace(d, free_memory=free.get(d.device_id, d.free_memory)) for d in devices]
