"""llama-server's own /completion, and its counts of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET
from starlette.routing import Route

from ...chat.replies import Content
from ...errors import TokenizerError
from ..answers import Answer, ParsedToken, Reply
from ..bodies import decoded
from ..chat import ChatProtocol, serve_chat
from ..endpoint import EVENTS, Answers, Call, route
from ..errors import Refused
from ..infill import Extra, fill_prompt
from ..requests import Adapt, Detokenize, Finished, PromptProgress, Request, Started, Token
from ..server import Server
from .openai.chat import ChatCompletions, ChatRequest
from .openai.inputs import MIDDLE, AdapterScale, Input, Sampling, inputs_of, scales_by_name
from .openai.responses import prompt_tokens
from .openai.schemas import (
    OPENAI,
    InputTokens,
    entry,
    progress_of,
    settings_of,
    timings,
    timings_so_far,
)
from .schemas import ContinuedPart, ContinuedText, IdLogprob, LikelyId, LoadedAdapter, Success

_TOP = 100


class ContinuationRequest(Sampling, kw_only=True):
    """A text to be gone on with; `n_predict` of −1 goes on to the model's end. `response_fields`
    are those of the answer, `a/b` one of an object; all where there are none."""

    n_predict: int | None = None
    n_keep: int | None = None
    n_probs: int = 0
    post_sampling_probs: bool = False
    return_tokens: bool = False
    response_fields: list[str] = []


class CompletionRequest(ContinuationRequest, kw_only=True):
    """A request."""

    prompt: Input | None = None


class InfillRequest(ContinuationRequest, kw_only=True):
    """A request for the text between two others, of which `prompt` is the beginning."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Extra] = []
    prompt: str = ""


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    texts = Answers(ContinuedText | list[ContinuedText], {EVENTS: [ContinuedPart, ContinuedText]})
    chats = ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    return [
        *(
            route("POST", path, create, server, OPENAI, CompletionRequest, answers=texts)
            for path in ("/completion", "/completions")
        ),
        *(
            route("POST", path, count, server, OPENAI, ChatRequest, answers=Answers(InputTokens))
            for path in chats
        ),
        route(
            "GET", "/lora-adapters", adapters, server, OPENAI, answers=Answers(list[LoadedAdapter])
        ),
        route(
            "POST",
            "/lora-adapters",
            set_adapters,
            server,
            OPENAI,
            list[AdapterScale],
            answers=Answers(Success),
        ),
        route("POST", "/infill", infill, server, OPENAI, InfillRequest, answers=texts),
    ]


async def count(call: Call) -> None:
    """Count the tokens of a conversation."""
    params = await call.decode(ChatRequest)
    chat = ChatCompletions(call, params)
    requests = await chat.read()
    async with call.server.models.use(params.model, **chat.loading()) as chat.runner:
        number = await prompt_tokens(chat.runner, (await chat.prepared(requests))[0])
    await call.json(InputTokens(number))


async def adapters(call: Call) -> None:
    """List the LoRA adapters of the first model."""
    async with call.server.models.use(None) as runner:
        strengths = (await runner.adapt(Adapt())).strengths
    await call.json([LoadedAdapter(i, *one) for i, one in enumerate(strengths.items())])


async def set_adapters(call: Call) -> None:
    """Set the strengths that adapters have in requests that choose none; others get 0."""
    scales = await decoded(call.body, list[AdapterScale])
    async with call.server.models.use(None) as runner:
        named = scales_by_name(scales, runner.state.adapters, "id")
        await runner.adapt(Adapt(named))
    await call.json(Success())


async def create(call: Call) -> None:
    """Continue texts, in llama-server's format."""
    await serve_chat(Completion, call)


async def infill(call: Call) -> None:
    """Write the text between two others."""
    await serve_chat(Infill, call)


W = TypeVar("W", bound=ContinuationRequest)


