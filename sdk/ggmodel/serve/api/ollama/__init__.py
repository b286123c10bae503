"""Ollama's API."""

from __future__ import annotations

from starlette.routing import Route

from ...server import Server
from . import chat, embed, generate, manage, models
from .shapes import OLLAMA

__all__ = ["OLLAMA", "routes"]


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    parts = (chat, generate, embed, models, manage)
    return [one for part in parts for one in part.routes(server)]
