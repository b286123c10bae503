"""A diff as one page of HTML, without scripts and without anything from elsewhere. Layers and rows
unfold on a click."""

from __future__ import annotations

import math
from html import escape

from ..comparison import Errors
from .report import Diff, ModuleDiff, by_layer, worst

_BEST, _WORST = -14, 0  # powers of ten of the NMSE that are green and red

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --dim: #68707a; --line: #d9dee4;
  --card: #f4f6f8; --bad: #b3261e; --good: #1a7f37; --light: 82%; --deep: 70%; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e4e8ec; --dim: #98a1ab;
  --line: #333a42; --card: #1d2226; --bad: #ff8a80; --good: #63d188; --light: 26%; --deep: 55%; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 90rem; background: var(--paper);
  color: var(--ink); font: 14px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .4rem; }
p { margin: .3rem 0; }
.dim { color: var(--dim); }
code, .numbers, .name { font-family: ui-monospace, monospace; font-size: .92em; }
.first { margin: 1rem 0; padding: 1rem; border: 1px solid var(--bad); border-left-width: 6px;
  border-radius: 6px; background: var(--card); }
.first h2 { color: var(--bad); }
.fine { border-color: var(--good); }
.fine h2 { color: var(--good); }
.layer { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; }
.layer > summary { padding: .45rem .7rem; cursor: pointer; background: var(--card); }
.row > summary, .head { display: grid; gap: .6rem; padding: .22rem .7rem; align-items: center;
  grid-template-columns: minmax(0, 3fr) minmax(0, 4fr) minmax(0, 1.2fr) 6rem 5rem 5rem
    minmax(0, 2fr);
  border-top: 1px solid var(--line); }
.row > summary { cursor: pointer; list-style: none; }
.row > summary:hover { background: var(--card); }
.head { color: var(--dim); border: 0; }
.numbers { text-align: right; }
.nmse { padding: .05rem .4rem; border-radius: 4px; text-align: right; }
.nmse[style] { background: hsl(var(--hue) var(--deep) var(--light)); }
.wrong > summary { box-shadow: inset 6px 0 var(--bad); font-weight: 600; }
.inside { padding: .3rem .7rem .7rem 1.4rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; max-width: 100%; }
td, th { padding: .1rem .6rem; text-align: right; font-weight: normal; white-space: nowrap; }
th:first-child { text-align: left; color: var(--dim); }
@media (max-width: 60rem) { .row > summary, .head {
    grid-template-columns: minmax(0, 3fr) 6rem minmax(0, 2fr); } .wide { display: none; } }
