"""Answers of a model: prompts and messages in, one or many, completions and streams out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ...chat.messages import LISTS, fitting, need_list
from ...errors import (
    BatchError,
    ConfigError,
    Error,
    GraphError,
    PromptError,
    PromptTooLong,
    Unsupported,
)
from ...gguf_file import TensorSource
from ...ml import Backend
from ...ml.backend import Progress
from ...model import Model
from ...resources import reported
from ..engine.engine import Engine
from ..loading.resolved import Defaults
from ..options import ChatOptions, RequestOptions, TemplateOptions, split_options, split_template
from ..sampling import Sampler
from .completion import Completion
from .generation import AsyncStream, Generation, Stream
from .prompt_parts import PromptText
from .prompts import Prompt, Prompts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...chat import Reply, ReplyFormat
    from ...tokenizer import Tokenizer

P = TypeVar("P")


def complete_all(
    engine: Engine,
    request: Callable[[P], Generation],
    prompts: Sequence[P],
    progress: Callable[[float], None] | None = None,
) -> list[Completion]:
    """A completion for each prompt, in order.

    Args:
        request: makes the request of a prompt.
        progress: called with the share of prompts that are done; an error that it raises ends the
            batch.

    Raises:
        BatchError: some failed; carries the others' completions.
    """
    ended: SimpleQueue[int] = SimpleQueue()
    upcoming, running = iter(enumerate(prompts)), dict[int, "Generation"]()
    completions: list[Completion | None] = [None] * len(prompts)
    errors: dict[int, Error] = {}
    # Twice as many requests as sequences: one that ends finds the next waiting.
    most = 2 * len(engine.sequences.all)
    try:
        for done in range(1, len(prompts) + 1):
            for i, prompt in islice(upcoming, most - len(running)):
                try:
                    running[i] = request(prompt)
                    running[i].start(partial(ended.put, i))
                except Error as error:
                    errors[i] = error
                    ended.put(i)
            one = running.pop(i := ended.get(), None)
            try:
                completions[i] = None if i in errors or one is None else one.result()
            except Error as error:
                errors[i] = error
            if progress is not None:
                progress(done / len(prompts))
    finally:
        for one in running.values():
            engine.cancel(one)
    if errors:
        first = min(errors)
        raise BatchError(
            f"{len(errors)} of {len(prompts)} prompts failed, first prompts[{first}]: "
            f"{errors[first]}. The attribute `completions` of this error has the answers to the "
            "others",
            completions,
            errors,
        )
    return [one for one in completions if one is not None]


Messages = str | Sequence[Mapping[str, Any]]
"""A conversation: dicts with `role` and `content`, or the text of a user's only message."""


