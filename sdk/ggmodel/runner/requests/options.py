"""Request options: those of generation, and those of its sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from ...chat.items import LISTS
from ...errors import ConfigError
from ..option_names import OF_REQUESTS, unknown_option
from ..sampling import Sampler
from .structured import Grammar


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
            but at most a quarter of the context; none with `context_shift`.
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
        wanted = _OF_REQUEST[name]
        if wanted is not None and not _suits(name, value):
            raise ConfigError(f"{name} is {value!r:.200}; it must be {wanted}")
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
    wanted = _OF_REQUEST[name]
    if value is None and name in ("max_tokens", "grammar"):
        return True
    if wanted == _FLAG:
        return isinstance(value, bool)
    if wanted == _COUNT:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "grammar":
        return isinstance(value, Grammar)
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(t, str) for t in texts)
