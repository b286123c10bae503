"""Things that are closed: by a `with` block, or where making the next thing fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self


class Closable(Protocol):
    """A thing with `close`."""

    def close(self) -> object: ...


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Frees what this object holds; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def closed_on_error(*things: Closable) -> Iterator[None]:
    """Closes these things, the last first, if the block raises, such as by Ctrl-C."""
    try:
        yield
    except BaseException:
        for thing in reversed(things):
            thing.close()
        raise
