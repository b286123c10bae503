"""Endpoints for those who run a server, as llama-server, vLLM and LM Studio have them: slots,
properties, loading and unloading, versions."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qs

from msgspec import UNSET, Struct, UnsetType
from starlette.routing import Route

from ..endpoint import JSON, TEXT, Answers, Call, Handler, route
from ..errors import Refused
from ..pool import ListedModel
from ..requests import State
from ..server import Server
from ..under_way import RunningAnswer
from .openai.schemas import OPENAI, settings_of


class Generation(Struct):
    """Defaults of requests."""

    n_ctx: int
    params: dict[str, Any] = {}


class Props(Struct):
    default_generation_settings: Generation
    total_slots: int
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str
    deterministic: bool


class NextToken(Struct):
    """`n_remain` is −1 where the answer has no limit."""

    n_decoded: int
    n_remain: int
    has_next_token: bool = True


class Slot(Struct, kw_only=True):
    """A sequence of the model. The fields behind `speculative` are those of an answer."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool = False
    id_task: int | UnsetType = UNSET
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    next_token: NextToken | UnsetType = UNSET


class NamedModel(Struct):
    model: str


class Done(Struct):
    success: bool = True


class ServerVersion(Struct):
    version: str


class ServerLoad(Struct):
    """Requests under way."""

    server_load: int


class StoredModel(Struct, kw_only=True, tag_field="object", tag="model"):
    """A model as LM Studio lists it. Its type and length are known while it is loaded."""

    id: str
    type: Literal["llm", "vlm", "embeddings"]
    publisher: str
    arch: str
    compatibility_type: str
    quantization: str
    state: Literal["loaded", "not-loaded"]
    max_context_length: int | UnsetType = UNSET
    loaded_context_length: int | UnsetType = UNSET


class StoredModels(Struct, tag_field="object", tag="list"):
    data: list[StoredModel]


def routes(server: Server) -> list[Route]:
    """Its endpoints."""

    def get(path: str, handler: Handler, kind: Any) -> Route:
        return route("GET", path, handler, server, OPENAI, answers=Answers(kind))

    def post(path: str, handler: Handler, body: type | None, answers: Answers) -> Route:
        return route("POST", path, handler, server, OPENAI, body, answers=answers)

    nothing = Answers(None, {TEXT: [str]})
    return [
        get("/props", props, Props),
        post("/props", change_props, None, Answers(None, {JSON: [Props]})),
        get("/slots", slots, list[Slot]),
        post("/models/load", load, NamedModel, Answers(Done)),
        post("/models/unload", unload, NamedModel, Answers(Done)),
        get("/version", version, ServerVersion),
        get("/load", server_load, ServerLoad),
        route("GET", "/ping", ping, server, OPENAI, answers=nothing),
        post("/ping", ping, None, nothing),
        get("/api/v0/models", list_stored, StoredModels),
    ]


async def props(call: Call) -> None:
    """Describe a model as llama-server does; one that is not loaded is, but for
    `autoload=false`."""
    name = _field(call, "model")
    runner = await call.server.models.loaded(name)
    if runner is not None:
        state = runner.state
    elif _field(call, "autoload") == "false":
        message = "the model is not loaded; a request to it, or to /models/load, loads it"
        raise Refused(message, 503)
    else:
        async with call.server.models.use(name) as runner:
            state = runner.state
    answer = Props(
        default_generation_settings=Generation(
            state.context_length, state.sampling | call.server.settings.defaults
        ),
        total_slots=state.parallel,
        model_path=state.path,
        chat_template=state.template,
        bos_token=state.special_tokens.get("bos_token", ""),
        eos_token=state.special_tokens.get("eos_token", ""),
        modalities={"vision": "image" in state.kinds, "audio": "audio" in state.kinds},
        build_info=state.build,
        deterministic=state.deterministic,
    )
    await call.json(answer)


