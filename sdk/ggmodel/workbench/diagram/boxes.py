"""The parts of a diagram."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Line(NamedTuple):
    """A line of text in a box; its kind is "op", "weight", "cache" or "input"."""

    kind: str
    text: str


@dataclass(eq=False)
class Box:
    """A module, a run of ops, or a tensor.

    Attributes:
        kind: "module", "ops" (a module's own, between modules in it) or "tensor".
        inner: the content of an opened module.
        x, y: its upper left corner, from the corner of the box around it; y grows downwards.
            Pixels, like width and height; all four are set by the layout.
    """

    kind: str
    title: str = ""
    lines: list[Line] = field(default_factory=list)
    inner: Diagram | None = None
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


@dataclass(eq=False)
class Diagram:
    """Boxes, with edges from tensors to their readers and from producers to tensors.

    Attributes:
        paths: the points of each edge, set by the layout; see `layout`.
    """

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[Box, Box]] = field(default_factory=list)
    paths: list[list[tuple[float, float]]] = field(default_factory=list)
