"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A GGUF file, of a split one the first; or the folder of a Hugging Face model.",
        show_default=False,
    ),
]
Type = Annotated[
    str | None,
    typer.Option(
        metavar="f16|q8_0|q4_K_M|…",
        help="What the weights of a folder become; they stay as they are by default.",
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
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Prompt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The text to compute.", show_default=False)
]
Tokens = Annotated[
    str | None,
    typer.Option(metavar="1,2,3", help="Token ids to compute, in place of a text."),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", help="Tokens at most; until the context is full by default."
    ),
]
Temperature = Annotated[
    float, typer.Option(help="Randomness; 0 always takes the most likely token.")
]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")]
TopP = Annotated[
    float, typer.Option(help="Keep the most likely tokens up to this sum of probabilities.")
]
MinP = Annotated[
    float, typer.Option(help="Drop tokens less likely than this share of the likeliest one.")
]
Seed = Annotated[int, typer.Option(help="Of the random numbers; -1 is a new one each time.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A text that ends the answer; may be given repeatedly."),
]
PromptLookup = Annotated[
    bool,
    typer.Option(
        "--prompt-lookup/--no-prompt-lookup",
        help="Guess ahead what repeats the prompt; the answer is the same, maybe sooner.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads, always; by default as many as there are cores that nobody else uses."
    ),
]
ContextLength = Annotated[
    int | None,
    typer.Option(help="Tokens of prompt and answer; the model's own, at most 4096, by default."),
]
BatchSize = Annotated[int, typer.Option(help="The most tokens of a prompt computed at once.")]
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
Optimize = Annotated[
    str,
    typer.Option(
        metavar="speed|memory",
        help="Two copies of weights that prompts and single tokens want arranged differently, or "
        "one.",
    ),
]
Backend = Annotated[str, typer.Option(help="The tensor library.")]
Mmproj = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The projector file of a model that sees; one that lies beside it is found.",
    ),
]
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


def token_ids(text: str) -> list[int]:
    """Token ids as they are written on a command line.

    Raises:
        ConfigError: they are none.
    """
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tokens {text!r:.60}: give token ids, such as 1,2,3") from None


def workers(given: list[str] | None) -> list[str] | None:
    """The argument `rpc` of `ggmodel.load`."""
    return None if given is None else [one for text in given for one in text.split(",")]
