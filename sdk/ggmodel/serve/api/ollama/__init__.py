"""Ollama's API: its routes, and the models by /api/tags, /api/ps, /api/version."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from .... import __version__
from ...endpoint import Answers, Call, Handler, route
from ...pool import ListedModel
from ...requests import State
from ...server import Server
from . import inference, manage, show
from .schemas import (
    OLLAMA,
    RunningModel,
    RunningModels,
    Tag,
    Tags,
    Version,
    details,
    moment,
)

__all__ = ["OLLAMA", "routes"]

_FOR_EVER = 4_102_444_800.0  # 2100-01-01


def _model_routes(server: Server) -> list[Route]:
    def get(path: str, handler: Handler, kind: type) -> Route:
        return route("GET", path, handler, server, OLLAMA, answers=Answers(kind))

    return [
        get("/api/tags", tags, Tags),
        get("/api/ps", running, RunningModels),
        get("/api/version", version, Version),
    ]


async def tags(call: Call) -> None:
    """List the models, in Ollama's format."""
    listed = await call.server.models.listed()
    tags = [Tag(**_shown(one), capabilities=one.details.get("capabilities", [])) for one in listed]
    await call.json(Tags(tags))


async def running(call: Call) -> None:
    """List the models that are loaded, in Ollama's format."""
    listed = await call.server.models.listed()
    await call.json(RunningModels([_running(one, one.state) for one in listed if one.state]))


async def version(call: Call) -> None:
    """Show the version of Ollama whose API this is, and this program's."""
    await call.json(Version(__version__))


def _shown(model: ListedModel) -> dict[str, Any]:
    """The fields of `ListEntry`."""
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


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    parts = (
        inference.chat_routes,
        inference.generate_routes,
        inference.embed_routes,
        _model_routes,
        show.routes,
        manage.routes,
    )
    return [one for part in parts for one in part(server)]