"""


def page(d: Diff) -> str:
    """The whole page."""
    groups = list(by_layer(d.rows))
    versions = ", ".join(f"{name} {version}" for name, version in d.versions.items())
    body = [
        f"<h1>{escape(d.model)} beside its reference</h1>",
        f'<p class="dim">{escape(d.architecture)}, {len(d.tokens)} tokens; {escape(versions)}</p>',
        _first(d),
        _head(),
        *(_group(title, rows, d) for title, rows in groups),
    ]
    if d.others:
        names = ", ".join(f"<code>{escape(name)}</code>" for name in d.others)
        body.append(f'<p class="dim">Only in the reference: {names}</p>')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(d.model)}: diff</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _first(d: Diff) -> str:
    row = d.first
    if row is None:
        return '<div class="first fine"><h2>All agrees</h2><p>No module makes an error.</p></div>'
    text = [
        '<div class="first">',
        f"<h2>{_path(row)} ({escape(row.kind)}) is the first module that diverges</h2>",
        _about(row),
        _seen_in(d),
        "</div>",
    ]
    return "\n".join(text)


def _seen_in(d: Diff) -> str:
    inner = d.seen_in
    if inner is None or inner.input is None:
        return ""
    return f"<p>First seen in the input of {_path(inner)}, NMSE {inner.input.nmse:.1e}</p>"


def _head() -> str:
    titles = ("module", "checkpoint", "shape", "NMSE", "largest", "relative", "verdict")
    cells = (f'<span class="{_class(i)}">{title}</span>' for i, title in enumerate(titles))
    return f'<div class="head">{"".join(cells)}</div>'


def _class(column: int) -> str:
    """Numbers are flushed right, and narrow pages leave some columns out."""
    right = " numbers" if column in (2, 3, 4, 5) else ""
    return ("wide" if column in (1, 2, 4, 5) else "") + right


def _group(title: str, rows: list[ModuleDiff], d: Diff) -> str:
    inside = "\n".join(_row(row) for row in rows)
    if not title:
        return f'<div class="layer">{inside}</div>'
    wrong = [row for row in rows if row.wrong]
    said = f"{len(wrong)} of {len(rows)} modules diverge" if wrong else f"{len(rows)} modules"
    unfolded = " open" if d.first in rows else ""
    off = _nmse(worst(rows))
    return (
        f'<details class="layer"{unfolded}><summary><b class="name">{escape(title)}</b> '
        f'<span class="dim">{said}</span> {off}</summary>\n{inside}\n</details>'
    )


def _row(row: ModuleDiff) -> str:
    e = row.result
    shape = str(list(row.shape)) if row.shape else ""
    cells = (
        f'<span class="name">{_path(row)}</span>',
        f'<span class="wide name dim">{_dotted(row.name or "")}</span>',
        f'<span class="wide numbers dim">{shape}</span>',
        _nmse(e, row.verdict != "elsewhere"),
        f'<span class="wide numbers">{"" if e is None else f"{e.largest:.1e}"}</span>',
        f'<span class="wide numbers">{"" if e is None else f"{e.relative:.1e}"}</span>',
        f"<span>{escape(row.verdict)}</span>",
    )
    mark = " wrong" if row.wrong else ""
    return (
        f'<details class="row{mark}"><summary>{"".join(cells)}</summary>'
        f'<div class="inside">{_about(row)}</div></details>'
    )


def _path(row: ModuleDiff) -> str:
    return _dotted(row.path) if row.path else "the model"


def _dotted(name: str) -> str:
    """A name that may break after its dots."""
    return escape(name).replace(".", ".<wbr>")


def _nmse(e: Errors | None, coloured: bool = True) -> str:
    """The number on a colour from green to red, by its logarithm."""
    if e is None:
        return '<span class="nmse"></span>'
    value = e.nmse
    if not coloured:
        return f'<span class="nmse">{value:.1e}</span>'
    power = math.log10(value) if 0 < value < math.inf else (_BEST if value == 0 else _WORST)
    share = min(1.0, max(0.0, (power - _BEST) / (_WORST - _BEST)))
    return f'<span class="nmse" style="--hue:{140 * (1 - share):.0f}">{value:.1e}</span>'


def _about(row: ModuleDiff) -> str:
    parts = []
    if row.note:
        parts.append(f"<p>{escape(row.note)}</p>")
    if row.name:
        parts.append(f"<p>In the checkpoint <code>{escape(row.name)}</code></p>")
    if row.line:
        parts.append(f"<p>Made at <code>{escape(row.line)}</code></p>")
    if row.result is not None:
        e = row.result
        given = "not compared" if row.input is None else f"{row.input.nmse:.1e}"
        parts.append(
            f"<p>NMSE {e.nmse:.1e}, of its input {given}; rounding explains {row.bound:.0e}. "
            f"Largest error {e.largest:.3g} at {list(e.at)}; the numbers there:</p>"
        )
        parts.append(_samples(e))
    return "\n".join(parts)


def _samples(e: Errors) -> str:
    head = "".join(f"<td>{e.start + i}</td>" for i in range(len(e.ours)))
    lines = [f'<tr class="dim"><th>along dim 0</th>{head}</tr>']
    for title, values in (("ggmodel", e.ours), ("reference", e.theirs)):
        cells = "".join(f"<td>{v:.6g}</td>" for v in values)
        lines.append(f"<tr><th>{title}</th>{cells}</tr>")
    return f'<table class="numbers">{"".join(lines)}</table>'
