"""Endpoints at the root: the page, tokens, templates, scores, health and metrics."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib.resources import files
from typing import Any

from msgspec import UNSET, Struct
from starlette.routing import Route

from ...bounds import limits
from ..chat_requests import dated, model_name, suit
from ..endpoint import TEXT, Answers, Call, Handler, route
from ..errors import Refused
from ..requests import ChatParams, Detokenize, Rank, Render, Tokenize, Tokens
from ..security import Keys
from ..server import Server
from .openai.inputs import ChatMessage, converted
from .openai.schemas import OPENAI, PromptUsage
from .openai.tools import Tool, chat_tools
from .schemas import (
    Detokenized,
    Health,
    Ranked,
    RankedList,
    RankedPlain,
    RankedText,
    Rendered,
    Score,
    ScoreList,
    Tokenized,
    TokenizerInfo,
    TokenPiece,
    document,
)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "woff2": "font/woff2"}
# Nothing from elsewhere, and no page may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "connect-src 'self' http://localhost:* http://127.0.0.1:*{}; "  # for MCP servers, too
    "img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def page_routes(server: Server) -> list[Route]:
    """Its files."""
    folder = files("ggmodel.serve") / "page"
    data = _read(folder)
    policy = _POLICY.format("".join(f" {origin}" for origin in server.settings.mcp_origins))

    async def send(call: Call, name: str) -> None:
        if name not in data:
            raise Refused(f"the page has no file {name!r:.100}", 404)
        media_type = _TYPES[_ending(name)]
        await call.reply(
            data[name],
            media_type if media_type.startswith("font") else f"{media_type}; charset=utf-8",
            cache_control="no-cache",
            content_security_policy=policy,
            x_content_type_options="nosniff",
        )

    async def index(call: Call) -> None:
        """The page to chat with models, for browsers; Ollama's words for others."""
        if _TYPES["html"] in call.headers.get("accept", ""):
            return await send(call, "index.html")
        await call.reply(b"Ollama is running", f"{TEXT}; charset=utf-8")

    async def part(call: Call) -> None:
        """A file of the page."""
        await send(call, call.path["name"])

    return [
        route(
            "GET",
            "/",
            index,
            server,
            OPENAI,
            answers=Answers(None, {_TYPES["html"]: [str], TEXT: [str]}),
        ),
        route(
            "GET",
            "/page/{name:path}",
            part,
            server,
            OPENAI,
            answers=Answers(None, {kind: [str] for kind in _TYPES.values()}),
        ),
    ]


def _read(folder: Any, prefix: str = "") -> dict[str, bytes]:
    """The files in a folder and those below it that browsers get, by their paths in it."""
    found = dict[str, bytes]()
    for one in folder.iterdir():
        if one.is_dir():
            found |= _read(one, f"{prefix}{one.name}/")
        elif _ending(one.name) in _TYPES:
            found[prefix + one.name] = one.read_bytes()
    return found


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


class ApplyTemplateRequest(Struct, kw_only=True):
    """A conversation that is rendered, not answered."""

    model: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool = True


class TokenizeRequest(ApplyTemplateRequest, kw_only=True):
    """`prompt` and `add_special_tokens` are vLLM's, `content` and the rest llama-server's."""

    prompt: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Struct):
    tokens: list[int]
    model: str | None = None


class RerankRequest(Struct):
    """As Jina's; `texts` are TEI's documents, whose scores go from 0 to 1 but for `raw_scores`."""

    query: str
    documents: list[str | dict[str, Any]] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    model: str | None = None


class ScoreRequest(Struct):
    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None


def routes(server: Server) -> list[Route]:
    """Its endpoints."""

    def post(path: str, handler: Handler, body: type, kind: Any) -> Route:
        return route("POST", path, handler, server, OPENAI, body, answers=Answers(kind))

    def get(path: str, handler: Handler, kind: Any) -> Route:
        return route("GET", path, handler, server, OPENAI, answers=Answers(kind))

    reranks = ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking")
    return [
        get("/health", health, Health),
        get("/v1/health", health, Health),
        route("GET", "/metrics", metrics, server, OPENAI, answers=Answers(None, {TEXT: [str]})),
        get("/openapi.json", openapi, dict[str, Any]),
        post("/tokenize", tokenize, TokenizeRequest, Tokenized),
        post("/detokenize", detokenize, DetokenizeRequest, Detokenized),
        get("/tokenizer_info", tokenizer_info, TokenizerInfo),
        post("/apply-template", apply_template, ApplyTemplateRequest, Rendered),
        *(post(path, rerank, RerankRequest, RankedList | list[RankedPlain]) for path in reranks),
        post("/score", score, ScoreRequest, ScoreList),
        post("/v1/score", score, ScoreRequest, ScoreList),
        *page_routes(server),
    ]


async def health(call: Call) -> None:
    """Tell that the server runs, and each model's condition."""
    answer = Health()
    with suppress(Refused):
        Keys(call.server.settings.keys).check(call.headers)
        answer.models = call.server.models.conditions()
    await call.json(answer)


async def openapi(call: Call) -> None:
    """Describe all endpoints."""
    await call.json(document(call.routes))


async def metrics(call: Call) -> None:
    """Numbers for Prometheus."""
    if not call.server.settings.metrics:
        raise Refused("numbers are not shown; start the server without --no-metrics", 501)
    page = call.server.metrics.page(await call.server.models.listed())
    await call.reply(
        page,
        "text/plain; version=0.0.4; charset=utf-8",
        Process_Start_Time_Unix=f"{call.server.metrics.began:.0f}",  # as llama-server spells it
    )