async def change_props(call: Call) -> None:
    """Refuse to change a model's properties."""
    raise Refused(
        "the properties of a model do not change while it is served; give options with each "
        "request, or start the server with others",
        403,
    )


async def slots(call: Call) -> None:
    """Show the sequences of a model, none while it is not loaded, and the answers in them; texts
    are left out."""
    if not call.server.settings.slots:
        raise Refused("slots are not shown; start the server without --no-slots", 501)
    runner = await call.server.models.loaded(_field(call, "model"))
    if runner is None:
        return await call.json([])
    state = runner.state
    if _field(call, "fail_on_no_slot") and state.running >= state.parallel:
        raise Refused("no slot is free", 503)
    answers = call.server.metrics.under_way.slots(runner.name, state.parallel)
    # Sequences that compute rows and other things have no answer.
    others = state.running - sum(one is not None for one in answers)
    listed = list[Slot]()
    for i, answer in enumerate(answers):
        listed.append(_slot(i, state, answer, others > 0))
        others -= answer is None
    await call.json(listed)


def _slot(id: int, state: State, answer: RunningAnswer | None, busy: bool) -> Slot:
    if answer is None:
        return Slot(id=id, n_ctx=state.context_length, is_processing=busy)
    most = answer.options.get("max_tokens")
    begun = answer.decoded > 0
    params = state.sampling | settings_of(answer.options)
    params.pop("stop", None)  # texts
    return Slot(
        id=id,
        n_ctx=state.context_length,
        is_processing=True,
        speculative=bool(answer.options.get("prompt_lookup")),
        id_task=answer.number,
        n_prompt_tokens=answer.prompt_tokens,
        n_prompt_tokens_processed=answer.prompt_tokens if begun else answer.prefilled,
        params=params,
        next_token=NextToken(answer.decoded, -1 if most is None else most - answer.decoded),
    )


def _field(call: Call, name: str) -> str | None:
    """A field of the query; None if it is absent or empty."""
    return parse_qs(call.query).get(name, [None])[-1]


async def load(call: Call) -> None:
    """Load a model, and answer when it is ready."""
    params = await call.decode(NamedModel)
    async with call.server.models.use(params.model):
        pass
    await call.json(Done())


async def unload(call: Call) -> None:
    """Unload a model when its requests are done."""
    params = await call.decode(NamedModel)
    await call.server.models.unload(params.model)
    await call.json(Done())


async def version(call: Call) -> None:
    """Show the version of this program, as vLLM does."""
    from ... import __version__

    await call.json(ServerVersion(__version__))


async def server_load(call: Call) -> None:
    """Count the requests under way, as vLLM does."""
    listed = await call.server.models.listed()
    states = [one.state for one in listed if one.state is not None]
    await call.json(ServerLoad(sum(one.running + one.waiting for one in states)))


async def ping(call: Call) -> None:
    """Tell that the server runs; an empty answer."""
    await call.reply(b"", TEXT)


async def list_stored(call: Call) -> None:
    """List the models, in LM Studio's format."""
    listed = await call.server.models.listed()
    await call.json(StoredModels([_stored(one) for one in listed]))


def _stored(model: ListedModel) -> StoredModel:
    state, details = model.state, model.details
    abilities = [] if state is None else state.abilities
    rows_alone = "embedding" in abilities and "completion" not in abilities
    sees = state is not None and "image" in state.kinds
    shown = StoredModel(
        id=model.name,
        type="embeddings" if rows_alone else "vlm" if sees else "llm",
        publisher=model.name.partition("/")[0] if "/" in model.name else "",
        arch=state.architecture if state else str(details.get("architecture", "")),
        compatibility_type=str(details.get("format", "gguf")),
        quantization=state.quantization if state else str(details.get("quantization", "")),
        state="not-loaded" if state is None else "loaded",
    )
    if state is not None:
        shown.loaded_context_length = state.context_length
        shown.max_context_length = max(state.trained_context, state.context_length)
    return shown
