"""Anthropic's form of /v1/models, for clients that send its header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Literal, NamedTuple
from urllib.parse import parse_qs

from msgspec import Struct

from ...endpoint import Call
from ...errors import Refused
from ...pool import ListedModel
from .schemas import ANTHROPIC

_HEADER = "anthropic-version"
_PAGE, _MOST = 20, 1000  # models of a page


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
    ids = [one.name for one in models]
    window = _Window.read(call.query)
    start, stop, has_more = window.within(ids)
    data = [_info(one) for one in models[start:stop]]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    await call.json(ModelPage(data, has_more, *ends))


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


class _Window(NamedTuple):
    """The part of a list that a request wants."""

    limit: int
    after: str | None
    before: str | None

    @classmethod
    def read(cls, query: str) -> _Window:
        """The part that a query asks for.

        Raises:
            Refused: `limit` is no number in its range, or both ends are given.
        """
        fields = {name: values[-1] for name, values in parse_qs(query).items()}
        limit = fields.get("limit", str(_PAGE))
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MOST):
            message = f"limit: {limit!r:.50} is no number between 1 and {_MOST}"
            raise Refused(message, param="limit")
        window = cls(int(limit[:9]), fields.get("after_id"), fields.get("before_id"))
        if window.after is not None and window.before is not None:
            raise Refused("before_id: leave it out, or after_id", param="before_id")
        return window

    def within(self, ids: Sequence[str]) -> tuple[int, int, bool]:
        """The first place, the one behind the last, and whether there are more beyond.

        Raises:
            Refused: no id of the list is the given one.
        """
        if self.before is not None:
            stop = self._place(ids, self.before, "before_id")
            return max(0, stop - self.limit), stop, stop > self.limit
        start = 0 if self.after is None else self._place(ids, self.after, "after_id") + 1
        return start, start + self.limit, start + self.limit < len(ids)

    def _place(self, ids: Sequence[str], id: str, param: str) -> int:
        if id not in ids:
            raise Refused(f"{param}: no model is called {id!r:.200}", param=param)
        return list(ids).index(id)
