"""OpenAI's API: its routes, and /v1/models."""

from __future__ import annotations

from starlette.routing import Route

from ....errors import ModelNotFound
from ...endpoint import Answers, Call, Handler, route
from ...pool import ListedModel, best_name
from ...server import Server
from . import audio, chat, completions, responses
from .schemas import OPENAI, Model, ModelList, ModelMeta

__all__ = ["OPENAI", "routes"]


def _model_routes(server: Server) -> list[Route]:
    def get(path: str, handler: Handler, kind: type) -> Route:
        return route("GET", path, handler, server, OPENAI, answers=Answers(kind))

    return [
        get("/v1/models", list_models, ModelList),
        get("/models", list_models, ModelList),
        get("/v1/models/{model:path}", show_model, Model),
    ]


async def list_models(call: Call) -> None:
    """List the models that can be asked for."""
    listed = await call.server.models.listed()
    await call.json(ModelList([_shown(one) for one in listed]))


async def show_model(call: Call) -> None:
    """Describe a model."""
    name = call.path["model"]
    listed = await call.server.models.listed()
    best = best_name(name, (one.name for one in listed))
    for one in listed:
        if one.name == best:
            return await call.json(_shown(one))
    raise ModelNotFound(f"no model is called {name!r:.200}; /v1/models lists all")


def _shown(model: ListedModel) -> Model:
    state, created = model.state, int(model.created)
    if state is None:
        return Model(id=model.name, created=created, loaded=False, engine=None)
    meta = ModelMeta(
        architecture=state.architecture,
        n_vocab=state.vocabulary,
        n_ctx=state.context_length,
        n_ctx_train=state.trained_context,
        n_embd=state.width,
        n_params=state.parameters,
        size=model.nbytes,
        quantization=state.quantization,
        abilities=state.abilities,
        kinds=state.kinds,
    )
    return Model(id=model.name, created=created, loaded=True, engine=state.engine, meta=meta)


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    parts = (
        chat.routes,
        completions.routes,
        completions.embedding_routes,
        _model_routes,
        responses.routes,
        audio.routes,
    )
    return [one for part in parts for one in part(server)]
