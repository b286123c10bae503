"""JSON schemas as grammars take them: closed objects, compact text, resolved references."""

from __future__ import annotations

from .closing import COMPACT, closed

__all__ = ["COMPACT", "closed"]
