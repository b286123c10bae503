"""Devices of the loaded ggml, and the placement of a model's layers on them.

ggml does not report the versions of NVIDIA's devices; they come from the driver's library.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ...native import ffi, install, lib, prefix
from ...platforms.machine import CUDA_DRIVER
from ...resources import closed_on_error
from ..devices import VISIBLE_DEVICES, DeviceID, DeviceInfo
from ..node import Node
from ..params import BackendParams
from ..system import available_cores, system_info
from .cpu import Scratch, Threads
from .memory import Arena, Device

# CUdevice_attribute, in cuda.h
_COMPUTE_MAJOR = 75
_COMPUTE_MINOR = 76


def driver_library() -> Any:
    """The driver's library, or None without one."""
    try:
        return ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return None


def versions(driver: Any, pci_id: str) -> dict[str, int]:
    """The compute capability of one device and the CUDA version of the driver, as fields of
    `DeviceInfo`; empty if unknown.

    Args:
        driver: the result of `driver_library`.
        pci_id: "domain:bus:device.function".
    """
    device = ctypes.c_int()
    if driver is None or driver.cuInit(0):
        return {}
    if driver.cuDeviceGetByPCIBusId(ctypes.byref(device), pci_id.encode()):
        return {}
    major, minor, cuda = ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MINOR, device)
    driver.cuDriverGetVersion(ctypes.byref(cuda))  # 12040 is 12.4
    return {
        "compute_major": major.value,
        "compute_minor": minor.value,
        "driver_major": cuda.value // 1000,
        "driver_minor": cuda.value % 1000 // 10,
    }


_LIBRARIES = {"MTL": "Metal"}  # ggml's names that differ from the interface's


def discover(*, cpu: bool = False) -> list[DeviceInfo]:
    """The devices that ggml knows now, with their present memory.

    Includes the added remote workers. If one has gone, the query ends the process, as does every
    request of ggml to it.

    Args:
        cpu: includes the CPU, and accelerators that work on its memory.
    """
    on_cpu = (lib.GGML_BACKEND_DEVICE_TYPE_CPU, lib.GGML_BACKEND_DEVICE_TYPE_ACCEL)
    handles = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
    devices: list[DeviceInfo] = []
    for handle in handles:
        library = _library(handle)
        index = sum(_library(h) == library for h in handles[: handles.index(handle)])
        if cpu or lib.ggml_backend_dev_type(handle) not in on_cpu:
            devices.append(describe_device(handle, library, index))
    return devices


def describe_device(handle: Any, library: str, index: int) -> DeviceInfo:
    """One device.

    Args:
        handle: the `ggml_backend_dev_t`.
        library: the library that drives it.
        index: its number among the library's devices, which is its id.
    """
    props = ffi.new("struct ggml_backend_dev_props *")
    lib.ggml_backend_dev_get_props(handle, props)
    info = DeviceInfo(
        str(index),
        library,
        name=_text(props.name),
        description=_text(props.description),
        filter_id=_unfiltered(library, index),
        integrated=props.type == lib.GGML_BACKEND_DEVICE_TYPE_IGPU,
        pci_id=_text(props.device_id).lower(),
        total_memory=int(props.memory_total),
        free_memory=int(props.memory_free),
        library_path=(str(install.at(prefix).libraries),),
    )
    if props.type == lib.GGML_BACKEND_DEVICE_TYPE_CPU:
        # ggml reports all of the machine's memory as free, and ignores control groups.
        system = system_info()
        return replace(info, total_memory=system.total_memory, free_memory=system.free_memory)
    if library == "CUDA" and info.pci_id:
        return replace(info, **versions(driver_library(), info.pci_id))
    return info


def _library(handle: Any) -> str:
    name = _text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle)))
    name = name.partition("[")[0]  # "RPC[host:port]"
    return _LIBRARIES.get(name, name)


def _unfiltered(library: str, index: int) -> str:
    """The id, in the variable that hides this library's devices, of the visible device `index`."""
    visible = os.environ.get(VISIBLE_DEVICES.get(library, ""), "")
    ids = [number.strip() for number in visible.split(",")]
    return ids[index] if index < len(ids) else ""


def _text(pointer: Any) -> str:
    return ffi.string(pointer).decode(errors="replace") if pointer else ""


log = logging.getLogger("ggmodel.ml")

_CPU = DeviceInfo("0", "CPU", name="CPU")
_MOST_DEVICES = 16  # limit of ggml's scheduler, the CPU included; more end the process


def by_name(info: DeviceInfo) -> Any:
    """The `ggml_backend_dev_t` of a device."""
    return lib.ggml_backend_dev_by_name(info.name.encode())


