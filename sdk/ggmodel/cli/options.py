"""Options that several commands share: types, how texts are read, and dataclasses of options."""

from __future__ import annotations

import glob
import inspect
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field, fields, is_dataclass
from functools import lru_cache, wraps
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from ..bounds import limits
from ..errors import ConfigError, PromptError
from ..reading import read_stream, too_large
from .terminal import note, printable

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONTEXT = inspect.Parameter("typer_context", _KEYWORD, annotation=typer.Context)


class Typed:
    """Options that know which of them the user gave.

    Attributes:
        typed: their names.
    """

    typed: ClassVar[frozenset[str]] = frozenset()


def _is_typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def option(default: Any, help: str, *flags: str, metavar: str | None = None) -> Any:
    """A field of such a dataclass."""
    return field(default=default, metadata={"": typer.Option(*flags, help=help, metavar=metavar)})


def expanded(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, in place of each parameter typed as a dataclass, an option a field.

    Args:
        without: fields that it has no option for.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        # Before Python 3.11 get_type_hints hides what is annotated behind a default of None.
        types = inspect.get_annotations(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        for own in inspect.signature(command).parameters.values():
            kind = types[own.name]
            if isinstance(kind, type) and is_dataclass(kind):
                options = [p for p in _options(kind) if p.name not in without]
                groups[own.name] = kind, [p.name for p in options]
                parameters += options
            else:
                parameters.append(own.replace(kind=_KEYWORD, annotation=kind))

        @wraps(command)
        def with_options(**values: Any) -> None:
            context = values.pop(_CONTEXT.name, None)
            for name, (kind, options) in groups.items():
                made = values[name] = kind(**{option: values.pop(option) for option in options})
                if isinstance(made, Typed) and context is not None:
                    vars(made)["typed"] = frozenset(o for o in options if _is_typed(context, o))
            command(**values)

        parameters.append(_CONTEXT)
        setattr(with_options, "__signature__", inspect.Signature(parameters))  # noqa: B010
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


@lru_cache
def _options(kind: Any) -> list[inspect.Parameter]:
    """A parameter for each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        for about in f.metadata.values():
            hints[f.name] = Annotated[hints[f.name], about]
    return [
        inspect.Parameter(f.name, _KEYWORD, default=f.default, annotation=hints[f.name])
        for f in fields(kind)
    ]


_WHERE, _LOCATED = "ggmodel.where", "ggmodel.found"  # in a context's `meta`
_COMPLETION_SECONDS = 0.5  # that the stores are looked through while a shell waits


def _existing(context: typer.Context, file: str) -> str:
    """A path that exists, or what a name stands for: a missing model is said before anything else
    is looked at."""
    return _located(context, file)


def existing(context: typer.Context, file: str | None) -> str | None:
    """The same where a file may be left out."""
    return None if file is None else _existing(context, file)


def checkpoint_folder(context: typer.Context, file: str | None) -> str | None:
    """The same for a checkpoint's folder; who opens it says that a path does not exist."""
    from ..names.grammar import is_path

    if file is None or (is_path(file) and not os.path.exists(file)):
        return file
    return _located(context, file, checkpoint=True)


def _located(context: typer.Context, file: str, checkpoint: bool = False) -> str:
    if context.resilient_parsing:  # the shell completes
        return file
    located: Any = file
    if not os.path.exists(file):
        from ..names import find

        located = find(file, checkpoint=checkpoint)
    context.meta[_LOCATED] = located
    if context.meta.get(_WHERE):
        _say_where(located)
    return located


def _where(context: typer.Context, show: bool) -> bool:
    """Either comes first, the option or the name."""
    context.meta[_WHERE] = show
    if show and _LOCATED in context.meta:
        _say_where(context.meta[_LOCATED])
    return show


def _say_where(located: Any) -> None:
    note(printable(getattr(located, "where", f"{located}: a path")))


def complete_model(incomplete: str) -> list[str]:
    """Models of this machine's stores whose names begin so, and files beside them. Files alone are
    left to the shell, which completes them better."""
    names: list[str] = []

    def look() -> None:
        from ..names.resolver import sources

        with suppress(Exception):  # the command itself says what is wrong
            for source in sources():
                names.extend(m.name for m in source.stored() if m.name.startswith(incomplete))

    if not incomplete.startswith(("/", ".", "~")):
        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(_COMPLETION_SECONDS)
    if not names:
        return []
    files = glob.glob(f"{glob.escape(incomplete)}*")
    return [*names, *sorted(f + "/" * os.path.isdir(f) for f in files)]


def _at_least_one(repetitions: int) -> int:
    if repetitions < 1:
        raise ConfigError(f"-r {repetitions}: there must be at least 1")
    return repetitions


File = Annotated[
    str,
    typer.Argument(
        callback=_existing,
        autocompletion=complete_model,
        metavar="MODEL",
        help="A GGUF file (the first of a split one), the folder of a Hugging Face model, or a "
        "name: ORG/REPO[:TAG] of the hub, NAME[:TAG] of Ollama.",
        show_default=False,
    ),
]
Folder = Annotated[
    str,
    typer.Argument(
        callback=checkpoint_folder,
        autocompletion=complete_model,
        metavar="FOLDER",
        help="A Hugging Face model: config.json, safetensors, tokenizer; or its name, ORG/REPO.",
        show_default=False,
    ),
]
Where = Annotated[
    bool, typer.Option("--where", callback=_where, help="Print where the model was found.")
]
Type = Annotated[
    str | None,
    typer.Option(
        metavar="f16|q8_0|q4_K_M|…",
        help="Quantisation type to convert a folder's weights to; default: none.",
    ),
]
Imatrix = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Importance matrix (imatrix) of the model, for types below four bits."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Models = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder with model files of architectures, searched first."),
]
Strict = Annotated[
    bool, typer.Option("--strict/--no-strict", help="Treat unused tensors as errors.")
]
Text = Annotated[
    str,
    typer.Argument(
        metavar="TEXT", help="A text file, UTF-8; - is standard input.", show_default=False
    ),
]
Out = Annotated[str, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Repetitions = Annotated[
    int,
    typer.Option(
        "--repetitions", "-r", callback=_at_least_one, help="Repetitions of each measurement."
    ),
]
Prompt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Prompt to compute.", show_default=False)
]
Tokens = Annotated[
    str | None, typer.Option(metavar="1,2,3", help="Prompt as token ids, in place of a text.")
]
FlashAttention = Annotated[
    str, typer.Option(metavar="auto|on|off", help="Flash attention: attention as one fused op.")
]
KVType = Annotated[
    str,
    typer.Option(
        metavar="f16|f32|q8_0|q4_0",
        help="Data type of the KV cache; q8_0 and q4_0 need flash attention.",
    ),
]
Mmproj = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="GGUF file with the multimodal projector; default: the one beside the model.",
    ),
]
RayReplicas = Annotated[
    int | None,
    typer.Option(
        "--ray",
        min=1,
        metavar="N",
        help="Run N replicas of each model on Ray, on the cluster of RAY_ADDRESS or here.",
    ),
]
RayCpus = Annotated[float, typer.Option(metavar="N", help="CPU cores of each replica on Ray.")]
RayGpus = Annotated[float, typer.Option(metavar="N", help="GPUs of each replica on Ray.")]
Rpc = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="RPC worker (see `ggmodel worker`) whose devices to use; may be repeated, or several "
        "separated by commas. Default: GGMODEL_RPC.",
    ),
]


