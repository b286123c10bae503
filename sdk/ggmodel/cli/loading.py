"""The options of every command that loads a model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .advice import advise_a_build
from .expanded import option
from .options import (
    FlashAttention,
    KVType,
    Mmproj,
    Models,
    Rpc,
    Strict,
    Type,
    Where,
    overrides,
    workers,
)
from .terminal import progress_bar

if TYPE_CHECKING:
    from ..runner import LoadedModel


@dataclass(kw_only=True)
class Loading:
    """How a model is loaded: a field an option, named as the argument of `ggmodel.load`.

    Defaults are those of `LoadOptions`, whose import takes longer than printing the help.
    """

    context_length: int | None = option(
        None, "Tokens of prompt and answer; the model's own, at most 4096, by default."
    )
    parallel: int = option(1, "Sequences the cache has room for.")
    threads: int | None = option(
        None, "CPU threads, always; by default as many as there are cores that nobody else uses."
    )
    batch_size: int = option(512, "The most tokens of a prompt computed at once.")
    flash_attention: FlashAttention = "auto"
    kv_type: KVType = "f16"
    optimize: str = option(
        "speed",
        "Two copies of weights that prompts and single tokens want arranged differently, or one.",
        metavar="speed|memory",
    )
    gpu_layers: str = option(
        "auto",
        "Layers on GPUs and workers: as many as fit, the last N (-1: all), or those of "
        "each device, as a number or a range: CUDA0=0-15,CUDA1=16-32.",
        metavar="auto|N|DEVICE=N,…",
    )
    override_tensor: list[str] | None = option(  # noqa: RUF009  # a field
        None,
        "Device of the weights whose name the regular expression finds; may be given repeatedly.",
        metavar="PATTERN=DEVICE",
    )
    backend: str = option("ggml", "The tensor library.")
    rpc: Rpc = None
    type: Type = None
    mmproj: Mmproj = None
    models: Models = None
    strict: Strict = True
    where: Where = False

    def arguments(self, *without: str) -> dict[str, Any]:
        """For `ggmodel.load`."""
        read: dict[str, Any] = {"rpc": workers(self.rpc)}
        read["override_tensor"] = overrides(self.override_tensor)
        hidden = (*without, "where")
        return {name: v for name, v in (vars(self) | read).items() if name not in hidden}

    def load(self, file: Any, **more: Any) -> LoadedModel:
        """The model, with a progress bar while it is loaded.

        Args:
            more: arguments that come first where they are options, too.
        """
        from ..names.found import Found
        from ..runner import load

        if isinstance(file, Found):
            with progress_bar("checking digests") as progress:
                file.verify(progress)
        with progress_bar("loading") as progress, warnings.catch_warnings():
            if "context_length" in more:  # it is the command's choice, not the user's
                warnings.filterwarnings("ignore", "context_length is ")
            model = load(file, **self.arguments() | more, progress=progress)
        advise_a_build()
        return model


@dataclass(kw_only=True)
class LoadingForMany(Loading):
    """How a model that many use at a time is loaded."""

    parallel: int = option(4, "Sequences of a model that are computed together.")
