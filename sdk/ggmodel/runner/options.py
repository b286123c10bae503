"""Options of loading and of requests: stated once, and their names."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

from ..chat.messages import LISTS
from ..errors import ConfigError, Unsupported
from ..gguf_file import TensorSource
from ..kvcache import KV_TYPES
from ..ml import BackendParams, DType, FlashAttention, Optimize
from ..ml.backend import Progress
from .loading.gpu_layers import GPULayersOption, parse_gpu_layers
from .loading.resolved import ResolvedModel
from .loading.sources import Source
from .requests.grammar import Grammar
from .sampling import Sampler

_LENGTH = "context_length"
_LAYERS = "gpu_layers (0: only the CPU, -1: all layers on GPUs)"
_TYPE = (
    "type= for the folder of a Hugging Face model, `ggmodel quantize IN OUT TYPE` for a GGUF file, "
    "kv_type= for the cache"
)
_GRAMMAR = "grammar=ggmodel.Grammar.json_schema(schema)"
_BATCH = "batch([prompt] * n)"
_PROCESSOR = "sampler= with a subclass of ggmodel.Sampler"

# Options of llama.cpp, llama-cpp-python, transformers, vLLM, Ollama, mlx-lm and OpenAI's API.
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
    "verbose": "logging.basicConfig(level=logging.INFO); loading prints nothing",
    "tensor_split": "gpu_layers={'CUDA0': 20, 'CUDA1': 12}",
    "model_path": "the path as first argument",
    "rpc_servers": "rpc",
}
OF_REQUESTS = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens", "max_length"), "max_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("response_format", "json_schema", "format", "guided_json"), _GRAMMAR),
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), _BATCH),
    **dict.fromkeys(("repetition_penalty", "penalty"), "repeat_penalty"),
    **dict.fromkeys(("logits_processor", "logits_processors"), _PROCESSOR),
    **dict.fromkeys(("system", "system_prompt", "messages"), "chat(messages)"),
    "temp": "temperature",
    "do_sample": "temperature=0 for the likeliest tokens, above 0 to draw them",
    "stream": "stream(prompt), or chat(messages, stream=True)",
    "regex": "grammar=ggmodel.Grammar.regex(pattern)",
    "typical": "typical_p",
    "n_keep": "num_keep",
    "image": "images=[image]",
    "video": "videos=[video]",
    **dict.fromkeys(("audios", "sound"), "audio=[sound]"),
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
        for name, (kinds, description) in _KINDS.items():
            if not isinstance(value := getattr(self, name), kinds):
                raise ConfigError(f"{name} is {value!r:.80}; it must be {description}")
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


class RequestOptions(TypedDict, total=False):
    """Options of `generate`, `stream`, `batch`, `chat` and their kin.

    Attributes:
        max_tokens: tokens to generate at most; None, the default, goes on until the model ends its
            answer or the context is full.
        stop: stop strings: the answer ends before the first of them.
        logprobs: return each token's log-probability.
        top_logprobs: return the log-probabilities of this many most likely tokens, too.
        context_shift: when the context is full, drop the older half of it from the KV cache and go
            on.
        truncate: cut the middle out of a prompt that leaves no space for an answer: `max_tokens`,
            but at most a quarter of the context; none with `context_shift`. A conversation
            loses its oldest turns instead; see `LoadedModel.fitting`.
        num_keep: tokens at the start of the context that `context_shift` and `truncate` never drop.
        prompt_lookup: speculative decoding: draft tokens are looked up in the prompt and in the
            answer, and checked in one batch; the answer stays the same. Without effect on models
            with recurrent layers.
        images: images of a prompt that is text. They replace the model's marker, such as "<image>",
            else precede the text.
        audio, videos: the same for audio and videos.
        grammar: constrains the answer to a JSON schema, a regular expression or a grammar.
        sampler: chooses the tokens; all other options are arguments of `Sampler`.
    """

    max_tokens: int | None
    stop: str | Sequence[str]
    logprobs: bool
    top_logprobs: int
    context_shift: bool
    truncate: bool
    num_keep: int
    prompt_lookup: bool
    images: Sequence[Any]
    audio: Sequence[Any]
    videos: Sequence[Any]
    grammar: Grammar | None
    sampler: Sampler
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None


class TemplateOptions(TypedDict, total=False):
    """Options of a chat template.

    Attributes:
        tools: JSON schemas of functions that the model may call.
        template: chat template to use instead, as Jinja text, or by the name of another one in
            the file.
        variables: further variables of the template, such as {"enable_thinking": False}.
        continues: the last message is the beginning of an answer, which the model continues.
    """

    tools: Sequence[Mapping[str, Any]] | None
    template: str | None
    variables: Mapping[str, Any] | None
    continues: bool


class ChatOptions(TemplateOptions, RequestOptions, total=False):
    """Options of `chat` and `achat`: those of the template and those of the request."""


# Options of the request itself, and how an error describes their values; None is not checked here.
_FLAG = "True or False"
_COUNT = "an integer of 0 or more"
_OF_REQUEST: dict[str, str | None] = {
    **dict.fromkeys(("logprobs", "context_shift", "truncate", "prompt_lookup"), _FLAG),
    **dict.fromkeys(("max_tokens", "num_keep", "top_logprobs"), _COUNT),
    "stop": "a string or a list of strings",
    "grammar": "a Grammar, such as ggmodel.Grammar.json_schema(schema)",
    **dict.fromkeys(LISTS),
}


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], Sampler]:
    """The options of the request itself, and its sampler.

    Raises:
        ConfigError: an unknown option, a wrong value, or a sampler and options of one.
    """
    for name in options:
        if name not in RequestOptions.__annotations__:
            raise unknown_option(name, RequestOptions.__annotations__, OF_REQUESTS)
    own = {name: options[name] for name in _OF_REQUEST if name in options}
    for name, value in own.items():
        description = _OF_REQUEST[name]
        if description is not None and not _suits(name, value):
            raise ConfigError(f"{name} is {value!r:.200}; it must be {description}")
    others = {name: value for name, value in options.items() if name not in own}
    sampler = others.pop("sampler", None)
    if sampler is None:
        return own, Sampler(**others)
    if not isinstance(sampler, Sampler):
        raise ConfigError(f"sampler is {sampler!r:.200}; it must be a Sampler")
    if others:
        raise ConfigError(f"{next(iter(others))} belongs to the sampler, which is given already")
    return own, sampler


def split_template(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the template, and the others.

    Raises:
        ConfigError: a value of the wrong type.
    """
    own = {n: v for n, v in options.items() if n in TemplateOptions.__annotations__}
    template = own.get("template")
    if not (template is None or isinstance(template, str)):
        raise ConfigError(f"template is {template!r:.200}; it must be Jinja text or a name")
    if not isinstance(own.get("continues", False), bool):
        raise ConfigError(f"continues is {own['continues']!r:.200}; it must be {_FLAG}")
    return own, {n: v for n, v in options.items() if n not in own}


def _suits(name: str, value: Any) -> bool:
    """Whether an option of a request can have this value."""
    description = _OF_REQUEST[name]
    if value is None and name in ("max_tokens", "grammar"):
        return True
    if description == _FLAG:
        return isinstance(value, bool)
    if description == _COUNT:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "grammar":
        return isinstance(value, Grammar)
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(t, str) for t in texts)
