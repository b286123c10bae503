"""The options of every command that loads a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from .options import (
    Backend,
    BatchSize,
    FlashAttention,
    GPULayers,
    KVType,
    Mmproj,
    Models,
    Optimize,
    OverrideTensor,
    Rpc,
    Strict,
    Threads,
    Type,
    overrides,
    workers,
)
from .terminal import progress_bar

if TYPE_CHECKING:
    from ..runner import LoadedModel


@dataclass(kw_only=True)
class Loading:
    """How a model is loaded: a field an option, named as the argument of `ggmodel.load`."""

    threads: Threads = None
    batch_size: BatchSize = 512
    flash_attention: FlashAttention = "auto"
    kv_type: KVType = "f16"
    optimize: Optimize = "speed"
    gpu_layers: GPULayers = "auto"
    override_tensor: OverrideTensor = None
    backend: Backend = "ggml"
    rpc: Rpc = None
    type: Type = None
    mmproj: Mmproj = None
    models: Models = None
    strict: Strict = True

    def arguments(self, *without: str) -> dict[str, Any]:
        """For `ggmodel.load`.

        Raises:
            ConfigError: an option that cannot be read.
        """
        read = {"override_tensor": overrides(self.override_tensor), "rpc": workers(self.rpc)}
        return {name: v for name, v in (vars(self) | read).items() if name not in without}

    def load(self, file: str, **more: Any) -> LoadedModel:
        """The model, with a progress bar while it is loaded.

        Args:
            more: arguments that come first where they are options, too.
        """
        from ..runner import load

        with progress_bar("loading") as progress:
            return load(file, **self.arguments() | more, progress=progress)


def loads(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, in place of its parameter `loading`, an option for each field of `Loading`.

    Args:
        without: fields that it has no option for.
    """
    hints = get_type_hints(Loading, include_extras=True)
    options = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in fields(Loading)
        if f.name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values()
        types = get_type_hints(command, {**command.__globals__, "Loading": Loading}, None, True)
        parameters = []
        for p in own:
            if p.name == "loading":
                parameters += options
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(p.replace(kind=kind, annotation=types[p.name]))

        @wraps(command)
        def with_options(**given: Any) -> None:
            chosen = {p.name: given.pop(p.name) for p in options}
            command(**given, loading=Loading(**chosen))

        setattr(with_options, "__signature__", inspect.Signature(parameters))  # noqa: B010
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate
