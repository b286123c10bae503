"""Options of requests and of chats: stated once, and their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from ..chat.functions import Tool
from ..chat.messages import LISTS
from ..errors import ConfigError
from .loading.adapters import AdapterPaths
from .options import unknown_option
from .requests.grammar import Grammar
from .sampling import Sampler
from .steering import Steer, is_steer

_GRAMMAR = "response_format= of chat, or grammar=ggmodel.Grammar.json_schema(schema)"
_BATCH = "batch([prompt] * n)"
_PROCESSOR = "sampler= with a subclass of ggmodel.Sampler"
# Options of llama.cpp, llama-cpp-python, transformers, vLLM, Ollama, mlx-lm and OpenAI's API.
OF_REQUESTS = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens", "max_length"), "max_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("response_format", "json_schema", "format", "guided_json"), _GRAMMAR),
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), _BATCH),
    **dict.fromkeys(("repetition_penalty", "penalty"), "repeat_penalty"),
    **dict.fromkeys(("logits_processor", "logits_processors"), _PROCESSOR),
    **dict.fromkeys(("system", "system_prompt"), "chat(messages, system=TEXT)"),
    **dict.fromkeys(("tools", "tool_choice"), "chat(messages, tools=[FUNCTION])"),
    "messages": "chat(messages)",
    "temp": "temperature",
    "do_sample": "temperature=0 for the likeliest tokens, above 0 to draw them",
    "stream": "stream(prompt), or chat(messages, stream=True)",
    "regex": "grammar=ggmodel.Grammar.regex(pattern)",
    "typical": "typical_p",
    "n_keep": "num_keep",
    "image": "images=[image]",
    "video": "videos=[video]",
    **dict.fromkeys(("audios", "sound"), "audio=[sound]"),
    **dict.fromkeys(("lora", "lora_request", "adapter_name", "adapter_names"), "adapters"),
}


class RequestOptions(TypedDict, total=False):
    """Options of `generate`, `stream`, `batch`, `chat` and their kin.

    Attributes:
        max_tokens: tokens to generate at most; None, the default, goes on until the model ends its
            answer or the context is full.
        stop: stop strings: the answer ends before the first of them.
        logprobs: return each token's log-probability.
        top_logprobs: return the log-probabilities of this many most likely tokens, too.
        post_sampling_probs: those are of the distribution that the sampler draws from, behind
            penalties, limits and temperature, not of the model's own.
        context_shift: when the context is full, drop the older half of it from the KV cache and go
            on.
        truncate: cut the middle out of a prompt that leaves no space for an answer: `max_tokens`,
            but at most a quarter of the context; none with `context_shift`. A conversation
            loses its oldest turns instead; see `LoadedModel.fitting`.
        ignore_eos: rule out the tokens that end an answer.
        num_keep: tokens at the start of the context that `context_shift` and `truncate` never drop.
        prompt_lookup: speculative decoding: draft tokens are looked up in the prompt and in the
            answer, and checked in one batch; the answer stays the same but for rounding.
        adapters: names of the adapters to compute with, or a mapping of them to strengths; an empty
            one computes without. None takes the strengths in `LoadedModel.adapters`.
        images: images of a prompt that is text. They replace the model's marker, such as "<image>",
            else precede the text.
        audio, videos: the same for audio and videos.
        grammar: constrains the answer to a JSON schema, a regular expression or a grammar.
        capture: names of modules whose results the answer's `captured` has, with `*` in place of a
            part: "layers.*.attn"; see `LoadedModel.capture`.
        steer: steering vectors that are added to what layers give: a `Steering`, several, or the
            name of each one that the model was loaded with → its strength; None takes these as they
            were given, an empty list none.
        sampler: chooses the tokens, in place of `temperature` and the others after it, which are
            arguments of `Sampler`.
    """

    max_tokens: int | None
    stop: str | Sequence[str]
    logprobs: bool
    top_logprobs: int
    post_sampling_probs: bool
    context_shift: bool
    truncate: bool
    ignore_eos: bool
    num_keep: int
    prompt_lookup: bool
    adapters: AdapterPaths
    images: Sequence[Any]
    audio: Sequence[Any]
    videos: Sequence[Any]
    grammar: Grammar | None
    capture: str | Sequence[str] | None
    steer: Steer | None
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


class TextOptions(TypedDict, total=False):
    """Options of the text that a chat template makes.

    Attributes:
        system: a system message, before the messages.
        template: chat template to use instead, as Jinja text, or by the name of another one in
            the file.
        variables: further variables of the template, such as {"enable_thinking": False}.
        continues: the last message is the beginning of an answer, which the model continues.
    """

    system: str | None
    template: str | None
    variables: Mapping[str, Any] | None
    continues: bool


class TemplateOptions(TextOptions, total=False):
    """Options of a chat template.

    Attributes:
        tools: functions that the model may call: JSON schemas, or Python functions with annotations
            and a docstring.
    """

    tools: Sequence[Tool] | None


class CallOptions(TypedDict, total=False):
    """Options of the calls of functions in a reply.

    Attributes:
        tool_choice: "auto"; "required" for a call, the name of a function for a call of it, "none".
    """

    tool_choice: Any


class ReplyOptions(CallOptions, total=False):
    """Options of the form of a reply.

    Attributes:
        response_format: the reply is JSON of this form, and its `parsed` the value: a pydantic
            model, a dataclass, a TypedDict or another type, or a JSON schema as a dict.
    """

    response_format: Any


class ChatOptions(TemplateOptions, ReplyOptions, RequestOptions, total=False):
    """Options of `chat` and `achat`: of the template, of the reply's form, and of the request."""


