"""What can be asked of a generation, and what of it is for the sampler."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ...errors import ConfigError
from ..sampling import Sampler

if TYPE_CHECKING:
    from .structured import Grammar


class RequestOptions(TypedDict, total=False):
    """Options of `generate`, `stream`, `astream` and `chat`.

    Attributes:
        max_tokens: None, the default, goes on until the model ends or the context is full.
        stop: strings that end the text; they are not part of it.
        logprobs: note each token's log-probability.
        top_logprobs: note those of so many of the likeliest tokens, too.
        context_shift: when the context is full, forget half of it and go on.
        truncate: of a prompt that is too long, leave out the middle rather than refuse it.
        num_keep: tokens at the beginning that are kept by these two.
        prompt_lookup: where the answer repeats itself or the prompt, guess ahead and compute
            several tokens at once; the answer stays the same. Without effect on models with
            recurrent layers.
        images: those of a prompt that is text: they stand where the model's marker does, such as
            "<image>", else before the text.
        grammar: what the text has to obey.
        sampler: chooses the tokens; all other options are those that `Sampler` is made with.
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


_OF_REQUEST = (
    *("max_tokens", "stop", "logprobs", "top_logprobs"),
    *("context_shift", "truncate", "num_keep", "prompt_lookup", "images", "grammar"),
)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], Sampler]:
    """The options of the request itself, and its sampler.

    Raises:
        ConfigError: there is no such option, or a sampler and options of one.
    """
    for name in options:
        if name not in RequestOptions.__annotations__:
            near = difflib.get_close_matches(name, RequestOptions.__annotations__, 1)
            hint = f"; do you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"there is no option {name!r}{hint}")
    own = {name: options[name] for name in _OF_REQUEST if name in options}
    for name, value in own.items():
        wanted = _wanted(name, value)
        if wanted:
            raise ConfigError(f"{name} is {value!r}; it must be {wanted}")
    others = {name: value for name, value in options.items() if name not in own}
    sampler = others.pop("sampler", None)
    if sampler is None:
        return own, Sampler(**others)
    if others:
        raise ConfigError(f"{next(iter(others))} belongs to the sampler, which is given already")
    return own, sampler


def _wanted(name: str, value: Any) -> str:
    """What an option of a request must be; "" if it is."""
    if name in ("logprobs", "context_shift", "truncate", "prompt_lookup"):
        return "" if isinstance(value, bool) else "True or False"
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        listed = isinstance(texts, Sequence) and all(isinstance(t, str) for t in texts)
        return "" if listed else "a string or a list of strings"
    if name in ("max_tokens", "num_keep", "top_logprobs"):
        if value is None and name == "max_tokens":
            return ""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return ""
        return "an integer of 0 or more"
    return ""
