"""Lists in pages, as a query asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import parse_qs

from .errors import Refused

T = TypeVar("T")
_PAGE, _MOST = 20, 1000  # items


class PageEnds(NamedTuple):
    """Whether there are more items in the direction of the query, and the ids of both ends."""

    has_more: bool
    first_id: str | None
    last_id: str | None


class Page(NamedTuple, Generic[T]):
    """A page of a list."""

    items: list[T]
    rest: PageEnds

    @classmethod
    def of(
        cls,
        items: list[T],
        id: Callable[[T], str],
        query: str,
        after: str = "after_id",
        before: str = "before_id",
    ) -> Page[T]:
        """The page that a query asks for.

        Args:
            id: of an item.
            query: its text, with `limit` and one of the fields that are called `after` and
                `before`.

        Raises:
            Refused: a field is wrong.
        """
        fields = {name: values[-1] for name, values in parse_qs(query).items()}
        ids = [id(one) for one in items]
        limit = _limit(fields.get("limit"))
        if after in fields and before in fields:
            raise Refused(f"{before}: leave it out, or {after}", param=before)
        if before in fields:
            stop = _place(ids, fields[before], before)
            start, has_more = max(0, stop - limit), stop > limit
        else:
            start = _place(ids, fields[after], after) + 1 if after in fields else 0
            stop = start + limit
            has_more = stop < len(ids)
        found = ids[start:stop]
        ends = (found[0], found[-1]) if found else (None, None)
        return cls(items[start:stop], PageEnds(has_more, *ends))


def _limit(text: str | None) -> int:
    if text is None:
        return _PAGE
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _MOST):
        raise Refused(f"limit: {text!r:.50} is no number between 1 and {_MOST}", param="limit")
    return int(text[:9])


def _place(ids: list[str], id: str, param: str) -> int:
    if id not in ids:
        raise Refused(f"{param}: nothing has the id {id!r:.200}", param=param)
    return ids.index(id)
