"""`ggmodel ggml`: the library that models run on, and faster builds of it."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import ConfigError
from .options import Json
from .terminal import console, note, printable, progress_bar, report, size, table

if TYPE_CHECKING:
    from ..builds.library import InUse, Kept

_OPTION = re.compile(r"-D[A-Za-z_][\w.-]*(:[A-Z]+)?=.*", re.DOTALL)
_NATIVE = "native"  # the name of a build for the processor alone

ggml = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@ggml.callback()
def _group() -> None:
    """Show, build and choose the ggml that models run on.

    A build for this very machine has a faster prefill than the one that was installed. GGMODEL_GGML
    names a ggml for one process and comes first.
    """


@ggml.command()
def show(as_json: Json = False) -> None:
    """Show the ggml in use, and those that were built here.

    Where it was found, its version, devices and instructions, which instructions of this processor
    it does not use, and what a better build gives.
    """
    from ..builds.library import builds, in_use

    used, made = in_use(), builds()
    value = {**asdict(used), "gain": used.gain, "builds": [asdict(kept) for kept in made]}
    report(as_json, value, lambda: _print(used, made), ok=not used.problem)


class _TakesOptionsOfCmake(TyperCommand):
    """They come last, as arguments: else the h of -DNAME=/home would be `-h`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = [arg for arg in args if not arg.startswith("-D")]
        cmake = [arg for arg in args if arg.startswith("-D")]
        return super().parse_args(ctx, [*own, *([] if "--" in own else ["--"]), *cmake])


@ggml.command(cls=_TakesOptionsOfCmake, context_settings={"ignore_unknown_options": True})
def build(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-DNAME=VALUE]…", help="CMake options, such as -DGGML_BLAS=ON."),
    ] = None,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="Build the CUDA backend, for NVIDIA GPUs.")
    ] = False,
    vulkan: Annotated[
        bool, typer.Option("--vulkan", help="Build the Vulkan backend, for GPUs of any vendor.")
    ] = False,
    metal: Annotated[
        bool, typer.Option("--metal", help="Build the Metal backend, for Apple GPUs.")
    ] = False,
    rpc: Annotated[
        bool, typer.Option(help="Build the RPC backend, for workers on other machines.")
    ] = True,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the build; default: its backends."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Unpacked source package; default: downloaded."),
    ] = None,
) -> None:
    """Build the newest ggml for this machine.

    It takes a few minutes (more with a GPU), goes into the user's data folder, and becomes the
    default once its results were compared. An interrupted build goes on where it was. This needs a
    compiler and the extra `build`.
    """
    from ..builds.library import VARIABLE
    from ..builds.library import build as make

    for option in options or ():
        if not _OPTION.fullmatch(option):
            raise ConfigError(f"{option!r:.80} is no option; those of cmake are -DNAME=VALUE")
    backends = {"cuda": cuda, "vulkan": vulkan, "metal": metal}
    parts = [part for part, wish in backends.items() if wish]
    name = name or "-".join(parts) or _NATIVE
    arguments = [*([] if rpc else ["-DGGML_RPC=OFF"]), *(options or ())]
    with progress_bar("building") as progress:
        result = make(name, parts, arguments, unpacked=source, progress=progress)
    if result is None:
        message = (
            f"{name} is already built with these options; `ggmodel ggml use {name}` makes it "
            f"the default, and after `ggmodel ggml remove {name}` it can be built anew"
        )
    else:
        message = (
            f"{name}: ggml {result['version']}, {result['comparisons']} results compared on "
            f"{', '.join(result['devices'])}; it is the default now"
        )
    print(printable(message))
    if result is not None and os.environ.get(VARIABLE):
        note(f"{VARIABLE} is set and comes first")


@ggml.command()
def use(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|default|PATH",
            help="A build, default (the ggml installed with ggmodel), or the folder of another.",
            show_default=False,
        ),
    ],
) -> None:
    """Make a ggml the default.

    It is loaded once before; one that cannot be leaves the default as it was.
    """
    from ..builds.library import VARIABLE
    from ..builds.library import use as choose
    from ..ggml_choice import INSTALLED

    used = choose(name)
    if used.problem:
        note(used.problem)
    what = "the ggml that was installed with ggmodel" if name == INSTALLED else name
    print(printable(f"{what} is the default now"))
    if os.environ.get(VARIABLE):
        note(f"{VARIABLE} is set and comes first")


@ggml.command()
def remove(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the build, as `show` lists it.", show_default=False
        ),
    ],
) -> None:
    """Remove a build.

    If it is the default, the ggml that was installed with ggmodel takes its place.
    """
    from ..builds import builder

    print(printable(f"{name}: {size(builder.remove(name))} freed"))


def _print(used: InUse, made: list[Kept]) -> None:
    out = console()
    if used.problem:
        out.print(f"the ggml {used.origin} cannot be used", style="bold")
        out.print(used.problem)
    else:
        about = used.about
        out.print(f"ggml {about['version']}, {used.origin}", style="bold")
        out.print(table(_rows(used, about)))
    if made:
        out.print()
        cells = [
            (
                kept.name,
                "default" if kept.chosen else "" if kept.finished else "unfinished",
                kept.version,
                " ".join(kept.options),
            )
            for kept in made
        ]
        out.print(table(cells, ("build", "", "source", "options")))


def _rows(used: InUse, about: dict[str, Any]) -> list[tuple[str, str]]:
    features = [n for n, value in about["features"].items() if value != "0"]
    rows = [
        ("folder", about["prefix"]),
        ("commit", about["commit"]),
        ("backends", ", ".join(about["backends"])),
        ("devices", ", ".join(f"{n} ({text})" for n, text in about["devices"].items())),
        ("uses", " ".join(features)),
        ("does not use", " ".join(used.unused)),
        ("a better one", f"{used.gain}: `ggmodel ggml build`" if used.gain else ""),
    ]
    return [(label, text) for label, text in rows if text]
