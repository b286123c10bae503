"""Diagrams as DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from .boxes import Diagram


def dot(diagram: Diagram) -> str:
    """A diagram as input of Graphviz: opened modules are clusters."""
    lines = [
        "digraph model {",
        '  graph [fontname="monospace", fontsize=11, compound=true];',
        '  node [shape=box, fontname="monospace", fontsize=10];',
        *_listed(diagram, "n", "  "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _listed(diagram: Diagram, name: str, indent: str) -> Iterator[str]:
    """The statements of a diagram; nodes are named by their places in it."""
    names = {box: f"{name}_{i}" for i, box in enumerate(diagram.boxes)}
    for box, own in names.items():
        if box.inner is not None:
            yield f"{indent}subgraph cluster_{own} {{"
            yield f"{indent}  label={_quoted([box.title])};"
            # An edge needs a node, also where a cluster stands for it.
            yield f"{indent}  {own} [shape=point, style=invis];"
            yield from _listed(box.inner, own, indent + "  ")
            yield f"{indent}}}"
        elif box.kind == "tensor":
            yield f"{indent}{own} [label={_quoted([box.title])}, shape=plaintext];"
        else:
            label = _quoted([box.title, *(line.text for line in box.lines)], left=True)
            yield f"{indent}{own} [label={label}];"
    for a, b in diagram.edges:
        ends = [f"{key}=cluster_{names[x]}" for key, x in (("ltail", a), ("lhead", b)) if x.inner]
        yield f"{indent}{names[a]} -> {names[b]}{f' [{chr(44).join(ends)}]' if ends else ''};"


def _quoted(lines: list[str], left: bool = False) -> str:
    plain = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line]
    return '"' + "".join(line + ("\\l" if left else "") for line in plain) + '"'
