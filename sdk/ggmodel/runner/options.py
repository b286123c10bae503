"""Options of loading: stated once, and their names."""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ..errors import ConfigError, Unsupported
from ..gguf_file import TensorSource
from ..kvcache import KV_TYPES
from ..ml import BackendParams, DType, FlashAttention, Optimize
from ..ml.backend import Progress
from ..ml.system import system_info
from .loading.adapters import AdapterPaths, strengths_of
from .loading.gpu_layers import GPULayersOption, parse_gpu_layers
from .loading.resolved import ResolvedModel
from .loading.sources import Source
from .steering import Steering

_LENGTH = "context_length"
_LAYERS = "gpu_layers (0: only the CPU, -1: all layers on GPUs)"
_TYPE = (
    "type= for the folder of a Hugging Face model, `ggmodel quantize IN OUT TYPE` for a GGUF file, "
    "kv_type= for the cache"
)

# Options of llama.cpp, llama-cpp-python, transformers, vLLM, Ollama, mlx-lm and OpenAI's API.
OWN = "own"  # as `draft`: the model's own head drafts
OF_LOADING = {
    **dict.fromkeys(("n_ctx", "num_ctx", "ctx_size", "max_seq_len", "max_model_len"), _LENGTH),
    **dict.fromkeys(("n_gpu_layers", "num_gpu", "ngl"), "gpu_layers"),
    **dict.fromkeys(("device", "devices", "device_map", "main_gpu"), _LAYERS),
    **dict.fromkeys(("n_threads", "num_threads", "num_thread"), "threads"),
    **dict.fromkeys(("n_batch", "n_ubatch", "num_batch", "ubatch_size"), "batch_size"),
    **dict.fromkeys(("n_parallel", "n_seq_max", "max_num_seqs"), "parallel"),
    **dict.fromkeys(("dtype", "torch_dtype", "quantization"), _TYPE),
    **dict.fromkeys(("type_k", "type_v", "cache_type_k", "kv_cache_dtype"), "kv_type"),
    **dict.fromkeys(("flash_attn", "attn_implementation"), "flash_attention"),
    **dict.fromkeys(("clip_model_path", "projector"), "mmproj"),
    **dict.fromkeys(("draft_model", "model_draft", "speculative_model"), "draft"),
    **dict.fromkeys(("assistant_model", "speculative_config"), "draft"),
    **dict.fromkeys(("draft_max", "num_draft_tokens", "num_speculative_tokens"), "draft_tokens"),
    **dict.fromkeys(("lora", "lora_path", "lora_adapters", "lora_modules"), "adapters"),
    "verbose": "logging.basicConfig(level=logging.INFO); loading prints nothing",
    "tensor_split": "gpu_layers={'CUDA0': 20, 'CUDA1': 12}",
    "model_path": "the path as first argument",
    "rpc_servers": "rpc",
}


def unknown_option(name: str, names: Collection[str], elsewhere: Mapping[str, str]) -> ConfigError:
    """The error for an option that does not exist.

    Args:
        names: those of the options that do.
        elsewhere: names in other libraries, and what to write for them here.
    """
    hint = elsewhere.get(name)
    if hint is None:
        near = difflib.get_close_matches(name, names, 1)
        hint = repr(near[0]) if near else ""
        return ConfigError(f"there is no option {name!r}" + (f"; do you mean {hint}?" * bool(hint)))
    return ConfigError(f"there is no option {name!r}; use {hint}")


P = ParamSpec("P")
R = TypeVar("R")


class Loaded(Protocol):
    """A loaded model.

    Attributes:
        source: what it was loaded from.
    """

    source: TensorSource


Draft = Source | Loaded


