"""The command line: thin, for everything it prints comes from elsewhere.

Exit status: 0; 1 for an error of ggmodel, printed as `error: …` (`GGMODEL_DEBUG=1` shows where it
came from); 2 for wrong usage; 130 after Ctrl-C; 141 when whoever read the output has gone.

Commands import what they need when they run, so that `--help` stays instant.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import Error
from .bench import bench
from .chat import chat
from .check import check
from .convert import convert
from .devices import devices
from .diff import diff
from .estimate import estimate
from .golden import golden
from .graph import graph
from .new import new
from .perplexity import perplexity
from .profile import profile
from .quantize import quantize
from .run import run
from .show import show
from .terminal import printable
from .trace import trace
from .worker import worker

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_NO_READER = 141  # 128 + SIGPIPE


class _Commands(TyperGroup):
    """Turns what commands raise into exit statuses. (Typer would do it for the last two, after
    printing something of its own.)"""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except Error as error:
            if os.environ.get("GGMODEL_DEBUG", "0") not in ("", "0"):
                raise
            print("error:", printable(str(error), keep="\n"), file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes stdout once more when it ends, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_NO_READER) from None


# Plain help and plain tracebacks: laying either out with rich takes longer than all the rest.
app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(chat)
app.command()(show)
app.command()(check)
app.command()(estimate)
app.command()(convert)
app.command()(quantize)
app.command()(perplexity)
app.command()(bench)
app.command()(graph)
app.command()(profile)
app.command()(golden)
app.command()(new)
app.command()(diff)
app.command()(trace)
app.command()(devices)
app.command()(worker)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ggmodel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Runs models that are declared in one short file, and looks into theirs."""


def main() -> None:
    """The entry point."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # tests put other objects there
            # A model may say what a terminal's encoding lacks.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    warnings.showwarning = _print_warning
    # numpy's BLAS would start a thread a core, which spin while the model loads; hardly anything
    # but the reference backend multiplies with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Python looks for cycles once more when it ends, in a vocabulary for a tenth of a second.
    atexit.register(gc.freeze)
    app(prog_name="ggmodel")


def _print_warning(message: Warning | str, *_: Any) -> None:
    """A line for users rather than one for programmers."""
    print("warning:", printable(str(message)), file=sys.stderr)
