"""Heat maps as SVG: numbers by row and token, with the tokens' text."""

from __future__ import annotations

from html import escape

import numpy as np

from .inside import Grid

_CELL, _LINE, _LETTER = 22, 15, 7.2  # of a cell, a line of text, a letter, in pixels
_LONGEST = 24  # characters of a text that are drawn
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#1f2937}"
    "@media(prefers-color-scheme:dark){text{fill:#e5e7eb}}.in{fill:#111827}"
)


def heat_map(grid: Grid, title: str) -> str:
    """An SVG picture of a grid. Cells have a title with their number, which browsers show, and
    their text where the grid has any.

    Colours go from the smallest finite number to the largest; others are grey.
    """
    rows = [_shown(name) for name in grid.rows]
    columns = [_shown(text) for text in grid.columns]
    texts = [[_shown(t) for t in row] for row in grid.texts or []]
    widest = max((len(t) for row in texts for t in row), default=0)
    cell = max(_CELL, int(widest * _LETTER) + 8)
    left = int(max(map(len, rows), default=0) * _LETTER) + 12
    top = 2 * _LINE + int(max(map(len, columns), default=0) * _LETTER)
    width, height = left + cell * len(columns) + 8, top + _CELL * len(rows) + 8
    shares = _shares(grid.values)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>',
        f'<text x="4" y="{_LINE}">{escape(title)}</text>',
    ]
    for j, text in enumerate(columns):
        x, y = left + j * cell + cell // 2 + 4, top - 6
        parts.append(f'<text x="{x}" y="{y}" transform="rotate(-90 {x} {y})">{escape(text)}</text>')
    for i, name in enumerate(rows):
        y = top + i * _CELL
        parts.append(f'<text x="4" y="{y + _LINE}">{escape(name)}</text>')
        for j in range(len(columns)):
            x, number = left + j * cell, float(grid.values[i, j])
            about = _visible(f"{grid.rows[i]}, {grid.columns[j]}: {number:.4g}")
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{_CELL - 1}" '
                f'fill="{_colour(shares[i, j])}"><title>{escape(about)}</title></rect>'
            )
            if texts:
                at = f'x="{x + 4}" y="{y + _LINE}"'
                parts.append(f'<text class="in" {at}>{escape(texts[i][j])}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _shares(values: np.ndarray) -> np.ndarray:
    """The numbers between 0 and 1, by the smallest and the largest; NaN for those that are not
    finite."""
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    shares = (values.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.where(np.isfinite(values), shares, np.nan)


def _colour(share: float) -> str:
    """From white over orange to a dark red, light enough for text on it."""
    if np.isnan(share):
        return "#9ca3af"
    stops = ((255, 251, 235), (251, 146, 60), (220, 68, 55))
    place = min(max(share, 0.0), 1.0) * 2
    a, b, t = (stops[0], stops[1], place) if place < 1 else (stops[1], stops[2], place - 1)
    return "#" + "".join(f"{round(x + (y - x) * t):02x}" for x, y in zip(a, b, strict=True))


def _visible(text: str) -> str:
    """A text without what XML cannot have, and what nobody sees."""
    marks = {"\n": "⏎", "\t": "⇥"}
    return "".join(marks.get(c, c if c.isprintable() else "▯") for c in text)


def _shown(text: str) -> str:
    """A text as it is drawn: short, with visible spaces."""
    shown = _visible(text).replace(" ", "·")
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
