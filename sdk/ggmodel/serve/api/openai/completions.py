"""Completions and embeddings of texts and token ids: /v1/completions, /v1/embeddings."""

from __future__ import annotations

import base64
from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from starlette.routing import Route

from ....bounds import limits
from ....chat.replies import Content
from ...answers import Answer, Reply, all_whole
from ...chat_requests import Asked, called, check_logprobs, within
from ...endpoint import EVENTS, Answers, Call, Stream, event, route, some, written
from ...errors import Refused
from ...infill import fill_prompt
from ...requests import Embed, Ended, Generate, GrammarSpec, Rows, Runner, Token
from ...server import Server
from .chat import ResponseFormat
from .inputs import Input, Sampling, inputs_of, only_ids, schema
from .schemas import OPENAI, Embeddings, TextCompletion, head, timings, usage

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
    answers = Answers(TextCompletion, [EVENTS])
    path = "/v1/completions"
    return [route("POST", path, create, server, OPENAI, CompletionRequest, answers=answers)]


async def create(call: Call) -> None:
    """Continue texts."""
    given = await call.decode(CompletionRequest)
    prompts, n = inputs_of(given.prompt, "prompt"), given.choices
    if len(prompts) * n > limits.serve_prompts:
        raise Refused(
            f"prompt: {len(prompts) * n} answers are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param="prompt",
        )
    if given.suffix and (given.echo or not all(isinstance(one, str) for one in prompts)):
        raise Refused("suffix: needs prompts that are texts, and no echo", param="suffix")
    if given.best_of is not None and given.best_of != n:
        raise Refused("best_of: is unsupported but for the value of n", param="best_of")
    async with call.server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        name = called(given.model, runner.state)
        most = _MAX_TOKENS if given.max_tokens is None else given.max_tokens
        options = within(await given.options(runner, most), call.server.settings)
        if given.suffix:
            prompts = [
                await fill_prompt(runner, one, given.suffix, max_tokens=options.get("max_tokens"))
                for one in prompts
            ]
        asked = [_asked(given, options, prompt, i) for prompt in prompts for i in range(n)]
        check_logprobs(asked, runner)
        answers = [Answer(runner, one, call.server.metrics) for one in asked]
        work = Completions(call, runner, given, prompts, name)
        await (work.stream(answers) if given.stream else work.reply(answers))


def _asked(given: CompletionRequest, options: Mapping[str, Any], prompt: Any, choice: int) -> Asked:
    options = dict(options)
    if options.get("seed", -1) >= 0:
        options["seed"] += choice  # each has one of its own
    form = given.response_format
    grammar = given.form()
    if form is not None and form.type == "json_object":
        grammar = schema(form.schema) if form.schema else GrammarSpec("json")
    elif form is not None and form.json_schema is not None:
        grammar = schema(form.json_schema.schema)
    top = _top(given)
    if top is not None:
        options |= {"logprobs": True, "top_logprobs": top}
    wanted = (top or 0) if given.echo and top is not None else None
    if given.echo and wanted is None and not isinstance(prompt, str):
        wanted = 0  # for the texts of the ids
    return Asked(Generate(prompt, options, grammar, prompt_logprobs=wanted))


def _top(given: CompletionRequest) -> int | None:
    """How many of the likeliest tokens to tell; None for no log-probabilities."""
    wanted = given.logprobs
    if wanted is None or wanted is False:
        return None
    if not 0 <= wanted <= _TOP:
        raise Refused(f"logprobs: {wanted} is not between 0 and {_TOP}", param="logprobs")
    return int(wanted)


