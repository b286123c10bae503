"""The requests to a runner that have a single answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ..requests import (
    Detokenize,
    Embed,
    Rank,
    Ranks,
    Render,
    Rows,
    Text,
    Tokenize,
    Tokens,
    Transcribe,
    Transcript,
)


class Questions(ABC):
    """Those methods of `Runner` for a runner that asks another process by their names."""

    @abstractmethod
    async def _ask(self, method: str, request: Any) -> Any: ...

    async def embed(self, request: Embed) -> Rows:
        return await self._ask("embed", request)

    async def rank(self, request: Rank) -> Ranks:
        return await self._ask("rank", request)

    async def tokenize(self, request: Tokenize) -> Tokens:
        return await self._ask("tokenize", request)

    async def detokenize(self, request: Detokenize) -> Text:
        return await self._ask("detokenize", request)

    async def render(self, request: Render) -> Text:
        return await self._ask("render", request)

    async def transcribe(self, request: Transcribe) -> Transcript:
        return await self._ask("transcribe", request)
