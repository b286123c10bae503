"""Diagrams of recorded graphs: boxes, their layout, and SVG or DOT text."""

from .boxes import Box, Diagram
from .build import build
from .dot import dot
from .svg import svg

__all__ = ["Box", "Diagram", "build", "dot", "svg"]
