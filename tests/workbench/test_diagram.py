"""Pictures of recorded graphs: what is in them, that nothing overlaps, and that nothing a file
says gets out of its box."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.workbench.diagram import Box, Diagram, build, dot, plain, record, svg
from ggmodel.workbench.diagram.drawing import CHARACTER, FONT, PAD, lay_out
from ggmodel.workbench.nodes import ranges
from tests.golden.files import load_golden
from tests.workbench.models import EMBEDDER, SHAPES, STORIES

SVG = "{http://www.w3.org/2000/svg}"


def golden(architecture: str, case: str) -> MemorySource:
    found = load_golden(architecture, case)
    return from_hf(find(architecture), found.config, found.weights())


CASES: dict[str, Callable[[], Diagram]] = {
    "stories": lambda: build(record(STORIES)),
    "stories, a layer": lambda: build(record(STORIES, tokens=1), 1),
    "shapes": lambda: build(record(SHAPES)),
    "shapes, a layer": lambda: build(record(SHAPES), 2),
    "experts": lambda: build(record(golden("llama", "experts"), tokens=7), 0),
    "mllama": lambda: build(record(golden("mllama", "images"))),
    "mllama, a layer": lambda: build(record(golden("mllama", "images")), 1),
    "llama4, a layer": lambda: build(record(golden("llama4", "images")), 0),
    "an embedder": lambda: build(record(EMBEDDER), 0),
}


@pytest.fixture(params=CASES)
def drawn(request: pytest.FixtureRequest) -> Diagram:
    return CASES[request.param]()


def everything(diagram: Diagram) -> Iterator[Box]:
    for box in diagram.boxes:
        yield box
        if box.inner is not None:
            yield from everything(box.inner)


def diagrams(diagram: Diagram) -> Iterator[Diagram]:
    yield diagram
    for box in diagram.boxes:
        if box.inner is not None:
            yield from diagrams(box.inner)


def groups(
    element: ElementTree.Element, x: float = 0.0, y: float = 0.0
) -> Iterator[tuple[ElementTree.Element, float, float]]:
    """All groups with the place of their corner in the picture."""
    for group in element.findall(f"{SVG}g"):
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", group.attrib["transform"])
        assert moved
        found = group, x + float(moved[1]), y + float(moved[2])
        yield found
        yield from groups(*found)


def apart(a: Box, b: Box) -> bool:
    return (
        a.x + a.width <= b.x or b.x + b.width <= a.x
        or a.y + a.height <= b.y or b.y + b.height <= a.y
    )  # fmt: skip


# geometry


def test_boxes_lie_apart_or_within_each_other(drawn: Diagram):
    width, height = lay_out(drawn, 16, 16)
    for diagram in diagrams(drawn):
        for a, b in combinations(diagram.boxes, 2):
            assert apart(a, b), f"{a.title!r} and {b.title!r}"
    for box in drawn.boxes:
        assert box.x >= 15.99 and box.x + box.width <= 16.01 + width
        assert box.y >= 15.99 and box.y + box.height <= 16.01 + height
    for box in everything(drawn):
        for inner in box.inner.boxes if box.inner else ():
            assert inner.x > 0 and inner.x + inner.width < box.width
            assert inner.y > 0 and inner.y + inner.height < box.height


def test_edges_lead_down_from_box_to_box(drawn: Diagram):
    lay_out(drawn)
    for diagram in diagrams(drawn):
        assert len(diagram.paths) == len(diagram.edges)
        for (a, b), path in zip(diagram.edges, diagram.paths, strict=True):
            (x0, y0), (x1, y1) = path[0], path[-1]
            assert y0 == pytest.approx(a.y + a.height) and a.x <= x0 <= a.x + a.width
            assert y1 == pytest.approx(b.y) and b.x <= x1 <= b.x + b.width
            assert all(p[1] <= q[1] + 1e-6 for p, q in pairwise(path))


def test_edges_cross_no_box(drawn: Diagram):
    """A curve between two points stays within the heights of these, where there must be no box; a
    vertical line must pass beside all others."""
    lay_out(drawn)
    for diagram in diagrams(drawn):
        for (a, b), path in zip(diagram.edges, diagram.paths, strict=True):
            others = [s for s in diagram.boxes if s is not a and s is not b]
            for i in range(0, len(path), 3):
                (x, top), (_, bottom), (end, below) = path[i : i + 3]
                for s in others:
                    assert x < s.x or s.x + s.width < x or bottom <= s.y or s.y + s.height <= top
                    left, right = sorted((x, end))
                    beside = s.x + s.width < left or right < s.x
                    assert beside or s.y + s.height <= bottom + 1e-6 or s.y >= below - 1e-6


def test_characters_are_not_taken_for_narrower_than_they_are():
    assert CHARACTER >= 1233 / 2048 * FONT  # the advance of DejaVu Sans Mono; Courier's is 0.6


def test_texts_stay_in_their_boxes(drawn: Diagram):
    root = ElementTree.fromstring(svg(drawn))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    count = 0
    for group, x0, y0 in groups(root):
        (rect,) = group.findall(f"{SVG}rect")
        assert not {"x", "y"} & rect.attrib.keys()
        x, y, w, h = 0.0, 0.0, float(rect.attrib["width"]), float(rect.attrib["height"])
        assert min(x0, y0) >= 0 and x0 + w <= width and y0 + h <= height
        lines = []
        for text in group.findall(f"{SVG}text"):
            left, base = float(text.attrib["x"]), float(text.attrib["y"])
            assert x + PAD - 0.1 <= left
            assert left + len(text.text or "") * CHARACTER <= x + w + 0.2
            assert y + 8 <= base <= y + h - 3
            lines.append(base)
            count += 1
        assert all(b - a >= 12 for a, b in pairwise(lines))
    shapes = list(everything(drawn))
    assert count == sum(bool(s.title) + len(s.lines) for s in shapes) > 10


def test_the_same_model_gives_the_same_picture(drawn: Diagram, request: pytest.FixtureRequest):
    again = CASES[request.node.callspec.params["drawn"]]()
    assert svg(drawn) == svg(again)
    assert dot(drawn) == dot(again)


# contents


def box_of(diagram: Diagram, title: str) -> Box:
    (found,) = [s for s in everything(diagram) if s.title.startswith(title)]
    return found


def texts(box: Box) -> list[str]:
    return [line.text for line in box.lines]


def test_layers_that_are_alike_are_one():
    drawn = build(record(STORIES))
    (text,) = drawn.boxes
    assert text.title == "text: 512 tokens" and text.inner is not None
    titles = [s.title for s in text.inner.boxes if s.kind == "module"]
    assert titles == [
        "embed  Embedding", "blk[0-3]  Layer × 4", "blk.4  Layer", "norm  RMSNorm", "head  Linear",
    ]  # fmt: skip
    layers = texts(box_of(drawn, "blk[0-3]"))
    assert layers[:2] == ["attn_norm  RMSNorm: 2 ops", "attn  PermutedAttention: 20 ops"]
    assert "cache, 2 a layer: F16 [64, 512]" in layers and "positions  I32 [512]" in layers
    assert any(line.startswith("36 weights, F32, Q8_0") for line in layers)
    tensors = [s.title for s in text.inner.boxes if s.kind == "tensor"]
    assert tensors == [f"F32 [192{n}]" for n in [", 512"] * 2 + [""] * 2] + ["F32 [1536]"]


def test_a_layer_is_opened():
    drawn = build(record(STORIES, tokens=1), 2)
    titles = [s.title for s in everything(drawn) if s.title.startswith("blk")]
    assert titles[0] == "blk[0-1]  Layer × 2" and "blk.3  Layer" in titles
    layer = box_of(drawn, "blk.2  Layer").inner
    assert layer is not None
    assert [s.title for s in layer.boxes if s.kind == "module"] == [
        "attn_norm  RMSNorm", "attn  PermutedAttention", "ffn_norm  RMSNorm", "ffn  GatedMLP",
    ]  # fmt: skip
    assert texts(box_of(drawn, "gate  Linear")) == [
        "mulmat → F32 [512]", "blk.2.ffn_gate.weight  Q8_0 [192, 512]",
    ]  # fmt: skip
    assert "blk.1  F32 [192]" in [s.title for s in layer.boxes]


def test_every_op_is_in_it_once():
    graphs = record(STORIES, tokens=3)
    for layer in range(5):
        drawn = build(graphs, layer)
        listed = [x for s in everything(drawn) for x in s.lines if x.kind == "op"]
        ops = sum(" → " in line.text for line in listed)
        for s in everything(drawn):
            for line in s.lines:
                count = re.search(r": (\d+) ops?$", line.text)
                if line.kind == "op" and count:
                    layers = re.search(r"× (\d+)$", s.title)
                    ops += int(count[1]) * (int(layers[1]) if layers else 1)
        assert ops == len(graphs[0].ops)


def test_layers_of_two_kinds_in_turn():
    drawn = build(record(golden("mllama", "images"), parts=["text"]))
    titles = [s.title for s in everything(drawn) if s.title.startswith("blk")]
    assert titles == ["blk[0, 2]  Layer × 2", "blk[1, 3]  CrossLayer × 2", "blk.4  Layer"]


def test_layers_with_other_settings_are_others():
    """Every third one has another rope."""
    drawn = build(record(golden("gemma3", "every_3rd")))
    titles = [s.title for s in everything(drawn) if s.title.startswith("blk")]
    assert titles == ["blk[0-1]  Layer × 2", "blk.2  Layer", "blk.3  Layer"]


def test_dot_names_all_that_is_drawn(drawn: Diagram):
    text = dot(drawn)
    assert text.startswith("digraph model {") and text.count("{") == text.count("}")
    for box in everything(drawn):
        assert box.title.replace("\\", "\\\\").replace('"', '\\"') in text
    assert text.count(" -> ") == sum(len(d.edges) for d in diagrams(drawn))
    nodes = set(re.findall(r"^\s*(n[_\d]+) \[", text, re.MULTILINE))
    ends = set(re.findall(r"\b(n[_\d]+)(?: ->|[; ]\[?)", text))
    assert nodes and ends <= nodes


# names that come from strangers

EVIL = [
    '</text><script>alert("x")</script>', "a&b<c>", "]]>", "\x00\x1b[31m\n\t", "é𝄞中", '"; rm -rf',
    "x" * 5000, "\\", "‮", "\udc80",
]  # fmt: skip


def test_plain_text():
    for name in EVIL:
        shown = plain(name)
        assert len(shown) <= 72 and all(" " <= c <= "~" for c in shown)
    assert plain("blk.0.attn_q.weight") == "blk.0.attn_q.weight"
    assert plain("a\nb") == "a\\nb" and plain("é") == "\\xe9"


@pytest.mark.parametrize("name", EVIL)
def test_hostile_names_stay_text(name: str, monkeypatch: pytest.MonkeyPatch):
    (graph,) = record(STORIES, tokens=2)
    for op in graph.ops:
        for x in op.sources:
            if x is not None and x.name.endswith("ffn_gate.weight"):
                monkeypatch.setattr(x, "name", name)
    drawn = build([graph], 0)
    root = ElementTree.fromstring(svg(drawn))
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {
        "svg", "style", "defs", "marker", "polygon", "rect", "g", "text", "path",
    }  # fmt: skip
    shown = [e.text for e in root.iter(f"{SVG}text")]
    assert f"{plain(name)}  Q8_0 [192, 512]" in shown
    quoted = re.compile(r'"(?:[^"\\\n]|\\.)*"')
    rest = quoted.sub("", dot(drawn))
    assert '"' not in rest and "script" not in rest


# refusals


def test_no_such_layer():
    with pytest.raises(ConfigError, match=r"there is no layer 5; there is blk 0-4$"):
        build(record(STORIES, tokens=1), 5)
    with pytest.raises(ConfigError, match=r"there is no layer -1; there is blk 0-4$"):
        build(record(STORIES, tokens=1), -1)
    with pytest.raises(ConfigError, match=r"layer 9; there is vision\.blk 0-2, text\.blk 0-5$"):
        build(record(SHAPES), 9)


def test_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == "" and ranges([3]) == "3"
