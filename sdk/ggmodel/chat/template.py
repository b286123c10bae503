"""Renders messages into the text of a prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from traceback import walk_tb
from typing import Any, Protocol

from ..errors import TemplateError, TokenizerError, Unsupported
from .messages import (
    Message,
    check_texts,
    checked,
    checked_tools,
    is_place,
    mismatch,
    plain,
    split_at,
    up_to_the_last,
    with_broken_markers,
    with_parts,
    without_parts,
)

KEY = "tokenizer.chat_template"
REPLIES_KEY = "tokenizer.response_template"  # of a GGUF: how the model's replies are read
_OTHERWISE = "pass another template, or write the prompt yourself and use generate()"
_PROBE = "ggmodel probes"
_LONG = 2000  # characters of an error message that comes from a template


# Names that templates use for tools and for thoughts.
_ABILITIES = {
    "tools": ("tools", "tool_calls"),
    "thinking": ("enable_thinking", "reasoning_content", "<think>", "thinking"),
}


def template_abilities(template: str) -> list[str]:
    """The abilities that a chat template gives a model: "tools", "thinking"."""
    named = _ABILITIES.items()
    return [ability for ability, names in named if any(name in template for name in names)]


class Vocabulary(Protocol):
    """The part of a `Tokenizer` that templates use."""

    bos: int | None
    eos: int | None
    add_bos: bool

    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...

    def token(self, id: int, /) -> str: ...


class ChatTemplate:
    """A Jinja template that renders messages into a prompt.

    Attributes:
        source: the Jinja text.
        tool_source: the Jinja text for conversations with tools, None for the same.
    """

    def __init__(
        self, source: str, tokenizer: Vocabulary | None = None, *, tool_source: str | None = None
    ):
        """A tokenizer gives the template `bos_token` and `eos_token`."""
        self.source, self.tool_source = source, tool_source
        self._tokenizer = tokenizer

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], tokenizer: Vocabulary | None, template: str | None = None
    ) -> ChatTemplate:
        """The template of a GGUF file.

        Args:
            template: Jinja source to use instead, or the name of another template of the file,
                such as "rag". None takes the default one, and "tool_use" for tools.

        Raises:
            TemplateError: the file has no template, or none of that name.
        """
        named = {
            key.removeprefix(KEY).removeprefix(".") or "default": value
            for key, value in metadata.items()
            if key == KEY or key.startswith(f"{KEY}.")
        }
        for name, value in named.items():
            if not isinstance(value, str):
                raise TemplateError(
                    f"the chat template {name!r} of the file is {type(value).__name__}, not text; "
                    "pass template= with Jinja text"
                )
        if template is not None and not isinstance(template, str):
            raise TemplateError(
                f"a chat template is Jinja text or a name, not {type(template).__name__}"
            )
        if template is not None:
            if template not in named and re.fullmatch(r"[\w-]*", template):
                others = ", ".join(map(repr, sorted(named))) or "none"
                raise TemplateError(
                    f"the file has no chat template {template!r}; its templates are: {others}"
                )
            return cls(named.get(template, template), tokenizer)
        if "default" not in named:
            others = "".join(f", only {name!r}" for name in sorted(named))
            raise TemplateError(
                f"the file has no chat template ({KEY}){others}; pass template= with Jinja text "
                "or the name of one, or write the prompt yourself and use generate()"
            )
        return cls(named["default"], tokenizer, tool_source=named.get("tool_use"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
        image_marker: str = "",
        markers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> str:
        """The text of the prompt.

        Args:
            messages: dicts with `role` and `content`, a text or a list of parts
                `{"type": "text", "text": …}`; further keys go to the template as they are.
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: end with the header of an answer.
            continues: end with the content of the last message instead, an answer that has begun.
            image_marker: text in place of an image, a part `{"type": "image"}`.
            markers: the same by kind, for other items, such as `{"type": "audio"}`.
            extra: more variables of the template, such as `documents`, `enable_thinking` or
                `date_string`.

        Raises:
            PromptError: the messages or tools have another form, or a text that is no answer of the
                model holds the marker of an item. In an answer, a space parts it.
            Unsupported: a message holds an item of a kind without a marker.
            TemplateError: the template does not parse, refuses the messages, fails, or exceeds the
                limits on time and memory.
        """
        source = self.tool_source if tools and self.tool_source is not None else self.source
        wants = _contents(source)
        chat = checked(messages)
        markers = {**({"image": image_marker} if image_marker else {}), **(markers or {})}
        kinds = _kinds_of_items(chat, markers)
        tools = checked_tools(tools)
        chat = with_broken_markers(chat, {kind: markers[kind] for kind in kinds})
        check_texts(chat, tools, {kind: markers[kind] for kind in kinds})
        variables = {
            **self._special_tokens(),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continues,
            "continue_final_message": continues,
            **plain(extra),
        }

        def run(messages: list[dict[str, Any]]) -> str:
            return _run_calls(source, {"messages": messages, **variables})

        text = _with_items(run, chat, wants, kinds, markers)
        return up_to_the_last(text, chat[-1]) if continues else text

    def encode(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The token ids of the rendered text, special tokens recognised.

        They begin with `bos`, once, if the vocabulary asks for it.
        """
        return self.tokenize(self.render(messages, **options))

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a rendered text, or of its beginning; see `encode`."""
        if self._tokenizer is None:
            raise TokenizerError(
                "there is no vocabulary (tokenizer.ggml.*) to encode the messages with"
            )
        ids = self._tokenizer.encode(text, add_special=False)
        first = self._tokenizer.bos
        if first is not None and self._tokenizer.add_bos and ids[:1] != [first]:
            ids.insert(0, first)
        return ids

    def _special_tokens(self) -> dict[str, str]:
        texts, tokenizer = {"bos_token": "", "eos_token": ""}, self._tokenizer
        if tokenizer is not None:
            ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
            texts |= {name: tokenizer.token(id) for name, id in ids.items() if id is not None}
        return texts


def _run_calls(source: str, variables: dict[str, Any]) -> str:
    """Runs a template; where it fails at a message that has calls and no content, with an empty
    one, which some templates need and others take for an answer."""
    from .limits import TooCostly

    try:
        return _run(source, variables)
    except TemplateError as error:
        messages = [{"content": "", **message} for message in variables["messages"]]
        if messages == variables["messages"] or isinstance(error.__cause__, TooCostly):
            raise
        try:
            return _run(source, {**variables, "messages": messages})
        except TemplateError:
            raise error from error.__cause__


def _run(source: str, variables: Mapping[str, Any]) -> str:
    # Jinja takes long to import, and only chats need it.
    from jinja2 import TemplateSyntaxError, UndefinedError
    from jinja2.exceptions import SecurityError

    from .limits import TooCostly
    from .sandbox import Refusal, run

    try:
        return run(source, variables)
    except Refusal as error:
        raise _error("refuses these messages", error) from None
    except TemplateSyntaxError as error:
        raise _error("does not parse", error, error.lineno) from None
    except TooCostly as error:
        raise _error("was stopped", error) from error
    except SecurityError as error:
        raise _error("does what templates may not do", error) from None
    except UndefinedError as error:
        raise _error("uses an undefined variable", error) from None
    except RecursionError as error:
        raise _error("is nested too deeply", error) from None
    except Exception as error:
        raise _error(f"fails with {type(error).__name__}", error) from error


def _with_items(
    run: Callable[[list[dict[str, Any]]], str],
    messages: list[dict[str, Any]],
    wants: tuple[bool, bool],
    kinds: Sequence[str],
    markers: Mapping[str, str],
) -> str:
    """The text of a template, in which a marker stands for each item.

    Args:
        run: writes the text of messages. wants: see `_contents`.

    Raises:
        TemplateError: it drops some, or writes them in another order.
    """

    def lacking(text: str) -> str:
        return mismatch(split_at(text, markers.values())[1], kinds, markers)

    wants_text, wants_parts = wants
    first = ""
    if wants_parts:
        text = run(messages if wants_text else with_parts(messages))
        if not (first := lacking(text)):
            return text
    text = run(without_parts(messages, markers))
    if still := lacking(text):
        raise TemplateError(
            f"the chat template writes {first or still}; pass template= with another one"
        )
    return text


def _kinds_of_items(messages: Sequence[Mapping[str, Any]], markers: Mapping[str, str]) -> list[str]:
    """The kind of each item that the messages hold, in their order.

    Raises:
        Unsupported: there is no marker for one.
    """
    contents = [m["content"] for m in messages if isinstance(m.get("content"), (list, tuple))]
    kinds = [part["type"] for parts in contents for part in parts if is_place(part)]
    for kind in kinds:
        if not markers.get(kind):
            raise Unsupported(
                f"a message holds a part of type {kind!r}, which this model cannot take: leave it "
                "out"
            )
    return kinds


def _error(what: str, error: Exception, line: int | None = None) -> TemplateError:
    from .sandbox import FILE

    if line is None:
        frames = walk_tb(error.__traceback__)
        lines = [number for frame, number in frames if frame.f_code.co_filename == FILE]
        line = lines[-1] if lines else None
    where = "" if line is None else f", line {line},"
    text = str(error)
    text = text if len(text) <= _LONG else f"{text[:_LONG]}…"
    text = text or "no reason given"
    return TemplateError(f"the chat template{where} {what}: {text}; {_OTHERWISE}")


@lru_cache(maxsize=64)
def _contents(source: str) -> tuple[bool, bool]:
    """Whether a template takes a text as content, and whether a list of parts."""
    return _takes(source, _PROBE), _takes(source, [{"type": "text", "text": _PROBE}])


def _takes(source: str, content: Any) -> bool:
    from .limits import TooCostly

    messages = [{"role": "user", "content": content}]
    try:
        text = _run(source, {"messages": messages, "bos_token": "", "eos_token": ""})
    except TemplateError as error:
        if isinstance(error.__cause__, TooCostly):
            raise  # the real messages would cost the same time again
        return False
    # A template that knows no parts prints the list with its keys.
    return _PROBE in text and not re.search(r"""['"]type['"]""", text)
