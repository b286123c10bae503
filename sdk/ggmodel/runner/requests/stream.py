"""Answers piece by piece, for threads and for coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

from .completion import Completion, FinishReason, Piece, Usage

if TYPE_CHECKING:
    from typing_extensions import Self

    from .generation import Generation


class _Answer:
    """A request whose pieces are being taken."""

    def __init__(self, request: Generation):
        self._request = request
        self._complete = False

    @property
    def finish_reason(self) -> FinishReason | None:
        """ "stop" or "length" after the last piece, None until then and after an error."""
        return self._request.finish_reason if self._complete else None

    @property
    def usage(self) -> Usage:
        """Counts and times so far; of the whole request after the last piece."""
        return self._request.usage

    def completion(self, pieces: Sequence[Piece]) -> Completion:
        """The pieces as a whole."""
        likely = [p.logprob for p in pieces if p.logprob is not None]
        tops = [p.top_logprobs for p in pieces if p.top_logprobs is not None]
        request = self._request
        text, reason = "".join(pieces), request.finish_reason
        return Completion(text, request.tokens, reason, request.usage, likely or None, tops or None)


class Stream(_Answer, Iterator[Piece]):
    """The pieces of an answer as they come: an iterator, and a context manager that closes it.

    Closing it, or dropping it before its end, cancels the request and frees its sequence.
    """

    def __init__(self, request: Generation):
        super().__init__(request)
        self._pieces = request.pieces()

    def __next__(self) -> Piece:
        try:
            return next(self._pieces)
        except StopIteration:
            self._complete = True
            raise

    def close(self) -> None:
        """Cancels the request unless it is complete; idempotent."""
        self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncStream(_Answer, AsyncIterator[Piece]):
    """`Stream` for coroutines."""

    def __init__(self, request: Generation):
        super().__init__(request)
        self._pieces = request.apieces()

    async def __anext__(self) -> Piece:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self._complete = True
            raise

    async def aclose(self) -> None:
        """Cancels the request unless it is complete; idempotent."""
        await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
