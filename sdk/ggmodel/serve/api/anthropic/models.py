"""Anthropic's form of /v1/models, for clients that send its header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Literal

from msgspec import Struct

from ...endpoint import Call
from ...errors import Refused
from ...pages import Page
from ...pool import ListedModel
from .schemas import ANTHROPIC

_HEADER = "anthropic-version"


class ModelInfo(Struct, kw_only=True, tag="model"):
    id: str
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class ModelPage(Struct):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def asks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether the headers of a request are those of Anthropic's clients."""
    return _HEADER in headers


async def list_models(call: Call, models: Sequence[ListedModel]) -> None:
    """Answers with a page of the models, in their order."""
    call.errors = ANTHROPIC
    page = Page.of(list(models), lambda one: one.name, call.query)
    await call.json(ModelPage([_info(one) for one in page.items], *page.rest))


async def show_model(call: Call, model: ListedModel | None) -> None:
    """Answers with a model.

    Raises:
        Refused: there is none.
    """
    call.errors = ANTHROPIC
    if model is None:
        raise Refused(f"model: no model is called {call.path['model']!r:.200}", 404)
    await call.json(_info(model))


def _info(model: ListedModel) -> ModelInfo:
    length = None if model.state is None else model.state.context_length
    return ModelInfo(
        id=model.name,
        display_name=model.name,
        created_at=datetime.fromtimestamp(int(model.created), timezone.utc),
        max_input_tokens=length,
        max_tokens=length,
    )
