"""Requests that a model answers with text, from their body to the end of the answer: one path for
all APIs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .answers import Answer, ParsedToken, Reply, all_whole
from .chat_requests import check_logprobs, model_name, prepare
from .endpoint import EVENTS, PING, Call, event, some

if TYPE_CHECKING:
    from ..chat.replies import ReplyFormat
    from .requests import PromptProgress, Request, Runner

T = TypeVar("T")


class ChatProtocol(ABC, Generic[T]):
    """The words of an API, one object a request.

    Attributes:
        body: the type of the request's JSON, with the fields `model` and `stream`.
        media_type: of a stream. ping: see `Call.stream`.
        call: the request. params: its JSON.
        runner: the model's, once it is there.
        form: of the model's replies; None if all text is content.
    """

    body: ClassVar[type]
    media_type: ClassVar[str] = EVENTS
    ping: ClassVar[bytes] = PING
    runner: Runner

    def __init__(self, call: Call, params: T):
        self.call: Call = call
        self.params: T = params
        self.form: ReplyFormat | None = None

    @property
    def name(self) -> str:
        """The model's name in the answer."""
        return model_name(self.params.model, self.runner.state)  # type: ignore[attr-defined]

    @property
    def streams(self) -> bool:
        """Whether the answer is sent piece by piece."""
        return bool(self.params.stream)  # type: ignore[attr-defined]

    def loading(self) -> dict[str, Any]:
        """Options of the model's use; see `Models.use`."""
        return {}

    @abstractmethod
    async def read(self) -> list[Request]:
        """The requests to the runner, as far as they can be made without it; none where the model
        is only loaded.

        Raises:
            Refused: the body contradicts itself, or has something that is unsupported.
        """

    async def prepared(self, requests: list[Request]) -> list[Request]:
        """The requests as the runner takes them, one an answer.

        Raises:
            Refused: the model cannot do what they want.
        """
        for one in requests:
            self.form = await prepare(self.runner, one, self.call.server.settings)
        return requests

    @abstractmethod
    async def whole(self, replies: list[Reply]) -> Any:
        """The JSON of all answers."""

    async def first(self, index: int, answer: Answer) -> Iterable[Any]:
        """The parts of a stream at the beginning of an answer."""
        return ()

    @abstractmethod
    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[Any]:
        """The parts of a stream for a token of an answer."""

    def prefilled(self, index: int, progress: PromptProgress) -> Iterable[Any]:
        """The parts of a stream for a step of the prefill."""
        return ()

    @abstractmethod
    async def last(self, index: int, answer: Answer) -> Iterable[Any]:
        """The parts of a stream at the end of an answer."""

    def frame(self, part: Any) -> bytes:
        """A part as it is sent."""
        return event(part)

    def end(self) -> bytes:
        """The end of a stream, after all answers."""
        return b""


async def serve_chat(protocol: type[ChatProtocol[Any]], call: Call) -> None:
    """Answers a request."""
    await answer_chat(protocol(call, await call.decode(protocol.body)))


async def answer_chat(chat: ChatProtocol[Any]) -> None:
    """Answers a request that is read."""
    call, server = chat.call, chat.call.server
    requests = await chat.read()
    async with server.models.use(chat.params.model, **chat.loading()) as runner:
        chat.runner = runner
        requests = await chat.prepared(requests)
        check_logprobs(requests, runner)
        answers = [Answer(runner, one, server.metrics, chat.form) for one in requests]
        if answers and chat.streams:
            await _stream(chat, call, answers)
            return
        whole = await chat.whole(await all_whole(answers))
    await call.json(whole)


async def parts_of(
    chat: ChatProtocol[Any], index: int, answer: Answer
) -> AsyncGenerator[Iterable[Any], None]:
    """The parts of a stream, those of a step together; first when the prompt is accepted."""
    async with answer:
        yield await chat.first(index, answer)
        async for parsed in answer:
            if parsed.progress is not None:
                yield chat.prefilled(index, parsed.progress)
            else:
                yield chat.chunks(index, parsed)
        yield await chat.last(index, answer)


async def _stream(chat: ChatProtocol[Any], call: Call, answers: list[Answer]) -> None:
    async def send(index: int) -> None:
        async with aclosing(parts_of(chat, index, answers[index])) as steps:
            async for parts in steps:
                if chat.media_type == EVENTS:  # pings may be sent from now on
                    await call.begin()
                await call.send_all(map(chat.frame, parts))

    async with call.stream(chat.media_type, chat.ping):
        await some(send, len(answers))
        await call.send_all([chat.end()])
