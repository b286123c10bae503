"""The command line: thin, since everything it prints comes from elsewhere.

Exit status: 0; 1 for an error of ggmodel, printed as `error: …` (`GGMODEL_DEBUG=1` shows where it
came from); 2 for wrong usage; 130 after Ctrl-C; 141 when the reader of the output has gone.

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
from .imatrix import imatrix
from .new import new
from .perplexity import perplexity
from .profile import profile
from .quantize import quantize
from .run import run
from .show import show
from .terminal import in_options, printable
from .trace import trace
from .worker import worker

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_NO_READER = 141  # 128 + SIGPIPE


_USE, _LOOK, _WRITE = "Use a model", "Look into a model", "Write a model"


class _Commands(TyperGroup):
    """Turns errors of commands into exit statuses, and lists commands in groups. (Typer would do
    the last two, after printing something of its own; and group only with rich.)"""

    def invoke(self, ctx: Any) -> Any:
        def show(kind: str, message: object) -> None:
            text = in_options(str(message), self._options(ctx))
            print(f"{kind}:", printable(text, keep="\n"), file=sys.stderr)

        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: show("warning", message)
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except Error as error:
            if os.environ.get("GGMODEL_DEBUG", "0") not in ("", "0"):
                raise
            show("error", error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes stdout once more when it ends, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_NO_READER) from None

    def _options(self, ctx: Any) -> dict[str, str]:
        """Arguments of the command that was called, and the options that set them."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        params = [] if command is None else command.params
        options = [p for p in params if p.param_type_name == "option" and p.name]
        return {str(p.name): max(p.opts, key=len) for p in options}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group in (_USE, _LOOK, _WRITE):
            every: list[Any] = list(self.commands.values())
            commands = [c for c in every if c.rich_help_panel == group]
            limit = formatter.width - 6 - max(len(c.name or "") for c in commands)
            with formatter.section(group):
                formatter.write_dl([(c.name, c.get_short_help_str(limit)) for c in commands])


# Plain help and plain tracebacks: laying either out with rich takes longer than all the rest.
app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _group, _members in (
    (_USE, (run, chat, convert, quantize, imatrix, estimate, devices, worker)),
    (_LOOK, (show, check, bench, perplexity, profile, trace, graph)),
    (_WRITE, (new, diff, golden)),
):
    for _command in _members:
        app.command(rich_help_panel=_group)(_command)


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
    """Runs models that are declared in one short file, and looks into them."""


def main() -> None:
    """The entry point."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # tests put other objects there
            # A model may write characters that a terminal's encoding lacks.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    # numpy's BLAS would start a thread a core, which spin while the model loads; only the reference
    # backend multiplies much with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Python looks for cycles once more when it ends, in a vocabulary for a tenth of a second.
    atexit.register(gc.freeze)
    app(prog_name="ggmodel")