def overrides(texts: list[str] | None) -> dict[str, str]:
    """The argument `override_tensor` of `ggmodel.load`."""
    devices: dict[str, str] = {}
    for text in texts or ():
        pattern, equals, device = text.rpartition("=")
        if not (pattern and equals and device):
            raise ConfigError(f"--override-tensor {text!r}: give PATTERN=DEVICE")
        devices.setdefault(pattern, device)
    return devices


def adapters_of(texts: list[str] | None) -> dict[str, float] | None:
    """The argument `adapters` of `ggmodel.load`."""
    strengths: dict[str, float] = {}
    for text in texts or ():
        path, equals, strength = text.rpartition("=")
        if not equals or os.path.exists(text):
            path, strength = text, "1"
        try:
            strengths[path] = float(strength)
        except ValueError:
            raise ConfigError(f"--adapter {text!r}: give PATH or PATH=STRENGTH") from None
    return strengths or None


def prompt_of(prompt: str | None, tokens: str | None) -> str | list[int]:
    """The text of --prompt, the ids of --tokens, or a text of our own.

    Raises:
        ConfigError: both are given, or tokens that are no numbers.
    """
    if prompt is not None and tokens is not None:
        raise ConfigError("give --prompt or --tokens, not both")
    if tokens is not None:
        return token_ids(tokens)
    return "The quick brown fox jumps over the lazy dog." if prompt is None else prompt


def token_ids(text: str) -> list[int]:
    """Token ids as they are written on a command line."""
    try:
        return [int(token) for token in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tokens {text!r:.60}: give token ids, such as 1,2,3") from None


def read_text(path: str, what: str) -> str:
    """The text of a file.

    Args:
        path: - is standard input.
        what: the option that it was given with, for messages.

    Raises:
        ConfigError: it cannot be read.
        FormatError: it exceeds the limit `input_bytes`.
        PromptError: it is no UTF-8.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = read_stream(sys.stdin.buffer, name, "input_bytes")
        else:
            with open(path, "rb") as file:
                data = read_stream(file, name, "input_bytes")
    except OSError as error:
        raise ConfigError(f"{what}{path}: {error.strerror}; give a text file") from None
    return utf8(data, name=name)


def read_line() -> bytes:
    """The next line of standard input with its end; empty after the last."""
    try:
        line = sys.stdin.buffer.readline(limits.input_line_bytes + 1)
    except OSError as error:
        raise PromptError(f"cannot read standard input: {error.strerror}") from None
    if len(line) > limits.input_line_bytes:
        raise PromptError(too_large("a line of standard input", "", "input_line_bytes"))
    return line


def utf8(data: bytes, where: str = "", name: str = "standard input") -> str:
    """Bytes as text.

    Args:
        where: the part of the input that they are, for messages.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{name} is not UTF-8 (byte {error.start}{where}); convert it, as with iconv"
        ) from None


def read_prompt(prompt: str) -> str:
    """A prompt; - reads it from standard input, less a last newline."""
    if prompt != "-":
        return utf8(prompt.encode("utf-8", "surrogateescape"), name="the prompt")
    return read_text("-", "").removesuffix("\n").removesuffix("\r")


def workers(texts: list[str] | None) -> list[str] | None:
    """The argument `rpc` of `ggmodel.load`."""
    return None if texts is None else [address for text in texts for address in text.split(",")]
