"""`ggmodel runner`: a runner process, which computes one model for a server."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from ..errors import Unsupported
from ..extras import install_command
from ..interrupts import until_set
from .expanded import expanded
from .loading import Loading
from .options import File


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
    loading: Loading,
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
    from ..serve.runners.process import say, serve

    arguments = loading.arguments("progress")
    close = serve(file, token or secrets.token_urlsafe(32), port, arguments, say)
    try:
        until_set(threading.Event())
    finally:
        close()
