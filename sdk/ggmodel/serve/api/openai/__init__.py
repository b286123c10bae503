"""OpenAI's API: its routes, and /v1/models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET
from starlette.routing import Route

from ....errors import ModelNotFound
from ...endpoint import JSON, Answers, Call, Handler, route
from ...pool import Condition, ListedModel, best_name
from ...server import Server
from ..anthropic import models as anthropic_models
from ..anthropic.models import ModelInfo, ModelPage, asks_anthropic
from . import audio, chat, completions, embeddings, files, responses
from .schemas import OPENAI, Model, ModelAbilities, ModelList, ModelMeta, ModelStatus

__all__ = ["OPENAI", "routes"]

_KINDS = {"vision": "image", "audio": "audio"}  # Ollama's word for an encoder → what it takes


def _model_routes(server: Server) -> list[Route]:
    def get(path: str, handler: Handler, *kinds: type) -> Route:
        return route("GET", path, handler, server, OPENAI, answers=Answers(None, {JSON: kinds}))

    return [
        get("/v1/models", list_models, ModelList, ModelPage),
        get("/models", list_models, ModelList, ModelPage),
        get("/v1/models/{model:path}", show_model, Model, ModelInfo),
    ]


async def list_models(call: Call) -> None:
    """List the models that can be asked for, in Anthropic's format for its clients."""
    listed = await call.server.models.listed()
    if asks_anthropic(call.headers):
        return await anthropic_models.list_models(call, listed)
    conditions = call.server.models.conditions()
    models = [ModelAbilities(one.name, one.name, _abilities(one)) for one in listed]
    await call.json(ModelList([_shown(one, conditions) for one in listed], models))


async def show_model(call: Call) -> None:
    """Describe a model, in Anthropic's format for its clients."""
    name = call.path["model"]
    listed = await call.server.models.listed()
    best = best_name(name, (one.name for one in listed))
    model = next((one for one in listed if one.name == best), None)
    if asks_anthropic(call.headers):
        return await anthropic_models.show_model(call, model)
    if model is None:
        raise ModelNotFound(f"no model is called {name!r:.200}; /v1/models lists all")
    await call.json(_shown(model, call.server.models.conditions()))


def _shown(model: ListedModel, conditions: Mapping[str, Condition]) -> Model:
    state = model.state
    fields: Any = {
        "id": model.name,
        "created": int(model.created),
        "size": model.nbytes,
        "removable": bool(model.details.get("own")),
    }
    if state is None:
        status = _status(conditions.get(model.name))
        fields |= _header(model.details)
        return Model(**fields, loaded=False, engine=None, status=status)
    fields |= {
        "abilities": state.abilities,
        "kinds": state.kinds,
        "context_length": state.context_length,
    }
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
    status = ModelStatus("loaded")
    return Model(**fields, loaded=True, engine=state.engine, status=status, meta=meta)


def _header(details: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model that is not loaded, by the header of its file."""
    able = details.get("capabilities")
    if able is None:
        return {}
    kinds = [kind for name, kind in _KINDS.items() if name in able]
    abilities = ["infill" if one == "insert" else one for one in able if one not in _KINDS]
    if details.get("chat") and "completion" in able:
        abilities.append("chat")
    elif kinds == ["audio"]:
        abilities = ["transcription"]
    fields: dict[str, Any] = {"abilities": abilities, "kinds": kinds}
    if length := details.get("context_length"):
        fields["context_length"] = length
    return fields


def _abilities(model: ListedModel) -> list[str]:
    """A model's abilities in llama-server's words, of one that is not loaded by its file."""
    able = model.details.get("capabilities", [])
    media: Any = {"vision", "audio"}.intersection(able)
    if model.state is not None:
        able, media = model.state.abilities, model.state.kinds
    return [*able, *(["multimodal"] if media else [])]


def _status(condition: Condition | None) -> ModelStatus:
    """The status of a model that has no runner."""
    if condition == "loading":
        return ModelStatus("loading")
    return ModelStatus("unloaded", True if condition == "failed" else UNSET)


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    parts = (
        chat.routes,
        completions.routes,
        embeddings.routes,
        _model_routes,
        responses.routes,
        files.routes,
        audio.routes,
    )
    return [one for part in parts for one in part(server)]
