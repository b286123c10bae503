"""Answers piece by piece, for threads and for coroutines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...shortage import as_error, reported
from .completion import Completion, FinishReason, Piece, Usage

if TYPE_CHECKING:
    from typing_extensions import Self

    from .generation import Generation


class _Answer:
    """A request whose pieces are being taken."""

    def __init__(self, request: Generation):
        self._request = request
        self._complete = self._cut_off = False

    @property
    def finish_reason(self) -> FinishReason | None:
        """ "stop" or "length" after the last piece, None until then, and where it was cut off."""
        return self._request.finish_reason if self._complete else None

    @property
    def usage(self) -> Usage:
        """Counts and times so far; of the whole request after the last piece."""
        return self._request.usage

    def completion(self, pieces: Sequence[Piece]) -> Completion:
        """The pieces as a whole."""
        return self._request.completion(pieces)


class Stream(_Answer, Generator[Piece, None, None]):
    """The pieces of an answer as they come: a generator, and a context manager that closes it.

    Closing it, or dropping it before its end, cancels the request and frees its sequence.
    """

    def __init__(self, request: Generation):
        super().__init__(request)
        self._pieces = request.pieces()

    @reported
    def send(self, value: None = None, /) -> Piece:
        """The next piece."""
        try:
            return self._pieces.send(value)
        except StopIteration:
            self._complete = not self._cut_off
            raise
        except BaseException:
            self._cut_off = True
            raise

    def throw(self, *error: Any) -> Piece:
        """Ends the request with an error."""
        return self._pieces.throw(*error)

    def close(self) -> None:
        """Cancels the request unless it is complete; idempotent. Any thread may close it."""
        self._cut_off = not self._complete
        self._request.cancel()
        with suppress(ValueError):  # another thread waits for a piece, and gets the end
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncStream(_Answer, AsyncGenerator[Piece, None]):
    """`Stream` for coroutines."""

    def __init__(self, request: Generation):
        super().__init__(request)
        self._pieces = request.apieces()

    async def asend(self, value: None = None, /) -> Piece:
        """The next piece."""
        try:
            return await self._pieces.asend(value)
        except StopAsyncIteration:
            self._complete = not self._cut_off
            raise
        except BaseException as error:
            self._cut_off = True
            raise as_error(error)  # noqa: B904 (it has its cause)

    async def athrow(self, *error: Any) -> Piece:
        """Ends the request with an error."""
        return await self._pieces.athrow(*error)

    async def aclose(self) -> None:
        """Cancels the request unless it is complete; idempotent."""
        self._cut_off = not self._complete
        await self._pieces.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_request"):  # its loop may be closed, and ends no generator then
            self._request.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