class Continuation(ChatProtocol[W]):
    """A text for each prompt."""

    def __init__(self, call: Call, params: W):
        super().__init__(call, params)
        self._requests: list[Request] = []
        self._text: list[str] = []
        self._count = self._evaluated = 0
        call.remedy = "" if params.truncate else MIDDLE

    def loading(self) -> dict[str, Any]:
        return {"keep_alive": self.params.keep_alive}

    async def prepared(self, requests: list[Request]) -> list[Request]:
        params = self.params
        most = params.max_tokens if params.n_predict is None else params.n_predict
        options = await params.options(self.runner, most)
        if params.n_keep is not None and params.n_keep >= 0:
            options["num_keep"] = params.n_keep
        if not 0 <= params.n_probs <= _TOP:
            raise Refused(f"n_probs: {params.n_probs} is not between 0 and {_TOP}", param="n_probs")
        if params.n_probs or params.return_tokens or params.stream:  # each with its id
            options |= {"logprobs": True, "top_logprobs": params.n_probs}
        if params.n_probs and params.post_sampling_probs:
            options["post_sampling_probs"] = True
        for one in requests:
            one.options, one.progress, one.slot = options, params.watches_prefill, params.slot
        self._requests = await super().prepared(requests)
        return requests

    async def whole(self, replies: list[Reply]) -> Any:
        texts = []
        for i, reply in enumerate(replies):
            whole = await self._whole(i, reply, reply.content)
            if self.params.return_tokens:
                whole.tokens = [token.id for token in reply.tokens]
            if self.params.n_probs and reply.tokens:
                whole.completion_probabilities = self._probabilities(reply.tokens)
            texts.append(_chosen(whole, self.params.response_fields))
        return texts[0] if len(texts) == 1 else texts

    async def first(self, index: int, answer: Answer) -> Iterable[ContinuedPart]:
        self._evaluated = len(answer.started.prompt)
        return []

    def prefilled(self, index: int, progress: PromptProgress) -> Iterable[ContinuedPart]:
        part = ContinuedPart("", [], self._count, self._evaluated)
        part.prompt_progress, part.timings = progress_of(progress), timings_so_far(progress)
        return [part]

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[ContinuedPart]:
        text = "".join(delta.text for delta in parsed.deltas if isinstance(delta, Content))
        new = [] if parsed.token is None else [parsed.token]
        self._count += len(new)
        self._text.append(text)
        part = ContinuedPart(text, [token.id for token in new], self._count, self._evaluated)
        if self.params.n_probs:
            part.completion_probabilities = self._probabilities(new)
        return [part]

    async def last(self, index: int, answer: Answer) -> Iterable[Any]:
        whole = await self._whole(index, answer, "".join(self._text))
        whole.content = ""
        return [_chosen(whole, self.params.response_fields)]

    async def _whole(self, index: int, answer: Answer | Reply, text: str) -> ContinuedText:
        request, finished = self._requests[index], answer.finished
        return ContinuedText(
            index=index,
            content=text,
            model=self.name,
            tokens_predicted=finished.completion_tokens,
            tokens_evaluated=finished.prompt_tokens,
            generation_settings={
                "n_probs": self.params.n_probs,
                "stream": bool(self.params.stream),
                "seed": -1,
                **settings_of(request.options),
            },
            prompt=await self._prompt(answer.started),
            has_new_line="\n" in text,
            stop_type=_stop_type(finished),
            stopping_word=finished.stop or "",
            tokens_cached=finished.prompt_tokens + finished.completion_tokens,
            timings=timings(finished),
        )

    def _probabilities(self, tokens: list[Token]) -> list[IdLogprob]:
        """How likely tokens were, with ids, and the likeliest at their places."""
        if self.params.post_sampling_probs:
            return [
                IdLogprob(**_drawn(one), top_probs=[LikelyId(**_drawn(top)) for top in one.top])
                for one in tokens
            ]
        return [
            IdLogprob(**_likely(one), top_logprobs=[LikelyId(**_likely(top)) for top in one.top])
            for one in tokens
        ]

    async def _prompt(self, started: Started) -> str:
        """The text of a prompt as the model has it; "" without a vocabulary."""
        try:
            return (await self.runner.detokenize(Detokenize(started.prompt))).text
        except TokenizerError:
            return ""


class Completion(Continuation[CompletionRequest]):
    body = CompletionRequest

    async def read(self) -> list[Request]:
        params = self.params
        prompts = inputs_of(params.prompt, "prompt")
        if params.stream and len(prompts) > 1:
            raise Refused("stream: needs a single prompt", param="stream")
        return [Request(prompt, grammar=params.form()) for prompt in prompts]


class Infill(Continuation[InfillRequest]):
    body = InfillRequest

    async def read(self) -> list[Request]:
        return [Request("", grammar=self.params.form())]

    async def prepared(self, requests: list[Request]) -> list[Request]:
        params, (request,) = self.params, await super().prepared(requests)
        request.prompt = await fill_prompt(
            self.runner,
            params.input_prefix,
            params.input_suffix,
            begun=params.prompt,
            extra=params.input_extra,
            max_tokens=request.options.get("max_tokens"),
        )
        return requests


def _chosen(text: ContinuedText, paths: list[str]) -> Any:
    """The fields of an answer that a request names; those that it lacks are left out."""
    if not paths:
        return text
    found, whole = dict[str, Any](), msgspec.to_builtins(text)
    for path in paths:
        value = whole
        for name in path.split("/"):
            value = value.get(name, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[path] = value
    return found


def _stop_type(finished: Finished) -> Literal["limit", "eos", "word"]:
    if finished.reason == "length":
        return "limit"
    return "eos" if finished.stop is None else "word"


def _likely(token: Token) -> dict[str, Any]:
    text, logprob, data = entry(token)
    return {"id": token.id, "token": text, "bytes": data, "logprob": logprob}


def _drawn(token: Token) -> dict[str, Any]:
    fields = _likely(token)
    fields["prob"] = math.exp(fields.pop("logprob"))
    return fields
