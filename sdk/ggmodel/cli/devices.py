"""`ggmodel devices`, `worker` and `runner`: this machine's devices, and processes that lend them.

A worker is an RPC worker, which lends devices to another machine; a runner process computes one
model for a server.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..concurrency import until_set
from ..errors import Unsupported
from ..imports import install_command
from .loading import LoadingToAnswer
from .options import File, Json, Rpc, expanded, workers
from .terminal import console, count, report, size, table

if TYPE_CHECKING:
    from ..ml import DeviceInfo, SystemInfo
    from ..ml.ggml.worker import Worker
    from ..ml.process import LocalDevices


def devices(rpc: Rpc = None, as_json: Json = False) -> None:
    """List the devices that models can run on.

    The CPU with its features, GPUs and the devices of workers as ggml sees them, and which ggml
    that is. GPUs are probed in processes of their own; one that crashes its process is left out.
    """
    from ..ml import system_info
    from ..ml.process import local_devices
    from ..runner.loading.preparation import Devices
    from ..runner.options import Options

    options = Options(rpc=workers(rpc))
    system = system_info()
    local = local_devices()
    if options.rpc:
        with Devices.open(options) as usable:
            remote = [device for device in usable.available if device.library == "RPC"]
            local = replace(local, devices=local.devices + remote)
    shown = ("version", "commit", "prefix", "backends", "features")
    about = {
        "ggml": {key: local.ggml[key] for key in shown},
        "system": system.to_json(),
        "devices": [device.to_json() for device in local.devices],
        "left_out": local.left_out,
    }
    report(as_json, about, lambda: _print_devices(local, system))


def _print_devices(local: LocalDevices, system: SystemInfo) -> None:
    ggml = local.ggml
    out = console()
    out.print(f"ggml {ggml['version']} in {ggml['prefix']}")
    out.print(f"backends: {', '.join(ggml['backends'])}")
    for device in local.devices:
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


_EXPOSED = """\
WARNING: other machines can connect to {endpoint}, and ggml's protocol has no authentication:
WARNING: whoever reaches the port can read and write the memory of this process.
WARNING: Use it on a network you trust, or keep to 127.0.0.1 and connect through an SSH tunnel."""


def worker(
    host: Annotated[
        str, typer.Option(help="Address to listen on (0.0.0.0 = all of this machine).")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port to listen on.")] = 50052,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Device to lend, as `ggmodel devices` names it; may be repeated. Default: all "
            "GPUs, or the CPU where there are none.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="CPU threads; default: one a core, at 127.0.0.1 one less, for the client."
        ),
    ] = None,
) -> None:
    """Start an RPC worker: lend this machine's devices to another one.

    Serves one client after the other until Ctrl-C. The protocol has no authentication: to be
    reached from other machines, prefer an SSH tunnel to another address than 127.0.0.1.
    """
    import logging

    from ..ml.ggml.worker import prepare

    # ggml's messages about clients that it cannot serve.
    logging.basicConfig(format="%(name)s: %(message)s")
    prepared = prepare(host, port, tuple(device or ()), threads or 0)
    if prepared.exposed:
        print(_EXPOSED.format(endpoint=prepared.endpoint), file=sys.stderr)
    _print_worker(prepared)
    prepared.serve()


def _print_worker(prepared: Worker) -> None:
    import socket

    out = console()
    threads = count(prepared.n_threads, "thread")
    rows = [
        (
            d.name,
            d.description,
            f"{size(d.free_memory)} free of {size(d.total_memory)}",
            threads if d.library == "CPU" else "",
        )
        for d in prepared.devices
    ]
    out.print(table(rows))
    out.print(f"serving at {prepared.endpoint} until Ctrl-C")
    port, name = prepared.port, socket.gethostname()
    if prepared.exposed:
        # Clients cannot connect to 0.0.0.0 itself.
        reached = name if prepared.address == "0.0.0.0" else prepared.address
        out.print(f"use it with  --rpc {reached}:{port}")
    else:
        out.print(f"use it with  --rpc {prepared.endpoint}")
        tunnel = f"ssh -N -L {port}:{prepared.endpoint} {name}"
        out.print(f"from another machine, leave this running there:  {tunnel}")


@expanded()
def runner(
    file: File,
    port: Annotated[int, typer.Option(help="TCP port to listen on (0 = any free one).")] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GGMODEL_RUNNER_TOKEN",
            help="Secret that requests begin with; default: a random one.",
        ),
    ] = None,
    *,
    loading: LoadingToAnswer,
) -> None:
    """Run one model in a process of its own, for a server.

    `ggmodel serve` starts such a process for each model. It listens on this machine only, and
    prints its port and the progress of loading in lines of JSON. Devices and state need no secret:
    GET /info, /active and /state.
    """
    import secrets

    try:
        import msgspec  # noqa: F401
    except ImportError:
        raise Unsupported(f"a runner needs msgspec: {install_command('serve')}") from None
    from ..serve.runners.process import serve, write_line

    arguments = loading.arguments("progress")
    close = serve(file, token or secrets.token_urlsafe(32), port, arguments, write_line)
    try:
        until_set(threading.Event())
    finally:
        close()
