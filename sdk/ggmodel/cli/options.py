"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A GGUF file; of a split one the first.", show_default=False
    ),
]
Models = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder with architectures, looked in first."),
]
Strict = Annotated[
    bool, typer.Option("--strict/--no-strict", help="Whether unused tensors are errors.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
GPULayers = Annotated[
    str,
    typer.Option(
        metavar="auto|N|DEVICE=N,…",
        help="Layers on GPUs and workers: as many as fit, the last N (-1: all), or those of each "
        "device, as a number or a range: CUDA0=0-15,CUDA1=16-32.",
    ),
]
OverrideTensor = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN=DEVICE",
        help="Where weights lie whose name the regular expression finds; may be given repeatedly.",
    ),
]
Rpc = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="A worker (see `ggmodel worker`) whose devices to use; may be given repeatedly, or "
        "several separated by commas. GGMODEL_RPC by default.",
    ),
]


def overrides(given: list[str] | None) -> dict[str, str]:
    """The argument `override_tensor` of `ggmodel.load`.

    Raises:
        ConfigError: one is no PATTERN=DEVICE.
    """
    found: dict[str, str] = {}
    for text in given or ():
        pattern, equals, device = text.rpartition("=")
        if not (pattern and equals and device):
            raise ConfigError(f"--override-tensor {text!r}: give PATTERN=DEVICE")
        found.setdefault(pattern, device)
    return found


def workers(given: list[str] | None) -> list[str] | None:
    """The argument `rpc` of `ggmodel.load`."""
    return None if given is None else [one for text in given for one in text.split(",")]