async def tokenize(call: Call) -> None:
    """Turn a text into token ids."""
    params = await call.decode(TokenizeRequest)
    theirs = params.prompt is None and params.messages is None
    if theirs and params.content is None:
        raise Refused("prompt: is missing", param="prompt")
    text: str | ChatParams
    if params.messages is not None:
        text = await _chat(params, call)
    else:
        text = params.prompt if params.prompt is not None else params.content or ""
    special = params.add_special if theirs else params.add_special_tokens
    async with call.server.models.use(params.model) as runner:
        if isinstance(text, ChatParams):
            await suit(runner, text)
        pieces = params.with_pieces if theirs else params.return_token_strs
        tokens = await runner.tokenize(Tokenize(text, special, params.parse_special, bool(pieces)))
        length = runner.state.context_length
    if theirs:
        listed = await asyncio.to_thread(_pieces, tokens) if pieces else tokens.ids
        return await call.json(Tokenized([*listed]))
    answer = Tokenized([*tokens.ids], len(tokens.ids), length)
    if pieces:
        answer.token_strs = [data.decode("utf-8", "replace") for data in tokens.pieces]
    await call.json(answer)


def _pieces(tokens: Tokens) -> list[TokenPiece]:
    """Each token with its text, or with its bytes where they are none."""

    def piece(data: bytes) -> str | list[int]:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return list(data)

    pairs = zip(tokens.ids, tokens.pieces, strict=True)
    return [TokenPiece(id, piece(data)) for id, data in pairs]


async def detokenize(call: Call) -> None:
    """Turn token ids into their text."""
    params = await call.decode(DetokenizeRequest)
    async with call.server.models.use(params.model) as runner:
        text = await runner.detokenize(Detokenize(params.tokens))
    await call.json(Detokenized(text.text, text.text))


async def tokenizer_info(call: Call) -> None:
    """Describe the vocabulary and the chat template, for programs that evaluate models."""
    async with call.server.models.use(None) as runner:
        state = runner.state
    info = TokenizerInfo(
        **state.special_tokens,
        chat_template=state.template or None,
        model_max_length=state.context_length,
        vocab_size=state.vocabulary,
    )
    await call.json(info)


async def apply_template(call: Call) -> None:
    """Render a conversation as the text of a prompt."""
    params = await call.decode(ApplyTemplateRequest)
    async with call.server.models.use(params.model) as runner:
        chat = await _chat(params, call)
        await suit(runner, chat)
        text = await runner.render(Render(chat))
    await call.json(Rendered(text.text))


async def _chat(params: ApplyTemplateRequest, call: Call) -> ChatParams:
    messages = await converted(params.messages or [], call)
    variables = dated(params.chat_template_kwargs or {})
    if not params.add_generation_prompt:
        variables["add_generation_prompt"] = False
    tools = chat_tools(params.tools, call).functions
    return ChatParams(
        messages,
        tools or None,
        params.chat_template,
        variables,
        params.continue_final_message,
    )


async def rerank(call: Call) -> None:
    """Order documents by how well they answer a query."""
    params = await call.decode(RerankRequest)
    listed = params.texts if params.documents is None else params.documents
    documents = [_document(one, i) for i, one in enumerate(listed or ())]
    _check(documents, "documents")
    async with call.server.models.use(params.model) as runner:
        unit = params.texts is not None and not params.raw_scores
        ranks = await runner.rank(Rank(params.query, documents, unit))
        name = model_name(params.model, runner.state)
    count = sum(ranks.tokens)
    call.server.metrics.read(runner.name, ranks)
    order = sorted(range(len(documents)), key=lambda i: -ranks.scores[i])
    order = order if params.top_n is None else order[: max(0, params.top_n)]
    if params.texts is not None:
        texts = documents if params.return_text else [UNSET] * len(documents)
        return await call.json([RankedPlain(i, ranks.scores[i], texts[i]) for i in order])
    shown = [RankedText(one) if params.return_documents else UNSET for one in documents]
    results = [Ranked(i, ranks.scores[i], shown[i]) for i in order]
    await call.json(RankedList(name, results, PromptUsage(count, count)))


async def score(call: Call) -> None:
    """Tell how well texts answer others, pair by pair."""
    params = await call.decode(ScoreRequest)
    first = [params.text_1] if isinstance(params.text_1, str) else params.text_1
    second = [params.text_2] if isinstance(params.text_2, str) else params.text_2
    _check(first, "text_1")
    _check(second, "text_2")
    if len(first) not in (1, len(second)):
        raise Refused("text_1: give one text, or as many as in text_2", param="text_1")
    scores: list[float] = []
    count = 0
    async with call.server.models.use(params.model) as runner:
        name = model_name(params.model, runner.state)
        pairs = (
            [(first[0], second)]
            if len(first) == 1
            else [(query, [text]) for query, text in zip(first, second, strict=True)]
        )
        for query, texts in pairs:
            ranks = await runner.rank(Rank(query, texts))
            call.server.metrics.read(runner.name, ranks)
            scores += ranks.scores
            count += sum(ranks.tokens)
    data = [Score(i, one) for i, one in enumerate(scores)]
    await call.json(ScoreList(name, data, PromptUsage(count, count)))


def _document(document: str | dict[str, Any], index: int) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise Refused(f"documents[{index}]: expected a text", param=f"documents[{index}]")
    return text


def _check(texts: list[str], param: str) -> None:
    if not texts:
        raise Refused(f"{param}: give at least one text", param=param)
    if len(texts) > limits.serve_prompts:
        raise Refused(
            f"{param}: {len(texts)} texts are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param=param,
        )
