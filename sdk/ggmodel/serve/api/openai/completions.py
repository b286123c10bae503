"""Completions of texts and token ids: /v1/completions."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import UNSET
from starlette.routing import Route

from ....bounds import limits
from ....chat.replies import Content
from ...answers import Answer, ParsedToken, Reply
from ...chat import serve_chat
from ...chat_requests import choices
from ...endpoint import EVENTS, Answers, Call, route
from ...errors import Refused
from ...infill import fill_prompt
from ...requests import Finished, GrammarSpec, PromptProgress, Request, Started, Token
from ...server import Server
from .chat import ResponseFormat
from .inputs import MIDDLE, Input, OpenAIProtocol, Sampling, inputs_of, schema
from .schemas import (
    OPENAI,
    Number,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
    progress_of,
    timings,
    timings_so_far,
    usage,
)

_MAX_TOKENS = 16  # OpenAI's
_TOP = 20  # as vLLM


class CompletionRequest(Sampling, kw_only=True):
    """A request. The last line is no field of OpenAI's, but of llama-server and vLLM."""

    prompt: Input | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    response_format: ResponseFormat | None = None


def routes(server: Server) -> list[Route]:
    answers = Answers(TextCompletion, {EVENTS: [TextCompletion]})
    path = "/v1/completions"
    return [route("POST", path, create, server, OPENAI, CompletionRequest, answers=answers)]


async def create(call: Call) -> None:
    """Continue texts."""
    await serve_chat(Completions, call)


