"""`ggmodel devices`: list the devices that models can run on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .options import Json, Rpc, workers
from .terminal import console, report, size, table

if TYPE_CHECKING:
    from ..ml import DeviceInfo, SystemInfo
    from ..ml.process import LocalDevices


def devices(rpc: Rpc = None, as_json: Json = False) -> None:
    """List the devices that models can run on.

    The CPU with its features, GPUs and the devices of workers as ggml sees them, and which ggml
    that is. GPUs are probed in processes of their own; one that crashes its process is left out.
    """
    from ..ml import system_info
    from ..ml.process import local_devices
    from ..runner.loading.options import Options
    from ..runner.loading.placement import Devices

    options = Options(rpc=workers(rpc))
    system = system_info()
    local = local_devices()
    if options.rpc:
        with Devices.open(options) as usable:
            remote = [device for device in usable.found if device.library == "RPC"]
            local = replace(local, found=local.found + remote)
    shown = ("version", "commit", "prefix", "backends", "features")
    about = {
        "ggml": {key: local.ggml[key] for key in shown},
        "system": system.to_json(),
        "devices": [device.to_json() for device in local.found],
        "left_out": local.left_out,
    }
    report(as_json, about, lambda: _print(local, system))


def _print(local: LocalDevices, system: SystemInfo) -> None:
    ggml = local.ggml
    out = console()
    out.print(f"ggml {ggml['version']} in {ggml['prefix']}")
    out.print(f"backends: {', '.join(ggml['backends'])}")
    for device in local.found:
        out.print()
        out.print(device.name, style="bold underline")
        out.print(table(_rows(device, ggml, system)))
    for name, why in local.left_out.items():
        out.print()
        out.print(f"{name} cannot be used: {why}", style="yellow")


def _rows(device: DeviceInfo, ggml: dict[str, Any], system: SystemInfo) -> list[tuple[str, str]]:
    is_cpu = device.library == "CPU"
    memory = f"{size(device.free_memory)} free of {size(device.total_memory)}"
    rows = [
        ("description", device.description),
        ("library", device.library),
        ("threads", str(system.thread_count) if is_cpu else ""),
        ("memory", memory + (", shared with the CPU" if device.integrated else "")),
        ("swap", f"{size(system.free_swap)} free" if is_cpu else ""),
        ("features", _features(ggml["features"]) if is_cpu else ""),
        ("compute", device.compute()),
        ("driver", device.driver()),
        ("PCI", device.pci_id),
    ]
    return [(label, text) for label, text in rows if text]


def _features(features: dict[str, str]) -> str:
    """Names; with their values where these say more than "there"."""
    return " ".join(name if value == "1" else f"{name}={value}" for name, value in features.items())