class Completions:
    """Sends the answers of one request."""

    def __init__(
        self,
        call: Call,
        runner: Runner,
        given: CompletionRequest,
        prompts: list[Any],
        name: str,
    ):
        self._call, self._given, self._prompts, self._n = call, given, prompts, given.choices
        self._with_logprobs = _top(given) is not None
        self._common = head("cmpl-", "text_completion", name, runner.state)

    async def reply(self, answers: list[Answer]) -> None:
        """All of them at once."""
        replies = await all_whole(answers)
        ended = [reply.ended for reply in replies]
        both = zip(answers, replies, strict=True)
        choices = [self._choice(i, answer, reply) for i, (answer, reply) in enumerate(both)]
        found = {**self._common, "choices": choices, "usage": self._usage(ended)}
        if len(ended) == 1:
            found["timings"] = timings(ended[0])
        await self._call.json(found)

    def _usage(self, ended: list[Ended]) -> dict[str, Any]:
        return usage(ended, sum(one.prompt_tokens for one in ended[:: self._n]))

    def _choice(self, index: int, answer: Answer, reply: Reply) -> dict[str, Any]:
        before = self._echoed(index, answer)
        found = None
        if self._with_logprobs:
            prompt = (answer.begun.tokens or []) if self._given.echo else []
            tokens = [*prompt, *reply.tokens]
            if self._given.echo and not reply.tokens and reply.ended.reason == "stop":
                # Evaluations take the tokens but the last for the prompt's.
                tokens.append(Token(-1, "", b""))
            found = legacy(tokens, Offsets(before, len(prompt)))
        return {
            "index": index,
            "text": before + reply.content,
            "logprobs": found,
            "finish_reason": reply.ended.reason,
        }

    def _echoed(self, index: int, answer: Answer) -> str:
        """The text of the prompt, where it is to be part of the answer."""
        if not self._given.echo:
            return ""
        prompt = self._prompts[index // self._n]
        if isinstance(prompt, str):
            return prompt
        data = b"".join(token.data for token in answer.begun.tokens or ())
        return data.decode("utf-8", "replace")

    async def stream(self, answers: list[Answer]) -> None:
        """Piece by piece."""
        ended: list[Any] = [None] * len(answers)

        async def tell(index: int, out: Stream) -> None:
            offsets = Offsets("", 0)

            def chunk(text: str, tokens: list[Token], end: Ended | None = None) -> bytes:
                found = legacy(tokens, offsets) if tokens and self._with_logprobs else None
                reason = None if end is None else end.reason
                choice = {"index": index, "text": text, "logprobs": found, "finish_reason": reason}
                more: dict[str, Any] = {"usage": None} if self._given.wants_usage else {}
                if end is not None:
                    more["timings"] = timings(end)
                return event({**self._common, "choices": [choice], **more})

            async with answers[index] as answer:
                await out.begin()
                if before := self._echoed(index, answer):
                    told = answer.begun.tokens or []
                    offsets = Offsets(before, len(told))
                    await out.send(chunk(before, told))
                async for said in answer:
                    text = "".join(d.text for d in said.deltas if isinstance(d, Content))
                    await out.send(chunk(text, [said.token] if said.token else []))
                ended[index] = answer.ended
                await out.send(chunk("", [], answer.ended))

        async with self._call.stream() as out:
            await some(lambda index: tell(index, out), len(answers))
            if self._given.wants_usage:
                counts = self._usage(ended)
                await out.send(event({**self._common, "choices": [], "usage": counts}))
            await out.send(written(b"[DONE]"))


class Legacy(Struct):
    """Log-probabilities as completions have them; the first of a prompt has none.

    Attributes:
        text_offset: characters before each token.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


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


def legacy(tokens: list[Token], offsets: Offsets) -> Legacy:
    """Log-probabilities of tokens."""
    found = Legacy([], [], [], [])
    for token in tokens:
        found.tokens.append(token.text)
        found.token_logprobs.append(token.logprob)
        found.text_offset.append(offsets.next(token))
        found.top_logprobs.append(_likeliest(token))
    return found


def _likeliest(token: Token) -> dict[str, float] | None:
    """By text; of tokens with the same text the likeliest. The token itself is among them."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for one in (*token.top, token):
        if one.logprob is not None:
            found[one.text] = max(one.logprob, found.get(one.text, one.logprob))
    return found


class EmbeddingRequest(Struct):
    """A request. The last line is no field of OpenAI's."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    truncate: bool = False
    keep_alive: float | None = None


def embedding_routes(server: Server) -> list[Route]:
    path, answers = "/v1/embeddings", Answers(Embeddings)
    return [
        route("POST", path, create_embeddings, server, OPENAI, EmbeddingRequest, answers=answers)
    ]


async def create_embeddings(call: Call) -> None:
    """Turn texts into rows of numbers, similar ones for similar texts."""
    given = await call.decode(EmbeddingRequest)
    texts = inputs_of(given.input, "input")
    if not all(texts):
        raise Refused("input: a text is empty", param="input")
    if given.dimensions is not None and given.dimensions < 1:
        raise Refused("dimensions: give 1 or more", param="dimensions")
    async with call.server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        texts = [await only_ids(runner, one) for one in texts]
        rows = await runner.embed(
            Embed(texts, truncate=given.truncate, dimensions=given.dimensions)
        )
        name = called(given.model, runner.state)
    count = sum(rows.tokens)
    call.server.metrics.read(runner.name, count)
    data = rows_of(rows, given.encoding_format == "base64")
    await call.json(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(data)
            ],
            "model": name,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
    )


def rows_of(rows: Rows, as_base64: bool) -> list[Any]:
    """Each row as a list of floats, or as base64 of its bytes."""
    size = 4 * rows.width
    parts = [rows.data[i * size : (i + 1) * size] for i in range(rows.count)]
    if as_base64:
        return [base64.b64encode(part).decode() for part in parts]
    return [memoryview(part).cast("f").tolist() for part in parts]
