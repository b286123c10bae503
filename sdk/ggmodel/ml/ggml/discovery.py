"""The devices of the loaded ggml."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ...native import ffi, install, lib, prefix
from ..devices import VISIBLE_DEVICES, DeviceInfo
from ..system import system_info
from . import nvidia

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
    found: list[DeviceInfo] = []
    for handle in handles:
        library = _library(handle)
        index = sum(_library(h) == library for h in handles[: handles.index(handle)])
        if cpu or lib.ggml_backend_dev_type(handle) not in on_cpu:
            found.append(describe_device(handle, library, index))
    return found


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
        return replace(info, **nvidia.versions(nvidia.driver_library(), info.pci_id))
    return info


def _library(handle: Any) -> str:
    name = _text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle)))
    name = name.partition("[")[0]  # "RPC[host:port]"
    return _LIBRARIES.get(name, name)


def _unfiltered(library: str, index: int) -> str:
    """The id, in the variable that hides this library's devices, of the visible device `index`."""
    visible = os.environ.get(VISIBLE_DEVICES.get(library, ""), "")
    ids = [one.strip() for one in visible.split(",")]
    return ids[index] if index < len(ids) else ""


def _text(pointer: Any) -> str:
    return ffi.string(pointer).decode(errors="replace") if pointer else ""
