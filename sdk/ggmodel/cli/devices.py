"""`ggmodel devices`: what models can run on here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import Json, Rpc, workers
from .terminal import console, report, size, table

if TYPE_CHECKING:
    from ..ml import DeviceInfo, SystemInfo


def devices(rpc: Rpc = None, as_json: Json = False) -> None:
    """Show what models can run on.

    The CPU with its features, GPUs and the devices of workers as ggml sees them, and which ggml
    that is.
    """
    from .. import native
    from ..ml import system_info
    from ..ml.ggml.discovery import discover
    from ..runner.loading.options import Options
    from ..runner.loading.placement import Devices

    ggml = native.describe()
    system = system_info()
    found = discover(cpu=True)
    with Devices.open(Options(rpc=workers(rpc))) as usable:
        found += [device for device in usable.found if device.library == "RPC"]
    shown = ("version", "commit", "prefix", "backends", "features")
    about = {
        "ggml": {key: ggml[key] for key in shown},
        "system": system.to_json(),
        "devices": [device.to_json() for device in found],
    }
    report(as_json, about, lambda: _print(ggml, system, found))


def _print(ggml: dict[str, Any], system: SystemInfo, found: list[DeviceInfo]) -> None:
    out = console()
    out.print(f"ggml {ggml['version']} in {ggml['prefix']}")
    out.print(f"backends: {', '.join(ggml['backends'])}")
    for device in found:
        out.print()
        out.print(device.name, style="bold underline")
        out.print(table(_rows(device, ggml, system)))


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
