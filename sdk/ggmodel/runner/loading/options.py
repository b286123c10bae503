"""The options of loading: stated once, for `load`, `estimate` and all that prepare a model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...errors import ConfigError, Unsupported
from ...gguf_file import TensorSource
from ...kvcache import KV_TYPES
from ...ml import BackendParams, DType, FlashAttention, Optimize
from ...ml.backend import Progress
from ...names.found import Found
from ..option_names import OF_LOADING, unknown_option
from .gpu_option import GPULayersOption, parse_gpu_layers
from .sources import Source, located

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(kw_only=True)
class LoadOptions:
    """Options of `load` and `estimate`.

    Attributes:
        type: quantisation type that a folder's weights are converted to, as by `ggmodel convert`
            ("q8_0", "q4_K_M"); None keeps the types of the checkpoint.
        mmproj: GGUF file with the multimodal projector of a text model; None takes the one beside
            the model that fits ("mmproj" is in its name), "" takes none.
        backend: tensor library: "ggml", or "reference" (numpy).
        threads: CPU threads, at most the cores that this process may use. A number is fixed; None
            uses all these cores, and fewer while other processes keep them busy.
        context_length: tokens of a sequence, prompt and answer together; None is the model's own
            context length, at most 4096. More than the model was trained with gives a warning.
        batch_size: tokens of a prompt computed in one batch, at most.
        parallel: slots: sequences that the KV cache holds and one batch may compute.
        gpu_layers: layers offloaded to GPUs and RPC workers: "auto" is as many as fit, a number the
            last ones (-1 all), and {"CUDA0": range(16), "RPC0": 4} gives each device its layers or
            how many. The last number is the output layer.
        override_tensor: regular expression → device name or "CPU": weights whose names match are
            placed there, whatever their layer. The first expression that matches counts.
        flash_attention: attention as one fused op: "auto", "on", "off".
        kv_type: data type of the KV cache: "f16", "f32", and with flash attention "q8_0", "q4_0".
        optimize: "speed" keeps a weight in two layouts where prefill and decode are each faster
            with another one, if there is memory; "memory" keeps one.
        rpc: RPC workers, "host:port", whose devices are used like GPUs of this machine; None takes
            those in GGMODEL_RPC. The model's tensors are then in a process of their own.
        models: folder with model files of architectures, searched first.
        strict: unused tensors are errors.
        progress: called with the share of weights loaded, at the end with 1.0.
    """

    type: str | None = None
    mmproj: str | Path | None = None
    backend: str = "ggml"
    threads: int | None = None
    context_length: int | None = None
    batch_size: int = 512
    parallel: int = 1
    gpu_layers: GPULayersOption = "auto"
    override_tensor: Mapping[str, str] | None = None
    flash_attention: str = "auto"
    kv_type: str = "f16"
    optimize: str = "speed"
    rpc: Sequence[str] | None = None
    models: str | Path | None = None
    strict: bool = True
    progress: Progress | None = None


# Kinds that nothing else looks at before they are used.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "backend": ((str,), "a name such as 'ggml'"),
    "type": ((str, type(None)), "a name such as 'q8_0', or None"),
    "mmproj": ((str, Path, type(None)), "a path, or None"),
    "models": ((str, Path, type(None)), "the path of a folder, or None"),
    "override_tensor": ((Mapping, type(None)), "a mapping of patterns to devices, or None"),
    "rpc": ((str, Sequence, type(None)), "a list of 'host:port', or None"),
    "strict": ((bool,), "True or False"),
}


@dataclass(kw_only=True)
class Options(LoadOptions):
    """Load options, checked.

    Attributes:
        alloc_memory: False for a dry run.

    Raises:
        ConfigError: a value of the wrong type or outside of its range.
        Unsupported: an option or a combination that is not supported.
    """

    alloc_memory: bool = True

    def __post_init__(self):
        for name, (kinds, wanted) in _KINDS.items():
            if not isinstance(value := getattr(self, name), kinds):
                raise ConfigError(f"{name} is {value!r:.80}; it must be {wanted}")
        if self.progress is not None and not callable(self.progress):
            raise ConfigError(f"progress is {self.progress!r:.80}; it must be a function, or None")
        self.gpu_request = parse_gpu_layers(self.gpu_layers)
        if self.rpc is None:
            self.rpc = os.environ.get("GGMODEL_RPC", "") if self.backend == "ggml" else ()
        if isinstance(self.rpc, str):
            self.rpc = [part.strip() for part in self.rpc.split(",") if part.strip()]
        if self.rpc and self.backend != "ggml":
            raise Unsupported(f"the backend {self.backend!r} uses no workers; leave out rpc")
        positive("batch_size", self.batch_size)
        positive("parallel", self.parallel)
        self.cache_type = parse_kv_type(self.kv_type)
        self.backend_params = BackendParams(
            alloc_memory=self.alloc_memory,
            num_threads=positive("threads", self.threads or 0, 0),
            flash_attention=FlashAttention.parse(self.flash_attention),
            optimize=Optimize.parse(self.optimize),
            tensor_overrides=tuple((self.override_tensor or {}).items()),
        )

    @property
    def uses_devices(self) -> bool:
        """Whether anything may be placed elsewhere than on the CPU."""
        return self.gpu_request.count != 0 or bool(self.override_tensor)


def with_options(
    options: Callable[P, LoadOptions],
) -> Callable[[Callable[[Source, Options], R]], Callable[Concatenate[Source, P], R]]:
    """Gives a function of a source and `Options` the fields of `LoadOptions` as keywords instead.

    An unknown keyword is a ConfigError that names ours.
    """
    known = inspect.signature(options).parameters

    def decorate(function: Callable[[Source, Options], R]) -> Callable[Concatenate[Source, P], R]:
        @wraps(function)
        def call(source: Source, *args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name not in known:
                    raise unknown_option(name, known, OF_LOADING)
            if not isinstance(source, (str, os.PathLike, TensorSource)):
                raise ConfigError(
                    f"the model is given as {type(source).__name__}; give the path of a GGUF file "
                    "or of a Hugging Face folder, a name, or a tensor source"
                )
            if not isinstance(source, TensorSource):
                source = located(source)  # a missing file comes before other mistakes
            options = Options(*args, **given)
            if isinstance(source, Found) and options.context_length is None:
                options.context_length = source.defaults.context_length
            return function(source, options)

        first, *_ = inspect.signature(function).parameters.values()
        signature = inspect.Signature([first, *known.values()])
        setattr(call, "__signature__", signature)  # noqa: B010 (no attribute that pyright knows)
        return call

    return decorate


def parse_kv_type(name: str) -> DType:
    """ "f16", "f32", "q8_0" or "q4_0".

    Raises:
        Unsupported: another type.
    """
    for dtype in KV_TYPES:
        if dtype.name.lower() == str(name).lower():
            return dtype
    names = ", ".join(t.name.lower() for t in KV_TYPES)
    raise Unsupported(f"kv_type {name!r} is not supported; use one of {names}")


def positive(name: str, value: Any, least: int = 1) -> int:
    """The value.

    Raises:
        ConfigError: it is no integer, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}")
    return value
