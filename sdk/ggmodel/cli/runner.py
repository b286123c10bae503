"""`ggmodel runner`: a model in a process of its own, which a server speaks with."""

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
    port: Annotated[int, typer.Option(help="The TCP port; 0 is any that is free.")] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GGMODEL_RUNNER_TOKEN",
            help="The secret that requests begin with; by default one that nobody knows.",
        ),
    ] = None,
    *,
    loading: Loading,
) -> None:
    """Hold a model for a server.

    `ggmodel serve` starts such a process for each model. It listens on this machine alone, and
    tells its port and how far it is in lines of JSON. Devices and state are told without a secret:
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
