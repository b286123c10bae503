"""A diff as one page of HTML, without scripts and without anything from elsewhere. Layers and rows
unfold on a click."""

from __future__ import annotations

import math

from jinja2 import Environment

from .report import Diff, by_layer, worst

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

# Numbers are flushed right, and narrow pages leave some columns out.
_PAGE = """\
{% macro dotted(name) %}{# may break after dots #}
{% for part in name.split(".") %}
{{ part }}{{ ".<wbr>"|safe if not loop.last }}
{%- endfor %}
{% endmacro %}
{% macro path(row) %}{{ dotted(row.path) if row.path else "the model" }}{% endmacro %}
{% macro nmse(e, coloured) %}
<span class="nmse"{% if e and coloured %} style="--hue:{{ hue(e.nmse) }}"{% endif %}>
  {{- "%.1e"|format(e.nmse) if e }}</span>
{% endmacro %}
{% macro about(row) %}
{% if row.note %}<p>{{ row.note }}</p>{% endif %}
{% if row.name %}<p>In the checkpoint <code>{{ row.name }}</code></p>{% endif %}
{% if row.line %}<p>Made at <code>{{ row.line }}</code></p>{% endif %}
{% if row.result %}{% set e = row.result %}
<p>NMSE {{ "%.1e"|format(e.nmse) }}, of its input
{{ "%.1e"|format(row.input.nmse) if row.input else "not compared" }}; rounding explains
{{ "%.0e"|format(row.bound) }}. Largest error {{ "%.3g"|format(e.largest) }} at {{ e.at|list }};
the numbers there:</p>
<table class="numbers"><tr class="dim"><th>along dim 0</th>
{% for _ in e.ours %}<td>{{ e.start + loop.index0 }}</td>{% endfor %}</tr>
{% for title, values in (("ggmodel", e.ours), ("reference", e.theirs)) %}
<tr><th>{{ title }}</th>{% for v in values %}<td>{{ "%.6g"|format(v) }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endif %}
{% endmacro %}
{% macro listed(rows) %}
{% for row in rows %}{% set e = row.result %}
<details class="row{{ " wrong" if row.wrong }}"><summary><span class="name">{{ path(row) }}</span>
<span class="wide name dim">{{ dotted(row.name or "") }}</span>
<span class="wide numbers dim">{{ row.shape|list or "" }}</span>
{{ nmse(e, row.verdict != "elsewhere") }}
<span class="wide numbers">{{ "%.1e"|format(e.largest) if e }}</span>
<span class="wide numbers">{{ "%.1e"|format(e.relative) if e }}</span>
<span>{{ row.verdict }}</span></summary><div class="inside">{{ about(row) }}</div></details>
{% endfor %}
{% endmacro %}
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ d.model }}: diff</title><style>{{ style|safe }}</style></head>
<body>
<h1>{{ d.model }} beside its reference</h1>
<p class="dim">{{ d.architecture }}, {{ d.tokens|length }} tokens; {{ versions }}</p>
{% if d.first %}
<div class="first"><h2>{{ path(d.first) }} ({{ d.first.kind }}) is the first module that
diverges</h2>
{{ about(d.first) }}
{% if d.seen_in %}
<p>First seen in the input of {{ path(d.seen_in) }}, NMSE
{{ "%.1e"|format(d.seen_in.input.nmse) }}</p>
{% endif %}
</div>
{% else %}
<div class="first fine"><h2>All agrees</h2><p>No module makes an error.</p></div>
{% endif %}
<div class="head"><span>module</span><span class="wide">checkpoint</span>
<span class="wide numbers">shape</span><span class="numbers">NMSE</span>
<span class="wide numbers">largest</span><span class="wide numbers">relative</span>
<span>verdict</span></div>
{% for title, rows in groups %}
{% if title %}
{% set wrong = rows|selectattr("wrong")|list|length %}
<details class="layer"{{ " open" if d.first in rows }}><summary><b class="name">{{ title }}</b>
<span class="dim">{{ wrong ~ " of " if wrong }}{{ rows|length }} modules
{{- " diverge" if wrong }}</span>
{{ nmse(worst(rows), True) }}</summary>{{ listed(rows) }}</details>
{% else %}
<div class="layer">{{ listed(rows) }}</div>
{% endif %}
{% endfor %}
{% if d.others %}
<p class="dim">Only in the reference:
{% for name in d.others %}<code>{{ name }}</code>{{ ", " if not loop.last }}{% endfor %}</p>
{% endif %}
</body></html>
"""


def page(d: Diff) -> str:
    """The whole page."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)
    versions = ", ".join(f"{name} {version}" for name, version in d.versions.items())
    text = template.render(
        d=d,
        groups=by_layer(d.rows),
        versions=versions,
        style=_STYLE,
        worst=worst,
        hue=_hue,
    )
    return text.lstrip() + "\n"


def _hue(nmse: float) -> str:
    """A colour from green to red, by the logarithm."""
    power = math.log10(nmse) if 0 < nmse < math.inf else (_BEST if nmse == 0 else _WORST)
    share = min(1.0, max(0.0, (power - _BEST) / (_WORST - _BEST)))
    return f"{140 * (1 - share):.0f}"
