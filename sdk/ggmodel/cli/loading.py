"""The options of every command that loads a model.

A note says where the build of ggml leaves instructions of the processor unused.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import (
    FlashAttention,
    KVType,
    Mmproj,
    Models,
    Rpc,
    Strict,
    Type,
    Where,
    adapters_of,
    option,
    overrides,
    workers,
)
from .terminal import note, printable, progress_bar

if TYPE_CHECKING:
    from ..runner import LoadedModel


def advise_a_build() -> None:
    """Says on a terminal, once for each ggml that is installed, that a build made here is faster.
    Where ggml was not loaded, or nothing can be remembered, it says nothing."""
    if "ggmodel.native" not in sys.modules or not sys.stderr.isatty():
        return
    from .. import ggml_choice, native
    from ..platforms import processor

    unused = processor.missing(native.features())
    if not unused or ggml_choice.is_native(native.prefix) or not _first_time(native.prefix):
        return
    note(
        printable(
            f"ggml {native.version} uses no {', '.join(unused)} of this processor; "
            "`ggmodel ggml build` makes a faster one, `ggmodel ggml show` says more"
        )
    )


def _first_time(prefix: Path) -> bool:
    from .. import storage
    from ..errors import Error

    name = hashlib.sha256(str(prefix).encode("utf-8", "replace")).hexdigest()[:16]
    with suppress(OSError, Error):
        advised = storage.data_folder() / "advised"  # caches are emptied
        advised.mkdir(parents=True, exist_ok=True)
        (advised / name).touch(exist_ok=False)
        return True
    return False


@dataclass(kw_only=True)
class Loading:
    """How a model is loaded: a field an option, named as the argument of `ggmodel.load`.

    Defaults are those of `LoadOptions`, whose import takes longer than printing the help.
    """

    context_length: int | None = option(
        None, "Context length of a sequence in tokens; default: the model's own, at most 4096."
    )
    parallel: int = option(1, "Sequences that the KV cache has slots for.")
    threads: int | None = option(
        None, "CPU threads; default: the cores that no other process keeps busy."
    )
    batch_size: int = option(512, "Tokens of a prompt computed in one batch, at most.")
    flash_attention: FlashAttention = "auto"
    kv_type: KVType = "f16"
    optimize: str = option(
        "speed",
        "speed keeps weights in two layouts, for prefill and for decode; memory in one.",
        metavar="speed|memory",
    )
    deterministic: bool = option(
        False,
        "The same bits alone, in any batch and on any number of threads; on the CPU.",
        "--deterministic/--no-deterministic",
    )
    gpu_layers: str = option(
        "auto",
        "Layers to offload to GPUs and RPC workers: as many as fit, the last N (-1 = all), or "
        "those of each device, as a number or a range: CUDA0=0-15,CUDA1=16-32.",
        metavar="auto|N|DEVICE=N,…",
    )
    override_tensor: list[str] | None = option(  # noqa: RUF009  # a field
        None,
        "Place the weights whose names match the regular expression on DEVICE; may be repeated.",
        metavar="PATTERN=DEVICE",
    )
    backend: str = option("ggml", "Tensor library: ggml, or reference (numpy).")
    rpc: Rpc = None
    type: Type = None
    mmproj: Mmproj = None
    adapters: list[str] | None = option(  # noqa: RUF009  # a field
        None,
        "LoRA or DoRA adapter: a folder of PEFT, a GGUF file, or FOLDER/TASK; may be repeated.",
        "--adapter",
        metavar="PATH[=STRENGTH]",
    )
    models: Models = None
    strict: Strict = True
    where: Where = False

    def arguments(self, *without: str) -> dict[str, Any]:
        """For `ggmodel.load`."""
        read: dict[str, Any] = {"rpc": workers(self.rpc)}
        read["override_tensor"] = overrides(self.override_tensor)
        read["adapters"] = adapters_of(self.adapters)
        hidden = (*without, "where")
        return {name: v for name, v in (vars(self) | read).items() if name not in hidden}

    def load(self, file: Any, **more: Any) -> LoadedModel:
        """The model, with a progress bar while it is loaded.

        Args:
            more: arguments that come first where they are options, too.
        """
        from ..loading import load
        from ..runner.loading.resolved import ResolvedModel

        if isinstance(file, ResolvedModel):
            with progress_bar("checking digests") as progress:
                file.verify(progress)
        with progress_bar("loading") as progress, warnings.catch_warnings():
            if "context_length" in more:  # it is the command's choice, not the user's
                warnings.filterwarnings("ignore", "context_length is ")
            model = load(file, **self.arguments() | more, progress=progress)
        advise_a_build()
        return model


@dataclass(kw_only=True)
class LoadingToAnswer(Loading):
    """How a model that generates text is loaded."""

    draft: str | None = option(
        None,
        "Draft model for speculative decoding: a smaller one with the same tokens, or own, the "
        "model's own head. Answers stay the same but for rounding.",
        metavar="MODEL",
    )
    steer: list[str] | None = option(  # noqa: RUF009  # a field
        None,
        "Steering vector (control vector) that all answers are steered by, and its strength; may "
        "be repeated. `ggmodel steer make` makes one.",
        metavar="FILE[:STRENGTH]",
    )
    draft_tokens: int = option(
        16, "Draft tokens at once, at most; as many as pay by measurement.", metavar="N"
    )


@dataclass(kw_only=True)
class LoadingToGenerate(LoadingToAnswer):
    """How a model is loaded whose prompts may begin alike in several processes."""

    prefix_store: str | None = option(
        None,
        "Folder for prefixes of prompts on disk: what was computed once is not computed again, "
        "also after a restart.",
        metavar="DIR",
    )
    prefix_store_size: float = option(
        10.0, "GiB that the prefixes on disk take, at most.", metavar="GIB"
    )


@dataclass(kw_only=True)
class LoadingForMany(LoadingToGenerate):
    """How a model that many use at a time is loaded."""

    context_length: int | None = option(
        None, "Context length of a sequence in tokens; default: the model's own, as memory allows."
    )
    parallel: int = option(
        4, "Slots: sequences of a model that are computed in one batch (continuous batching)."
    )
    cache_ram: int | None = option(
        None,
        "MiB of memory for prefixes of prompts that no slot holds any more (0: none); default: "
        "8192, at most a quarter of what is free.",
        metavar="MIB",
    )
