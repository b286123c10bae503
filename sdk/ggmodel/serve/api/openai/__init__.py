"""OpenAI's API."""

from __future__ import annotations

from starlette.routing import Route

from ...server import Server
from . import audio, chat, completions, embeddings, models, responses
from .shapes import OPENAI

__all__ = ["OPENAI", "routes"]


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    parts = (chat, completions, embeddings, models, responses, audio)
    return [one for part in parts for one in part.routes(server)]