class ToolOptions(TextOptions, CallOptions, RequestOptions, total=False):
    """Options of `run_tools`: of the text, of calls, and of each request."""


# Options of the request itself, and how an error describes their values; None is not checked here.
_FLAG = "True or False"
_COUNT = "an integer of 0 or more"
_OF_REQUEST: dict[str, str | None] = {
    **dict.fromkeys(("logprobs", "post_sampling_probs", "context_shift"), _FLAG),
    **dict.fromkeys(("truncate", "ignore_eos", "prompt_lookup"), _FLAG),
    **dict.fromkeys(("max_tokens", "num_keep", "top_logprobs"), _COUNT),
    "stop": "a string or a list of strings",
    "grammar": "a Grammar, such as ggmodel.Grammar.json_schema(schema)",
    "capture": "the name of a module, or a list of names",
    "steer": "a Steering, a list of them, or {name: strength}",
    **dict.fromkeys(("adapters", *LISTS)),
}


_DEFAULTS: dict[str, Any] = {
    **{name: False for name, text in _OF_REQUEST.items() if text is _FLAG},
    **dict.fromkeys(("stop", *LISTS), ()),
    **dict.fromkeys(("num_keep", "top_logprobs"), 0),
    "continues": False,
    "tool_choice": "auto",
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


def split_reply(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a reply's form, and the others."""
    own = {n: v for n, v in options.items() if n in ReplyOptions.__annotations__}
    return own, {n: v for n, v in options.items() if n not in own}


F = TypeVar("F", bound=Callable[..., Any])


def shows(options: type) -> Callable[[F], F]:
    """Shows, in the signature of a function with `**options`, the keys of a TypedDict and their
    defaults, for `help` and notebooks; `as_written` is the other signature."""
    sampling = inspect.signature(Sampler).parameters
    fixed: dict[str, Any] = {**_DEFAULTS, **{n: p.default for n, p in sampling.items()}}

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        keys = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=fixed.get(name),
                annotation=getattr(kind, "__forward_arg__", kind),
            )
            for name, kind in options.__annotations__.items()
        ]
        shown = signature.replace(parameters=[*own, *keys])
        # No attributes that pyright knows.
        setattr(function, "__signature__", shown)  # noqa: B010
        setattr(function, "as_written", signature)  # noqa: B010
        return function

    return decorate


def _suits(name: str, value: Any) -> bool:
    """Whether an option of a request can have this value."""
    description = _OF_REQUEST[name]
    if value is None and name in ("max_tokens", "grammar", "capture", "steer"):
        return True
    if name == "steer":
        return is_steer(value)
    if description == _FLAG:
        return isinstance(value, bool)
    if description == _COUNT:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "grammar":
        return isinstance(value, Grammar)
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(t, str) for t in texts)
