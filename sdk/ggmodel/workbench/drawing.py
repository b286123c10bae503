"""Diagrams as SVG, and as DOT for those who have Graphviz. The same diagram gives the same text."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from .layout import CHARACTER, FONT, LINE, PAD, lay_out
from .picture import Diagram, Shape

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


def svg(diagram: Diagram) -> str:
    """A picture of it, which needs nothing else; lays the diagram out."""
    width, height = lay_out(diagram, _MARGIN, _MARGIN)
    width, height = width + 2 * _MARGIN, height + 2 * _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><polygon points="0,0 8,4 0,8" fill="#57606a"/></marker>'
        "</defs>",
        f'<rect class="background" width="{width:.0f}" height="{height:.0f}"/>',
        *_drawn(diagram, 0),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(diagram: Diagram, depth: int) -> Iterator[str]:
    for shape in diagram.shapes:
        yield f'<g class="{shape.kind} depth{depth % 3}">'
        round_ = ' rx="9"' if shape.kind == "tensor" else ' rx="4"'
        yield f"<rect {_corner(shape)} {_size(shape)}{round_}/>"
        yield from _texts(shape)
        if shape.inner is not None:
            yield from _drawn(shape.inner, depth + 1)
        yield "</g>"
    for (_, end), path in zip(diagram.edges, diagram.paths, strict=True):
        head = "" if end.kind == "tensor" else ' marker-end="url(#head)"'
        yield f'<path d="{_curve(path)}"{head}/>'


def _corner(shape: Shape) -> str:
    return f'x="{shape.x:.1f}" y="{shape.y:.1f}"'


def _size(shape: Shape) -> str:
    return f'width="{shape.width:.1f}" height="{shape.height:.1f}"'


def _texts(shape: Shape) -> Iterator[str]:
    x, y = shape.x + PAD, shape.y + PAD + FONT - 1
    if shape.kind == "tensor":
        yield _text(shape.title, x, shape.y + FONT + 1, "")
        return
    if shape.title:
        yield _text(shape.title, x, y, "title")
        y += LINE
    for line in shape.lines:
        indent = 0.0 if line.kind == "op" else 2 * CHARACTER
        yield _text(line.text, x + indent, y, line.kind)
        y += LINE


def _text(text: str, x: float, y: float, kind: str) -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{name} xml:space="preserve">{escape(text)}</text>'


def _curve(path: list[tuple[float, float]]) -> str:
    parts = []
    for i in range(0, len(path), 3):
        (x0, y0), (x1, y1), (x2, y2) = path[i : i + 3]
        parts.append(f"{'L' if i else 'M'}{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}")
        middle = (y1 + y2) / 2
        parts.append(f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}")
    return "".join(parts)


# DOT


def dot(diagram: Diagram) -> str:
    """The graph for Graphviz: opened modules are clusters."""
    lines = [
        "digraph model {",
        '  graph [fontname="monospace", fontsize=11, compound=true];',
        '  node [shape=box, fontname="monospace", fontsize=10];',
        *_listed(diagram, "n", "  "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _listed(diagram: Diagram, name: str, indent: str) -> Iterator[str]:
    """What is in a diagram; each shape is named by its place in it."""
    names = {shape: f"{name}_{i}" for i, shape in enumerate(diagram.shapes)}
    for shape, own in names.items():
        if shape.inner is not None:
            yield f"{indent}subgraph cluster_{own} {{"
            yield f"{indent}  label={_quoted([shape.title])};"
            # An edge needs a node, also where a cluster stands for it.
            yield f"{indent}  {own} [shape=point, style=invis];"
            yield from _listed(shape.inner, own, indent + "  ")
            yield f"{indent}}}"
        elif shape.kind == "tensor":
            yield f"{indent}{own} [label={_quoted([shape.title])}, shape=plaintext];"
        else:
            label = _quoted([shape.title, *(line.text for line in shape.lines)], left=True)
            yield f"{indent}{own} [label={label}];"
    for a, b in diagram.edges:
        ends = [f"{key}=cluster_{names[s]}" for key, s in (("ltail", a), ("lhead", b)) if s.inner]
        yield f"{indent}{names[a]} -> {names[b]}{f' [{chr(44).join(ends)}]' if ends else ''};"


def _quoted(lines: list[str], left: bool = False) -> str:
    plain = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line]
    return '"' + "".join(line + ("\\l" if left else "") for line in plain) + '"'
