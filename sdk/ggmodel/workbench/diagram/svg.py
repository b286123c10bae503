"""Diagrams as SVG: one file without fonts, scripts or anything else from outside."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from .boxes import Box, Diagram
from .layout import CHARACTER, FONT, LINE, PAD, lay_out

_MARGIN = 16
_STYLE = f"""
text {{ font: {FONT}px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; }}
.title {{ font-weight: bold; }}
.weight {{ fill: #8250df; }} .cache {{ fill: #bc4c00; }} .input {{ fill: #0a6640; }}
rect {{ stroke: #8c959f; fill: #ffffff; }}
.depth1 > rect {{ fill: #f6f8fa; }} .depth2 > rect {{ fill: #eaeef2; }}
.ops > rect {{ stroke-dasharray: 3 2; }}
.tensor > rect {{ fill: #ddf4ff; stroke: none; }} .tensor > text {{ fill: #0550ae; }}
path {{ fill: none; stroke: #57606a; stroke-width: 1.2; }}
.background {{ fill: #ffffff; stroke: none; }}
"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><polygon points="0,0 8,4 0,8" fill="#57606a"/></marker></defs>'
)


def svg(diagram: Diagram) -> str:
    """Lays a diagram out and draws it; the same diagram gives the same text."""
    width, height = (2 * _MARGIN + size for size in lay_out(diagram, _MARGIN, _MARGIN))
    size = f'width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>{_STYLE}</style>",
        _HEAD,
        f'<rect class="background" {size}/>',
        *_drawn(diagram, 0),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(diagram: Diagram, depth: int) -> Iterator[str]:
    for box in diagram.boxes:
        place = f'transform="translate({box.x:.1f} {box.y:.1f})"'
        size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
        yield f'<g class="{box.kind} depth{depth % 3}" {place}>'
        yield f'<rect {size} rx="{9 if box.kind == "tensor" else 4}"/>'
        yield from _texts(box)
        if box.inner is not None:
            yield from _drawn(box.inner, depth + 1)
        yield "</g>"
    for (_, end), path in zip(diagram.edges, diagram.paths, strict=True):
        head = "" if end.kind == "tensor" else ' marker-end="url(#head)"'
        yield f'<path d="{_curve(path)}"{head}/>'


def _texts(box: Box) -> Iterator[str]:
    if box.kind == "tensor":
        yield _text(box.title, PAD, FONT + 1)
        return
    y = PAD + FONT - 1
    if box.title:
        yield _text(box.title, PAD, y, "title")
        y += LINE
    for line in box.lines:
        indent = 0.0 if line.kind == "op" else 2 * CHARACTER
        yield _text(line.text, PAD + indent, y, line.kind)
        y += LINE


def _text(text: str, x: float, y: float, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{name} xml:space="preserve">{escape(text)}</text>'


def _curve(path: list[tuple[float, float]]) -> str:
    parts = []
    for i in range(0, len(path), 3):
        (x0, y0), (x1, y1), (x2, y2) = path[i : i + 3]
        parts.append(f"{'L' if i else 'M'}{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}")
        middle = (y1 + y2) / 2
        parts.append(f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}")
    return "".join(parts)
