"""A certificate as a page of its own: text and pictures in one file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader

from .report import Certificate, TensorResult

_LAYER = re.compile(r"^(.*?\bblk)\.(\d+)\.(.+)$")
_CELL = 16  # pixels
_BEST, _WORST = -6.0, 0.0  # powers of ten of the error that are green and red


class Cell(NamedTuple):
    """A square of the picture: its place in pixels, its colour, and the tensor."""

    x: int
    y: int
    colour: str
    tensor: TensorResult


class Picture(NamedTuple):
    """Tensors of layers: a row a kind of tensor, a column a layer.

    Attributes:
        names: (y in pixels, kind of tensor).
    """

    width: int
    height: int
    names: list[tuple[int, str]]
    cells: list[Cell]


def picture(certificate: Certificate) -> Picture:
    """Every tensor as a square; those outside of layers are in the first column."""
    rows: dict[str, int] = {}
    cells: list[Cell] = []
    for t in certificate.tensors:
        match = _LAYER.match(t.name)
        kind, layer = (match[3], int(match[2]) + 1) if match else (t.name, 0)
        y = rows.setdefault(kind, len(rows)) * _CELL
        cells.append(Cell(layer * _CELL, y, colour(t), t))
    width = max((cell.x for cell in cells), default=0) + _CELL
    names = [(y * _CELL + _CELL - 4, kind) for kind, y in rows.items()]
    return Picture(width, len(rows) * _CELL, names, cells)


def colour(t: TensorResult) -> str:
    """By the status; of equal ones by the error that their type makes."""
    if t.status in ("different", "missing", "surplus"):
        return "var(--bad)"
    if t.status == "uncompared":
        return "var(--line)"
    power = math.log10(t.error) if t.error > 0 else _BEST
    share = min(1.0, max(0.0, (power - _BEST) / (_WORST - _BEST)))
    return f"hsl({150 - 90 * share:.0f} {'45%' if t.status == 'equal' else '12%'} 55%)"


def share(nmse: float) -> float:
    """The length of a bar, 0 to 100, by the logarithm of an error."""
    power = math.log10(nmse) if 0 < nmse < math.inf else (-14.0 if nmse == 0 else 0.0)
    return round(100 * min(1.0, max(0.0, (power + 14) / 14)), 1)


def page(certificate: Certificate) -> str:
    """The whole page. It loads nothing else."""
    folder = FileSystemLoader(Path(__file__).parent)
    html = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=folder)
    drawn = picture(certificate)
    template = html.get_template("page.html")
    return template.render(c=certificate, picture=drawn, share=share).lstrip() + "\n"
