"""Ollama's API: its routes, and the models by /api/tags, /api/ps, /api/show, /api/version."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.routing import Route

from .... import __version__
from ....errors import ModelNotFound
from ...endpoint import Answers, Call, Handler, route
from ...errors import Refused
from ...pool import ListedModel, best_name
from ...requests import State
from ...server import Server
from . import inference, manage
from .schemas import (
    OLLAMA,
    RunningModel,
    RunningModels,
    ShownModel,
    Tag,
    Tags,
    Version,
    details,
    moment,
)

__all__ = ["OLLAMA", "routes"]

_FOR_EVER = 4_102_444_800.0  # 2100-01-01
# Ollama's words for abilities.
_CAPABILITIES = {
    "completion": "completion",
    "tools": "tools",
    "thinking": "thinking",
    "embedding": "embedding",
    "infill": "insert",
}
_KINDS = {"image": "vision", "audio": "audio", "video": "video"}


class ShowRequest(Struct, kw_only=True):
    """`name` is the older word for `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


def _model_routes(server: Server) -> list[Route]:
    def get(path: str, handler: Handler, kind: type) -> Route:
        return route("GET", path, handler, server, OLLAMA, answers=Answers(kind))

    shown = Answers(ShownModel)
    return [
        get("/api/tags", tags, Tags),
        get("/api/ps", running, RunningModels),
        route("POST", "/api/show", show, server, OLLAMA, ShowRequest, answers=shown),
        get("/api/version", version, Version),
    ]


async def tags(call: Call) -> None:
    """List the models, in Ollama's format."""
    listed = await call.server.models.listed()
    await call.json(Tags([Tag(**_shown(one)) for one in listed]))


async def running(call: Call) -> None:
    """List the models that are loaded, in Ollama's format."""
    listed = await call.server.models.listed()
    await call.json(RunningModels([_running(one, one.state) for one in listed if one.state]))


async def version(call: Call) -> None:
    """Show the version of Ollama whose API this is, and this program's."""
    await call.json(Version(__version__))


async def show(call: Call) -> None:
    """Describe a model, in Ollama's format. A model that is not loaded is loaded for it."""
    params = await call.decode(ShowRequest)
    name = params.model or params.name
    if not name:
        raise Refused("model: is missing", param="model")
    models = call.server.models
    async with models.use(name) as runner:
        state = runner.state
    listed = await models.listed()
    best = best_name(name, (one.name for one in listed))
    model = next((one for one in listed if one.name == best), None)
    model = model or next((one for one in listed if one.path == state.path), None)
    if model is None:
        raise ModelNotFound(f"no model is called {name!r:.200}; /api/tags lists all")
    able = [word for ability, word in _CAPABILITIES.items() if ability in state.abilities]
    shown = ShownModel(
        modelfile=f"FROM {model.path}\n",
        parameters="",
        template=state.template,
        details=details(model, state),
        model_info=_info(state, bool(params.verbose)),
        capabilities=able + [_KINDS[kind] for kind in state.kinds if kind in _KINDS],
        modified_at=moment(model.created),
    )
    await call.json(shown)


def _shown(model: ListedModel) -> dict[str, Any]:
    """The fields of `Tag`."""
    name = model.name if ":" in model.name.rpartition("/")[2] else f"{model.name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": moment(model.created),
        "size": model.nbytes,
        "digest": model.digest,
        "details": details(model),
    }


def _running(model: ListedModel, state: State) -> RunningModel:
    """A model that is loaded. The engine is no field of Ollama's."""
    expires = _FOR_EVER if model.expires is None else model.expires
    fields = {**_shown(model), "size": state.nbytes, "details": details(model, state)}
    return RunningModel(
        **fields,
        expires_at=moment(expires),
        context_length=state.context_length,
        engine=state.engine,
    )


def _info(state: State, verbose: bool) -> dict[str, Any]:
    """GGUF keys; lists and long texts only where asked for."""
    return {
        key: value
        for key, value in state.metadata.items()
        if verbose or not (isinstance(value, list) or key.startswith("tokenizer.chat_template"))
    }


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    parts = (
        inference.chat_routes,
        inference.generate_routes,
        inference.embed_routes,
        _model_routes,
        manage.routes,
    )
    return [one for part in parts for one in part(server)]
