"""The contract of a runner: a model in another process, whatever engine computes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from .requests import (
    Detokenize,
    Embed,
    Event,
    Generate,
    Rank,
    Ranks,
    Render,
    Rows,
    State,
    Text,
    Tokenize,
    Tokens,
    Transcribe,
    Transcript,
)


class Runner(Protocol):
    """A model in another process.

    All methods raise the errors of `ggmodel.errors` that the model raised, `DeviceLost` where the
    process has ended, and `Unsupported` where the engine has no such ability.
    """

    @property
    def name(self) -> str:
        """The model's own name, whatever requests call it."""
        ...

    @property
    def state(self) -> State:
        """The model, as of its loading; `running` and `waiting` as of now."""
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Event, None]:
        """`Begun`, a `Piece` a token, `Ended`. Closing the iterator cancels the
        request within one step."""
        ...

    async def embed(self, request: Embed) -> Rows: ...

    async def rank(self, request: Rank) -> Ranks: ...

    async def tokenize(self, request: Tokenize) -> Tokens: ...

    async def detokenize(self, request: Detokenize) -> Text: ...

    async def render(self, request: Render) -> Text: ...

    async def transcribe(self, request: Transcribe) -> Transcript: ...

    async def close(self) -> None:
        """Ends the process; requests that run get `Cancelled`. Idempotent."""
        ...