@dataclass(kw_only=True)
class LoadOptions:
    """Options of `load` and `estimate`.

    Attributes:
        type: quantisation type that a folder's weights are converted to, as by `ggmodel convert`
            ("q8_0", "q4_K_M"); None keeps the types of the checkpoint.
        draft: draft model for speculative decoding, a smaller one with the same tokens: a name, a
            path, a tensor source, or a loaded model, which is loaded once more. "own" is the
            model's own head for multi-token prediction (MTP). Answers stay the same but for
            rounding.
        draft_tokens: tokens that it drafts at once, at most; as many as pay by measurement.
        adapters: LoRA or DoRA adapters, each a folder of PEFT, a GGUF file, or FOLDER/TASK of a
            checkpoint that has one for each task: one, a list, or a mapping to strengths. They
            change all requests that do not choose; see `LoadedModel.adapters`.
        mmproj: GGUF file with the multimodal projector of a text model; None takes the one beside
            the model that fits ("mmproj" is in its name), "" takes none.
        backend: tensor library: "ggml", or "reference" (numpy).
        threads: CPU threads, at most the cores that this process may use. A number is fixed; None
            uses all these cores, and fewer while other processes keep them busy.
        context_length: tokens of a sequence, prompt and answer together; None is the model's own
            context length, at most 4096. More than the model was trained with gives a warning.
        batch_size: tokens of a prompt computed in one batch, at most.
        parallel: slots: sequences that the KV cache holds and one batch may compute.
        cache_ram: MiB of the host's memory, at most, for copies of prefixes that no slot holds any
            more: a conversation goes on from its copy. 0 keeps none, None is 8192 and at most a
            quarter of the memory that is free.
        prefix_store: folder for prefixes on disk: a prompt that begins as one before, in any
            process that uses the folder, goes on from there, also after a restart. Read and written
            beside the computation; None keeps none.
        prefix_store_size: GiB that all files of the folder take, at most; those used longest ago
            are removed.
        gpu_layers: layers offloaded to GPUs and RPC workers: "auto" is as many as fit, a number the
            last ones (-1 all), and {"CUDA0": range(16), "RPC0": 4} gives each device its layers or
            how many. The last number is the output layer.
        override_tensor: regular expression → device name or "CPU": weights whose names match are
            placed there, whatever their layer. The first expression that matches counts.
        flash_attention: attention as one fused op: "auto", "on", "off".
        kv_type: data type of the KV cache: "f16", "f32", and with flash attention "q8_0", "q4_0".
        optimize: "speed" keeps a weight in two layouts where prefill and decode are each faster
            with another one, if there is memory; "memory" keeps one.
        deterministic: a request's logits are the same bits alone and in any batch, with any prefix
            from the KV cache, on any number of threads. On the CPU alone.
        rpc: RPC workers, "host:port", whose devices are used like GPUs of this machine; None takes
            those in GGMODEL_RPC. The model's tensors are then in a process of their own.
        steer: steering vectors (control vectors), for all requests that say nothing of them: files,
            each with its strength behind a colon ("happy.gguf:1.5"), or `Steering`s.
        models: folder with model files of architectures, searched first.
        strict: unused tensors are errors.
        progress: called with the share of weights loaded, at the end with 1.0.
    """

    type: str | None = None
    draft: Draft | None = None
    draft_tokens: int = 16
    adapters: AdapterPaths = None
    mmproj: str | Path | None = None
    backend: str = "ggml"
    threads: int | None = None
    context_length: int | None = None
    batch_size: int = 512
    parallel: int = 1
    cache_ram: int | None = 0
    prefix_store: str | Path | None = None
    prefix_store_size: float = 10.0
    gpu_layers: GPULayersOption = "auto"
    override_tensor: Mapping[str, str] | None = None
    flash_attention: str = "auto"
    kv_type: str = "f16"
    optimize: str = "speed"
    deterministic: bool = False
    rpc: Sequence[str] | None = None
    steer: str | Steering | Sequence[str | Steering] | None = None
    models: str | Path | None = None
    strict: bool = True
    progress: Progress | None = None


