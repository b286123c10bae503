"""The command line: thin, since everything it prints comes from elsewhere.

Exit status: 0; 1 for an error of ggmodel or of the system, printed as `error: …` (`GGMODEL_DEBUG=1`
shows where it came from); 2 for wrong usage; 69 if a library that the command needs cannot be
imported; 70 for a bug; 130 after Ctrl-C, 143 after SIGTERM; 141 when the reader of the output has
gone.

Commands import what they need when they run, so that `--help` stays instant.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import warnings
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from .. import __version__
from .ending import finish, prepare, reporting_errors
from .spellings import Command
from .terminal import in_options, printable, say

_USE, _LOOK, _WRITE = "Use a model", "Inspect a model", "Write a model"
_MEMBERS = {
    _USE: "run chat serve ps stop list pull create cp rm embed rerank classify tokenize transcribe "
    "steer batch replay convert quantize imatrix adapter estimate devices ggml worker runner",
    _LOOK: "show check certify bench perplexity compare eval profile trace graph",
    _WRITE: "new port diff golden",
}
COMMANDS = {name: group for group, names in _MEMBERS.items() for name in names.split()}
"""The commands in their order, and their groups. Each is the function, or group of commands, of its
name in the module of its name, but for those of `_ELSEWHERE`."""
_HIDDEN = {"worker", "runner"}  # not in the list: other commands and other machines start them
_ELSEWHERE = {
    "batch": "serve:batch",
    "bench": "measure:bench",
    "check": "show:check",
    "classify": "texts:classify",
    "cp": "local_models:cp",
    "create": "local_models:create",
    "embed": "texts:embed",
    "eval": "evaluate:evaluate",
    "imatrix": "convert:imatrix",
    "list": "local_models:list_models",  # `list` is a type of Python
    "perplexity": "measure:perplexity",
    "profile": "measure:profile",
    "ps": "running:ps",
    "pull": "local_models:pull",
    "quantize": "convert:quantize",
    "rerank": "texts:rerank",
    "rm": "local_models:rm",
    "runner": "devices:runner",
    "stop": "running:stop",
    "tokenize": "texts:tokenize",
    "worker": "devices:worker",
}


def _made(name: str) -> Any:
    """A command; its module is imported now, as most calls want one only."""
    module, _, function = _ELSEWHERE.get(name, name).partition(":")
    command = getattr(importlib.import_module(f".{module}", __name__), function or name)
    group = command
    if not isinstance(command, typer.Typer):
        group = typer.Typer(rich_markup_mode=None, add_completion=False)
        group.command(name, cls=Command)(command)
    compiled = typer.main.get_command(group)
    compiled.name = name
    return compiled


class _Commands(TyperGroup):
    """Turns errors of commands into exit statuses, and lists commands in groups. (Typer would do
    the last two, after printing something of its own; and group only with rich.) A command is made
    when it is asked for."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _made(cmd_name)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        def shown(message: object) -> str:
            return printable(in_options(str(message), self._options(ctx)), keep="\n")

        with reporting_errors(shown), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: say(f"warning: {shown(message)}")
            result = super().invoke(ctx)
            sys.stdout.flush()
        return result

    def make_context(self, *args: Any, **more: Any) -> Any:
        with reporting_errors():  # --help and --version are printed here
            return super().make_context(*args, **more)

    def _options(self, ctx: Any) -> dict[str, str]:
        """Arguments of the command that was called, and the options that set them."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        params = [] if command is None else command.params
        options = [p for p in params if p.param_type_name == "option" and p.name]
        return {str(p.name): max(p.opts, key=len) for p in options}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group in (_USE, _LOOK, _WRITE):
            names = [name for name in _MEMBERS[group].split() if name not in _HIDDEN]
            commands = [self.get_command(ctx, name) for name in names]
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


def _print_version(show: bool) -> None:
    if show:
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
    """Run, inspect and write models: an architecture is one short file."""


def main() -> None:
    """Runs the command that the arguments name, and ends the process."""
    # numpy's BLAS would start a thread a core, which spin while the model loads; only the reference
    # backend multiplies much with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Python looks for cycles once more when it ends, in a vocabulary for a tenth of a second.
    atexit.register(gc.freeze)
    finish(_run)


def _run() -> None:
    prepare()
    app(prog_name="ggmodel")
