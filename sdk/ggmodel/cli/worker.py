"""`ggmodel worker`: an RPC worker, which lends this machine's devices to another one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import console, count, size, table

if TYPE_CHECKING:
    from ..ml.ggml.worker import Worker

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
            min=1,
            help="CPU threads; default: one a core, at 127.0.0.1 one less, for the client.",
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
    _print(prepared)
    prepared.serve()


def _print(prepared: Worker) -> None:
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