# Kinds that nothing else looks at before they are used.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "backend": ((str,), "a name such as 'ggml'"),
    "type": ((str, type(None)), "a name such as 'q8_0', or None"),
    "mmproj": ((str, Path, type(None)), "a path, or None"),
    "models": ((str, Path, type(None)), "the path of a folder, or None"),
    "prefix_store": ((str, Path, type(None)), "the path of a folder, or None"),
    "prefix_store_size": ((int, float), "a number of GiB"),
    "override_tensor": ((Mapping, type(None)), "a mapping of patterns to devices, or None"),
    "rpc": ((str, Sequence, type(None)), "a list of 'host:port', or None"),
    "steer": ((str, Steering, Sequence, type(None)), "a list of 'FILE:STRENGTH', or None"),
    "strict": ((bool,), "True or False"),
    "deterministic": ((bool,), "True or False"),
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
        for name, (kinds, description) in _KINDS.items():
            if not isinstance(value := getattr(self, name), kinds):
                raise ConfigError(f"{name} is {value!r:.80}; it must be {description}")
        source = getattr(self.draft, "source", self.draft)
        if not isinstance(source, (str, os.PathLike, TensorSource, type(None))):
            raise ConfigError(
                f"draft is {self.draft!r:.80}; it must be a name, a path, a tensor source, a "
                f"loaded model, {OWN!r} or None"
            )
        if self.progress is not None and not callable(self.progress):
            raise ConfigError(f"progress is {self.progress!r:.80}; it must be a function, or None")
        self.gpu_request = parse_gpu_layers(self.gpu_layers)
        if self.deterministic:
            self._need_cpu()
        if self.rpc is None:
            self.rpc = os.environ.get("GGMODEL_RPC", "") if self.backend == "ggml" else ()
        if isinstance(self.rpc, str):
            self.rpc = [part.strip() for part in self.rpc.split(",") if part.strip()]
        if self.rpc and self.backend != "ggml":
            raise Unsupported(f"the backend {self.backend!r} uses no workers; leave out rpc")
        strengths_of(self.adapters)
        positive("batch_size", self.batch_size)
        positive("parallel", self.parallel)
        if self.cache_ram is None:
            self.cache_ram = min(8192, system_info().free_memory >> 22)
        positive("cache_ram", self.cache_ram, 0)
        if not 0 < self.prefix_store_size < math.inf:
            size = self.prefix_store_size
            raise ConfigError(f"prefix_store_size is {size}; it must be a number of GiB above 0")
        positive("draft_tokens", self.draft_tokens)
        self.cache_type = parse_kv_type(self.kv_type)
        self.backend_params = BackendParams(
            alloc_memory=self.alloc_memory,
            num_threads=positive("threads", self.threads or 0, 0),
            flash_attention=FlashAttention.parse(self.flash_attention),
            optimize=Optimize.parse(self.optimize),
            deterministic=self.deterministic,
            tensor_overrides=tuple((self.override_tensor or {}).items()),
        )

    def _need_cpu(self) -> None:
        """Refuses what has no order of sums of its own, and leaves devices out."""
        refused = {
            f"backend={self.backend!r}": self.backend != "ggml",
            "rpc": bool(self.rpc),
            "gpu_layers": self.gpu_request.named is not None
            or self.gpu_request.count not in (None, 0),
            "override_tensor": bool(self.override_tensor),
            "flash_attention='off'": FlashAttention.parse(self.flash_attention)
            is FlashAttention.OFF,
        }
        for option, given in refused.items():
            if given:
                raise Unsupported(
                    f"deterministic=True computes on the CPU by kernels of one order; leave out "
                    f"{option}"
                )
        self.gpu_layers, self.gpu_request = 0, parse_gpu_layers(0)
        self.rpc = ()

    @property
    def uses_devices(self) -> bool:
        """Whether anything may be placed elsewhere than on the CPU."""
        return self.gpu_request.count != 0 or bool(self.override_tensor)


def with_options(
    options: Callable[P, LoadOptions], resolve: Callable[[Source], Source] = lambda source: source
) -> Callable[[Callable[[Source, Options], R]], Callable[Concatenate[Source, P], R]]:
    """Gives a function of a source and `Options` the fields of `LoadOptions` as keywords instead.

    An unknown keyword is a ConfigError that names ours.

    Args:
        resolve: turns the caller's source into the function's; a missing file is reported before
            options are checked.
    """
    parameters = inspect.signature(options).parameters

    def decorate(function: Callable[[Source, Options], R]) -> Callable[Concatenate[Source, P], R]:
        @wraps(function)
        def call(source: Source, *args: P.args, **keywords: P.kwargs) -> R:
            for name in keywords:
                if name not in parameters:
                    raise unknown_option(name, parameters, OF_LOADING)
            if not isinstance(source, (str, os.PathLike, TensorSource)):
                raise ConfigError(
                    f"the model is given as {type(source).__name__}; give the path of a GGUF file "
                    "or of a Hugging Face folder, a name, or a tensor source"
                )
            source = resolve(source)
            options = Options(*args, **keywords)
            if isinstance(source, ResolvedModel) and options.context_length is None:
                options.context_length = source.defaults.context_length
            return function(source, options)

        first, *_ = inspect.signature(function).parameters.values()
        signature = inspect.Signature([first, *parameters.values()])
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
