"""Anthropic's API."""

from __future__ import annotations

from starlette.routing import Route

from ...server import Server
from . import messages
from .shapes import ANTHROPIC

__all__ = ["ANTHROPIC", "routes"]


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    return messages.routes(server)
