"""Chats of a loaded model: messages in, replies out; functions that the model calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ...chat.described_tools import describe_tools
from ...chat.functions import Tool, Tools
from ...chat.messages import fitting, need_list
from ...chat.schemas import response_type, schema_of
from ...chat.template import template_abilities
from ...errors import ConfigError, PromptTooLong, TemplateError, Unsupported
from ...resources import reported
from ..options import positive
from ..request_options import (
    ChatOptions,
    TemplateOptions,
    ToolOptions,
    shows,
    split_reply,
    split_template,
)
from .answering import Answering
from .completion import Completion
from .grammar import Grammar
from .prompt_parts import PromptText
from .replies import AsyncChatStream, ChatCompletion, ChatStream, ReplyReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...chat import Reply, ReplyFormat

Messages = str | Sequence[Mapping[str, Any]]
"""A conversation: dicts with `role` and `content`, or the text of a user's only message."""

_ENDING = 4096  # characters of a prompt in which the reply may have begun


class Chatting(Answering):
    """The methods of a loaded model that go through a chat template."""

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = ..., **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> ChatStream: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: bool, **options: Unpack[ChatOptions]
    ) -> ChatCompletion | ChatStream: ...

    @shows(ChatOptions)
    @reported
    def chat(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion | ChatStream:
        """Answers messages, through the chat template of the file.

        Args:
            messages: dicts with `role` and `content`, see `ChatTemplate.render`; or a text, which
                is one message of the user. Images, sounds and videos are parts of a content or
                stand in `images`, `audio` and `videos`; see `ggmodel.chat.take_items`.
            stream: give the answer piece by piece, as `stream` does, rather than as a whole.
            options: see `TemplateOptions`, `ReplyOptions` and `RequestOptions`.

        Raises:
            TemplateError: there is no template, it refuses the messages, or it fails.
            PromptError: the messages are malformed, or too long; no tool has the name that
                `tool_choice` says.
            ConfigError: a tool or `response_format` cannot be described by a JSON schema.
            Unsupported: the model's calls cannot be enforced.
        """
        reader = self._begin(messages, options)
        return ChatStream(reader) if stream else reader.whole()

    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[False] = ..., **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> AsyncChatStream: ...

    @overload
    async def achat(
        self, messages: Messages, *, stream: bool, **options: Unpack[ChatOptions]
    ) -> ChatCompletion | AsyncChatStream: ...

    @shows(ChatOptions)
    async def achat(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion | AsyncChatStream:
        """`chat` for coroutines; with `stream`, `async for piece in await model.achat(…)`."""
        pieces = AsyncChatStream(self._begin(messages, options))
        if stream:
            return pieces
        async with pieces:
            async for _ in pieces:
                pass
            return pieces.reply

    @shows(ToolOptions)
    @reported
    def run_tools(
        self,
        messages: Messages,
        tools: Sequence[Callable[..., Any]],
        *,
        rounds: int = 8,
        **options: Unpack[ToolOptions],
    ) -> ChatCompletion:
        """Answers with the help of Python functions: calls those that the model asks for, tells it
        their results, and goes on until it answers without a call.

        An error of a function, wrong arguments and unknown names are told to the model. A result
        that is no text is told as JSON.

        Args:
            tools: functions with annotations and a docstring, which the model reads.
            rounds: replies with calls, at most; the next one is asked for without tools.
            options: see `ToolOptions`. `tool_choice` counts for the first reply.

        Returns:
            The answer; its `messages` are the conversation, calls and results included.

        Raises:
            ConfigError: a tool is no function, or a coroutine; `response_format`, which a reply
                with calls cannot have.
            Error: as `chat`.
        """
        toolbox, rest = Tools(tools), _for_rounds(options)
        if len(toolbox.functions) < len(toolbox.schemas):
            raise ConfigError("run_tools calls Python functions; give these, not JSON schemas")
        for name, function in toolbox.functions.items():
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"run_tools waits for no coroutine; make {name} a plain function")
        conversation = [dict(one) for one in _as_list(messages)]
        for left in range(positive("rounds", rounds), -1, -1):
            chosen: Any = {**rest, "tools": toolbox.schemas} if left else rest
            reply = self.chat(conversation, **chosen)
            conversation.append(reply.message())
            rest.pop("tool_choice", None)
            if not reply.tool_calls or not left:
                break
            for call in reply.tool_calls:
                result = toolbox.call(call.name, call.arguments)
                about = {"tool_call_id": call.id, "name": call.name}
                conversation.append({"role": "tool", "content": result, **about})
        reply.messages = conversation
        return reply

    def _begin(self, messages: Messages, options: ChatOptions) -> ReplyReader:
        """A request that has not begun, and what reads its reply."""
        own, rest = split_template(options)
        form, rest = split_reply(rest)
        messages = _with_system(messages, own.pop("system", None))
        need_list(messages)
        choice, kind = _choice(form.get("tool_choice")), response_type(form.get("response_format"))
        if kind is not None:
            if rest.get("grammar") is not None:
                raise ConfigError("response_format and grammar both give the form; leave one out")
            rest["grammar"] = Grammar.json_schema(schema_of(kind))
        schemas = Tools(own.get("tools")).schemas
        if choice == "none":
            choice, schemas = "auto", []
        own["tools"] = schemas or None
        replies: ReplyFormat | None = self._replies(own.get("template"))
        if rest.get("grammar") is not None and not schemas:
            replies = None
            variables = own.get("variables") or {}
            if isinstance(variables, Mapping):
                own["variables"] = {"enable_thinking": False, **variables}

        def suited(some: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
            return self._suited(some, own)

        if rest.get("truncate"):
            messages = fitting(messages, lambda some: self.fits(suited(some), **own, **rest))
            rest["truncate"] = False
        text = self.chat_text(suited(messages), **own)
        if replies is not None:
            self._add_form(replies, rest, schemas, choice, text.text[-_ENDING:])
        generation = self.request(self.prompts.chat(text), **rest)
        parser = None
        if replies is not None and (replies.special or schemas):
            parser = replies.parser(schemas or None, text.text[-_ENDING:])
        takes_end = replies.takes_end if replies is not None else bool
        return ReplyReader(generation, parser, takes_end, kind)

    def _replies(self, template: str | None) -> ReplyFormat:
        try:
            return self.reply_format(template)
        except TemplateError:  # the checkpoint's declaration is of no use
            from ...chat import reply_format

            return reply_format(self.prompts.template(template).source)

    def _suited(
        self, messages: Sequence[Mapping[str, Any]], own: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """The messages, with tools in words where the template knows none."""
        calls = any(
            isinstance(one, Mapping) and (one.get("role") == "tool" or one.get("tool_calls"))
            for one in messages
        )
        if not (own["tools"] or calls) or not all(isinstance(one, Mapping) for one in messages):
            return messages
        template = self.prompts.template(own.get("template"))
        source = template.tool_source or template.source
        if self._replies(own.get("template")).calls or "tools" in template_abilities(source):
            return messages
        return describe_tools(messages, own["tools"])

    def _add_form(
        self,
        replies: ReplyFormat,
        rest: dict[str, Any],
        schemas: Sequence[Mapping[str, Any]],
        choice: str,
        ending: str,
    ) -> None:
        """Adds to a request's options where its reply ends, and the grammar of calls."""
        if replies.stop:
            stop = self.defaults.under(rest).get("stop") or ()
            rest["stop"] = [*([stop] if isinstance(stop, str) else stop), *replies.stop]
        functions = [one.get("function", one) for one in schemas]
        strict = any(isinstance(one, Mapping) and one.get("strict") for one in functions)
        if choice == "auto" and not (schemas and strict):
            return
        if rest.get("grammar") is not None:
            raise ConfigError(
                "tool_choice or a strict tool gives the reply its form already; leave out "
                "response_format and grammar"
            )
        special = self.prompts.vocabulary().special if replies.special else {}
        grammar = replies.grammar(
            schemas,
            choice,
            special={mark: special[mark] for mark in replies.marks if mark in special},
            ending=ending,
        )
        if grammar is not None:
            rest["grammar"] = getattr(Grammar, grammar[0])(grammar[1])
        elif choice != "auto":
            raise Unsupported("this model's calls cannot be enforced; leave tool_choice at 'auto'")

    @shows(ChatOptions)
    @reported
    def fits(self, messages: Messages, **options: Unpack[ChatOptions]) -> bool:
        """Whether the prompt of messages, images and other items included, leaves space for an
        answer in the context: `max_tokens`, but at most a quarter of it; none with
        `context_shift`.

        Args:
            options: as `chat` takes them.

        Raises:
            Error: as `chat`, but for messages that are too long.
        """
        template, rest = split_template(options)
        own, _ = self._options(split_reply(rest)[1])  # type: ignore[arg-type]
        room = self._room(own.get("max_tokens"), own.get("context_shift", False))
        rendered, most = self.chat_text(messages, **template), self.engine.context_length - room
        try:
            self.prompts.check_length(len(rendered.text), most)  # known without its tokens
            return len(self.prompts.numbers(self.prompts.chat(rendered))) <= most
        except PromptTooLong:
            return False

    @shows(ChatOptions)
    @reported
    def fitting(
        self, messages: Messages, **options: Unpack[ChatOptions]
    ) -> Sequence[Mapping[str, Any]]:
        """The messages without the oldest turns, as few as must go for the rest to fit; see
        `ggmodel.chat.fitting` and `fits`.

        Raises:
            Error: as `fits`.
        """
        if isinstance(messages, str):
            return _as_list(messages)
        need_list(messages)
        return fitting(messages, lambda some: self.fits(some, **options))

    @shows(TemplateOptions)
    @reported
    def chat_prompt(self, messages: Messages, **options: Unpack[TemplateOptions]) -> list[Any]:
        """The prompt that `chat` makes of messages: token ids, or texts with the embeddings of
        images and other items between them."""
        rendered = self.chat_text(messages, **options)
        if not rendered.items:
            return rendered.ids()
        return self.prompts.encoded(self.prompts.chat(rendered))

    @shows(TemplateOptions)
    @reported
    def chat_text(self, messages: Messages, **options: Unpack[TemplateOptions]) -> PromptText:
        """The text that `chat` makes of messages, and the images and other items in it."""
        own: Any = dict(options)
        messages = _with_system(messages, own.pop("system", None))
        own["tools"] = Tools(own.get("tools")).schemas or None
        return self.prompts.render(self.defaults.begin(messages), **own)

    def reply_format(self, template: str | None = None) -> ReplyFormat:
        """How the model writes thoughts and calls of functions, by the file.

        Raises:
            TemplateError: the file declares it in a way that makes no sense.
        """
        from ...chat import ReplyFormat

        return ReplyFormat.from_metadata(self.source.metadata, template)

    @reported
    def parse_reply(
        self,
        text: str,
        *,
        tools: Sequence[Tool] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The content, thoughts and calls of functions in an answer.

        Args:
            text: what `chat` gave, whose special tokens are read, too; or any text.
            tools, template, variables: that were given to `chat`; the template may have begun a
                thought.

        Raises:
            TemplateError: there is no template, it fails, or the file declares its replies in a way
                that makes no sense.
        """
        form = self.reply_format(template)
        if isinstance(text, ChatCompletion):
            text = text.raw
        if isinstance(text, Completion) and form.special:
            text = self.prompts.vocabulary().decode(text.tokens)
        ending = self.prompts.ending(template, variables)
        return form.parse(text, Tools(tools).schemas or None, ending)


def _as_list(messages: Messages) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    need_list(messages)
    return messages


def _with_system(messages: Messages, system: str | None) -> Sequence[Mapping[str, Any]]:
    """The messages behind a system message.

    Raises:
        ConfigError: it is no text, or they begin with one.
    """
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if system is None:
        return messages
    if not isinstance(system, str):
        raise ConfigError(f"system is {system!r:.80}; it must be a text")
    need_list(messages)
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") in ("system", "developer"):
        raise ConfigError("the messages begin with a system message already; leave out system")
    return [{"role": "system", "content": system}, *messages]


def _choice(choice: Any) -> str:
    """ "auto", "none", "required" or the name of a function; also as OpenAI spells it."""
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        choice = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(choice, str):
            raise ConfigError("tool_choice has no name of a function")
    if not isinstance(choice, (str, type(None))):
        raise ConfigError(
            f"tool_choice is {choice!r:.80}; it must be 'auto', 'required', 'none' or a name"
        )
    return choice or "auto"


def _for_rounds(options: Any) -> dict[str, Any]:
    for name, instead in (
        ("response_format", "ask for it afterwards: chat(reply.messages, response_format=…)"),
        ("tools", "give them once, as the second argument"),
    ):
        if options.get(name) is not None:
            raise ConfigError(f"run_tools takes no {name}; {instead}")
    return dict(options)