class Hardware:
    """The CPU, and the devices that a part of the model is placed on.

    Attributes:
        cpu: the CPU. gpus: all other devices in use, in the order of their first layer.
        n_threads: the most CPU threads. threads: the pool that computes now.
        scratch: the CPU's scratch memory.
        offloads: whether a device takes over large products of weights in system memory.

    Raises:
        ConfigError: layers or weights are placed on a device, or at a layer, that does not exist.
    """

    def __init__(self, params: BackendParams, block_count: int):
        self.block_count = block_count
        handle = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
        self.cpu = Device(_CPU, handle)
        self.gpus: list[Device] = []
        # ggml's threads wait for each other in a spin: more threads than cores nearly stand still.
        cores = min(available_cores(), lib.GGML_MAX_N_THREADS)
        self.n_threads = min(params.num_threads or cores, cores)
        if params.num_threads > cores:
            log.warning("threads: %d wanted, %d used", params.num_threads, cores)
        adapts = not params.num_threads
        self.threads = Threads(self.cpu.backend, self.n_threads, adapts)
        self.scratch = Scratch(self.cpu, self.n_threads)
        with closed_on_error(self):
            self._open(params)
        self.offloads = any(_takes_over(gpu) for gpu in self.gpus)

    def _open(self, params: BackendParams) -> None:
        self._layers: dict[int, Device] = {}
        self._overrides: list[tuple[re.Pattern[str], Device]] = []
        if not any(g.layers for g in params.gpu_layers) and not params.tensor_overrides:
            return
        infos = discover()
        opened: dict[DeviceID, Device] = {}

        def device(info: DeviceInfo) -> Device:
            if info.device_id not in opened:
                opened[info.device_id] = Device(info, by_name(info))
                self.gpus.append(opened[info.device_id])
            return opened[info.device_id]

        for group in params.gpu_layers.in_order():
            if not group.layers:
                continue
            info = next((d for d in infos if d.device_id == group.device_id), None)
            if info is None:
                raise ConfigError(
                    f"layers are placed on device {group.library}:{group.id}; there {_names(infos)}"
                )
            if group.layers[-1] > self.block_count:
                raise ConfigError(
                    f"layer {group.layers[-1]} is placed on {info.name}; the layers are 0 to "
                    f"{self.block_count}, the last one the output layer"
                )
            self._layers.update(dict.fromkeys(group.layers, device(info)))
        for pattern, name in params.tensor_overrides:
            self._overrides.append((_compiled(pattern), self._named(name, infos, device)))
        if len(self.devices) > _MOST_DEVICES:
            raise ConfigError(
                f"the model is placed on {len(self.devices)} devices, the CPU included; ggml "
                f"computes on {_MOST_DEVICES} at most"
            )

    def _named(self, name: str, devices: list[DeviceInfo], device: Any) -> Device:
        if name.upper() == "CPU":
            return self.cpu
        info = next((d for d in devices if d.name == name), None)
        if info is None:
            raise ConfigError(
                f"weights are placed on device {name!r}; there is the CPU and {_names(devices)}"
            )
        return device(info)

    @property
    def devices(self) -> list[Device]:
        """All in use, the CPU last."""
        return [*self.gpus, self.cpu]

    def of_layer(self, layer: int) -> Device:
        """The device of a layer; numbers beyond the last are the output layer's."""
        return self._layers.get(min(layer, self.block_count), self.cpu)

    def of_weight(self, node: Node, layer: int) -> Device:
        """The home of a weight that the layer reads: an override, else the layer's device."""
        overriding = (d for pattern, d in self._overrides if pattern.search(node.name))
        return self._home(node, next(overriding, self.of_layer(layer)))

    def of_state(self, node: Node, layer: int) -> Device:
        """The home of a state of the layer."""
        return self._home(node, self.of_layer(layer))

    def _home(self, node: Node, device: Device) -> Device:
        return device if device is self.cpu or device.holds(node) else self.cpu

    def close(self) -> None:
        """Frees the devices; idempotent."""
        for device in self.devices:
            device.close()
        self.threads.close()


def _names(devices: Iterable[DeviceInfo]) -> str:
    names = ", ".join(f"{d.name} ({d.library}:{d.id})" for d in devices)
    return f"is {names}" if names else "is none; see `ggmodel devices`"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from None


def _takes_over(device: Device) -> bool:
    """Whether the device takes over a large product of a weight in system memory."""
    with closing(Arena(8)) as arena:
        a, b = (lib.ggml_new_tensor_2d(arena.ctx, lib.GGML_TYPE_F32, 256, 512) for _ in range(2))
        return lib.ggml_backend_dev_offload_op(device.handle, lib.ggml_mul_mat(arena.ctx, a, b))