class Completions(OpenAIProtocol[CompletionRequest]):
    """Completions: some prompts, some answers for each."""

    body = CompletionRequest
    prefix = "cmpl-"

    async def read(self) -> list[Request]:
        params = self.params
        self.call.remedy = "" if params.truncate else MIDDLE
        prompts, self.count = inputs_of(params.prompt, "prompt"), params.choices
        answers = len(prompts) * self.count
        if answers > limits.serve_prompts:
            raise Refused(
                f"prompt: {answers} answers are more than the limit serve_prompts of "
                f"{limits.serve_prompts}",
                param="prompt",
            )
        if params.suffix and (params.echo or not all(isinstance(one, str) for one in prompts)):
            raise Refused("suffix: needs prompts that are texts, and no echo", param="suffix")
        if params.best_of is not None and params.best_of != self.count:
            raise Refused("best_of: is unsupported but for the value of n", param="best_of")
        self.top, grammar = _top(params), _grammar(params)
        self.offsets = [Offsets("", 0)] * answers
        return [Request(one, {}, grammar, False, self._prompt_logprobs(one)) for one in prompts]

    def _prompt_logprobs(self, prompt: Any) -> int | None:
        """How many of the likeliest tokens to tell at each place of a prompt."""
        if self.params.echo and (self.top is not None or not isinstance(prompt, str)):
            return self.top or 0  # of ids the texts, at least
        return None

    async def prepared(self, requests: list[Request]) -> list[Request]:
        params = self.params
        most = _MAX_TOKENS if params.max_tokens is None else params.max_tokens
        options = await params.options(self.runner, most)
        if self.top is not None:
            options |= {"logprobs": True, "top_logprobs": self.top}
        for one in requests:
            one.options, one.progress, one.slot = options, params.watches_prefill, params.slot
        await super().prepared(requests)
        if params.suffix:
            most = requests[0].options.get("max_tokens")
            for one in requests:
                prefix = str(one.prompt)
                one.prompt = await fill_prompt(self.runner, prefix, params.suffix, max_tokens=most)
        self.prompts = [one.prompt for one in requests]
        return [one for request in requests for one in choices(request, self.count)]

    async def whole(self, replies: list[Reply]) -> TextCompletion:
        finished = [reply.finished for reply in replies]
        return TextCompletion(
            **self.head,
            choices=[self._choice(i, reply) for i, reply in enumerate(replies)],
            usage=self._usage(finished),
            timings=timings(finished[0]) if len(finished) == 1 else UNSET,
        )

    def _usage(self, finished: list[Finished]) -> Usage:
        return usage(finished, sum(one.prompt_tokens for one in finished[:: self.count]))

    def _choice(self, index: int, reply: Reply) -> TextChoice:
        before = self._echoed(index, reply.started)
        logprobs = None
        if self.top is not None:
            prompt = (reply.started.tokens or []) if self.params.echo else []
            tokens = [*prompt, *reply.tokens]
            if self.params.echo and not reply.tokens and reply.finished.reason == "stop":
                # Evaluations take the tokens but the last for the prompt's.
                tokens.append(Token(-1, "", b""))
            logprobs = legacy(tokens, Offsets(before, len(prompt)))
        finished = reply.finished
        captured = finished.captured or UNSET
        return TextChoice(index, before + reply.content, logprobs, finished.reason, captured)

    def _echoed(self, index: int, started: Started) -> str:
        """The text of the prompt, where it is to be part of the answer."""
        if not self.params.echo:
            return ""
        prompt = self.prompts[index // self.count]
        if isinstance(prompt, str):
            return prompt
        data = b"".join(token.data for token in started.tokens or ())
        return data.decode("utf-8", "replace")

    async def first(self, index: int, answer: Answer) -> Iterable[TextCompletion]:
        self.offsets[index] = Offsets("", 0)
        if not (before := self._echoed(index, answer.started)):
            return []
        tokens = answer.started.tokens or []
        self.offsets[index] = Offsets(before, len(tokens))
        return [self._chunk(index, before, tokens)]

    def prefilled(self, index: int, progress: PromptProgress) -> Iterable[TextCompletion]:
        chunk = self._chunk(index, "", [])
        chunk.prompt_progress, chunk.timings = progress_of(progress), timings_so_far(progress)
        return [chunk]

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[TextCompletion]:
        text = "".join(one.text for one in parsed.deltas if isinstance(one, Content))
        return [self._chunk(index, text, [parsed.token] if parsed.token else [])]

    async def last(self, index: int, answer: Answer) -> Iterable[TextCompletion]:
        self.finished[index] = answer.finished
        last = self._chunk(index, "", [], answer.finished.reason)
        last.timings = timings(answer.finished)
        last.choices[0].captured = answer.finished.captured or UNSET
        return [last]

    def counts(self) -> TextCompletion:
        counts = self._usage([finished for _, finished in sorted(self.finished.items())])
        return TextCompletion(**self.head, choices=[], usage=counts)

    def _chunk(
        self,
        index: int,
        text: str,
        tokens: list[Token],
        reason: Literal["stop", "length"] | None = None,
    ) -> TextCompletion:
        logprobs = None
        if tokens and self.top is not None:
            logprobs = legacy(tokens, self.offsets[index])
        choice = TextChoice(index, text, logprobs, reason)
        usage = None if self.params.wants_usage else UNSET
        return TextCompletion(**self.head, choices=[choice], usage=usage)


def _grammar(params: CompletionRequest) -> GrammarSpec | None:
    form = params.response_format
    if form is not None and form.type == "json_object":
        return schema(form.schema) if form.schema else GrammarSpec("json")
    if form is not None and form.json_schema is not None:
        return schema(form.json_schema.schema)
    return params.form()


def _top(params: CompletionRequest) -> int | None:
    """How many of the likeliest tokens to tell; None for no log-probabilities."""
    logprobs = params.logprobs
    if logprobs is None or logprobs is False:
        return None
    if not 0 <= logprobs <= _TOP:
        raise Refused(f"logprobs: {logprobs} is not between 0 and {_TOP}", param="logprobs")
    return int(logprobs)


class Offsets:
    """Counts the characters before each token.

    Args:
        prompt: the text before the answer. Its tokens may have more: a beginning-of-sequence token,
            and the space that some vocabularies put before a text.
        tokens: of the prompt; the first ones that are told.
    """

    def __init__(self, prompt: str, tokens: int):
        self._prompt, self._at, self._left = prompt, 0, tokens
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def next(self, token: Token) -> int:
        """Characters before this token."""
        before, text = self._at, self._decoder.decode(token.data)
        self._left -= 1
        if self._left >= 0 and not self._prompt.startswith(text, before):
            text = text.lstrip(" ")
            if not self._prompt.startswith(text, before):
                return before
        self._at += len(text)
        return before


def legacy(tokens: list[Token], offsets: Offsets) -> TextLogprobs:
    """Log-probabilities of tokens."""
    logprobs = TextLogprobs([], [], [], [])
    for token in tokens:
        logprobs.tokens.append(token.text)
        logprobs.token_logprobs.append(token.logprob)
        logprobs.text_offset.append(offsets.next(token))
        logprobs.top_logprobs.append(_likeliest(token))
    return logprobs


def _likeliest(token: Token) -> dict[str, Number] | None:
    """By text; of tokens with the same text the likeliest. The token itself is among them."""
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for one in (*token.top, token):
        if one.logprob is not None:
            by_text[one.text] = max(one.logprob, by_text.get(one.text, one.logprob))
    return {**by_text}