class Answering:
    """The methods of a loaded model that generate."""

    source: TensorSource
    backend: Backend
    model: Model
    tokenizer: Tokenizer | None
    engine: Engine
    prompts: Prompts
    defaults: Defaults = Defaults()

    @reported
    def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """A request that has not begun, to be run or iterated over once."""
        own, sampler = self._options(options)
        max_tokens, stop = own.pop("max_tokens", None), own.pop("stop", ())
        truncate = own.pop("truncate", None)
        items = {name: own.pop(name) for name in LISTS if name in own}
        if own.get("context_shift") and self.model.prompt_item:
            raise Unsupported(
                "an encoder–decoder has nothing to shift: its encoder reads the prompt once, and "
                "the answer alone fills the context. Leave out context_shift, or load the model "
                "with a larger context_length"
            )
        room = self._room(max_tokens, own.get("context_shift", False))
        prompt = self.prompts.with_items(prompt, items)
        ids = self.prompts.read(prompt, truncate, own.get("num_keep", 0), room)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return Generation(
            self.engine, self.tokenizer, ids, sampler, max_tokens=max_tokens, stop=stops, **own
        )

    @reported
    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Continues a prompt.

        Args:
            prompt: text, token ids, or a list that mixes both and images: paths as `Path`, bytes,
                PIL images, preprocessed pixels, embeddings; other items as parts of a message,
                {"type": "audio", "audio": …}. Text that begins a prompt gets the special tokens
                its vocabulary asks for.
            options: see `RequestOptions`.

        Raises:
            PromptError: the prompt is empty, too long, or has an id out of range.
            ConfigError: an unknown option, or a value outside of its range.
            ComputeError: the model's logits are NaN, or nothing obeys the grammar.
            Busy: all sequences are in use by streams of this very thread.
        """
        return self.request(prompt, **options).run()

    @reported
    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Stream:
        """Like `generate`, a piece a token; closing the stream cancels the request.

        Many threads may have streams at once: their tokens are computed together, as many sequences
        at a time as the model was loaded with (`parallel`); others wait.
        """
        return Stream(self.request(prompt, **options))

    @reported
    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """Continues many prompts, as many at a time as the model was loaded with (`parallel`).

        Args:
            prompts: each as `generate` takes it.
            progress: called with the share of prompts that are done, at the end with 1.0.
            options: see `RequestOptions`; the same for all.

        Returns:
            One completion a prompt, in order.

        Raises:
            BatchError: some prompts failed. The others were answered: see its `completions`.
            ConfigError, PromptError: an option is wrong, or `prompts` is no list; nothing was done.
        """
        self._options(options)
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
            raise PromptError(f"prompts is a list of prompts, not {type(prompts).__name__}")
        if progress is not None and not callable(progress):
            raise ConfigError(f"progress is {progress!r:.80}; it must be a function, or None")
        return complete_all(
            self.engine, lambda prompt: self.request(prompt, **options), [*prompts], progress
        )

    def astream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncStream:
        """`stream` for coroutines."""
        return AsyncStream(self.request(prompt, **options))

    async def agenerate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """`generate` for coroutines."""
        async with self.astream(prompt, **options) as stream:
            return stream.completion([piece async for piece in stream])

    @reported
    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | Stream:
        """Answers messages, through the chat template of the file.

        Args:
            messages: dicts with `role` and `content`, see `ChatTemplate.render`; or a text, which
                is one message of the user. Images, sounds and videos are parts of a content or
                stand in `images`, `audio` and `videos`; see `ggmodel.chat.take_items`.
            stream: give the answer piece by piece, as `stream` does, rather than as a whole.
            options: see `TemplateOptions` and `RequestOptions`.

        Raises:
            TemplateError: there is no template, it refuses the messages, or it fails.
            PromptError: the messages are malformed, or too long.
        """
        prompt, rest = self._chat(messages, options)
        return self.stream(prompt, **rest) if stream else self.generate(prompt, **rest)

    async def achat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | AsyncStream:
        """`chat` for coroutines; with `stream`, `async for piece in await model.achat(…)`."""
        prompt, rest = self._chat(messages, options)
        return self.astream(prompt, **rest) if stream else await self.agenerate(prompt, **rest)

    def _chat(self, messages: Messages, options: ChatOptions) -> tuple[list[Any], RequestOptions]:
        """The prompt of messages, and the options of the request."""
        template, rest = split_template(options)
        if rest.get("truncate"):
            messages = self.fitting(messages, **options)
            rest["truncate"] = False
        return self.prompts.chat(self.chat_text(messages, **template)), rest  # type: ignore[return-value]

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
        own, _ = self._options(rest)  # type: ignore[arg-type]
        room = self._room(own.get("max_tokens"), own.get("context_shift", False))
        rendered, most = self.chat_text(messages, **template), self.engine.context_length - room
        try:
            self.prompts.check_length(len(rendered.text), most)  # known without its tokens
            return len(self.prompts.numbers(self.prompts.chat(rendered))) <= most
        except PromptTooLong:
            return False

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
            return [{"role": "user", "content": messages}]
        need_list(messages)
        return fitting(messages, lambda some: self.fits(some, **options))

    def _room(self, max_tokens: int | None, context_shift: bool) -> int:
        """Positions of the context that are kept free for an answer."""
        if context_shift:
            return 0
        quarter = self.engine.context_length // 4
        return quarter if max_tokens is None else min(quarter, max_tokens)

    @reported
    def chat_prompt(self, messages: Messages, **options: Unpack[TemplateOptions]) -> list[Any]:
        """The prompt that `chat` makes of messages: token ids, or texts with the embeddings of
        images and other items between them."""
        rendered = self.chat_text(messages, **options)
        if not rendered.items:
            return rendered.ids()
        return self.prompts.chat(rendered)

    @reported
    def chat_text(self, messages: Messages, **options: Unpack[TemplateOptions]) -> PromptText:
        """The text that `chat` makes of messages, and the images and other items in it."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.prompts.render(self.defaults.begin(messages), **options)

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
        tools: Sequence[Mapping[str, Any]] | None = None,
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
        if isinstance(text, Completion) and form.special:
            text = self.prompts.vocabulary().decode(text.tokens)
        ending = self.prompts.ending(template, variables)
        return form.parse(text, tools, ending)

    def _options(self, options: RequestOptions) -> tuple[dict[str, Any], Sampler]:
        """Options of a request and its sampler, of a model that is open and generates."""
        self._check_open()
        split = split_options(self.defaults.under(options))
        if self.model.only_embeds:
            raise Unsupported("this model generates nothing, it only embeds: use embed")
        return split

    def _check_open(self) -> None:
        self.engine.check_process()
        if self.backend.closed:
            raise GraphError("this model is closed; load it again")
        self.backend.check_files()
