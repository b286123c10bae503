"""Arguments and options that several commands have, and how their texts are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError, PromptError


def _existing(file: str) -> str:
    """A path that exists: a missing one is said before anything else is looked at."""
    if not Path(file).exists():
        from ..gguf_file import open_gguf

        open_gguf(file)  # raises, with advice
    return file


def _at_least_one(repetitions: int) -> int:
    if repetitions < 1:
        raise ConfigError(f"-r {repetitions}: there must be at least 1")
    return repetitions


File = Annotated[
    str,
    typer.Argument(
        callback=_existing,
        metavar="FILE",
        help="A GGUF file, of a split one the first; or the folder of a Hugging Face model.",
        show_default=False,
    ),
]
Type = Annotated[
    str | None,
    typer.Option(
        metavar="f16|q8_0|q4_K_M|…",
        help="Type that a folder's weights are converted to; none by default.",
    ),
]
Imatrix = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="An importance matrix of the model, for types below four bits."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
Models = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder with architectures, looked in first."),
]
Strict = Annotated[
    bool, typer.Option("--strict/--no-strict", help="Whether unused tensors are errors.")
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
    typer.Option("--repetitions", "-r", callback=_at_least_one, help="Repetitions of each."),
]
Prompt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The text to compute.", show_default=False)
]
Tokens = Annotated[
    str | None,
    typer.Option(metavar="1,2,3", help="Token ids to compute, in place of a text."),
]
FlashAttention = Annotated[
    str, typer.Option(metavar="auto|on|off", help="Attention as one fused operation.")
]
KVType = Annotated[
    str,
    typer.Option(
        metavar="f16|f32|q8_0|q4_0",
        help="Type of keys and values in the cache; the last two need flash attention.",
    ),
]
Mmproj = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The vision projector; one that lies beside the model is found.",
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
    """The argument `override_tensor` of `ggmodel.load`."""
    found: dict[str, str] = {}
    for text in given or ():
        pattern, equals, device = text.rpartition("=")
        if not (pattern and equals and device):
            raise ConfigError(f"--override-tensor {text!r}: give PATTERN=DEVICE")
        found.setdefault(pattern, device)
    return found


def token_ids(text: str) -> list[int]:
    """Token ids as they are written on a command line."""
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tokens {text!r:.60}: give token ids, such as 1,2,3") from None


def read_text(path: str, what: str) -> str:
    """The text of a file.

    Args:
        path: - is standard input.
        what: the option that it was given with, for messages.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{what}{path}: {error.strerror}; give a text file") from None
    return utf8(data, name="standard input" if path == "-" else path)


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
        return prompt
    return read_text("-", "").removesuffix("\n").removesuffix("\r")


def workers(given: list[str] | None) -> list[str] | None:
    """The argument `rpc` of `ggmodel.load`."""
    return None if given is None else [one for text in given for one in text.split(",")]
