"""A diff as one page of HTML, without scripts and without anything from elsewhere. Layers and rows
unfold on a click."""

from __future__ import annotations

import math
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from .report import Diff, by_layer, worst

_BEST, _WORST = -14, 0  # powers of ten of the NMSE that are green and red


def page(d: Diff) -> str:
    """The whole page."""
    folder = FileSystemLoader(Path(__file__).parent)
    html = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=folder)
    versions = ", ".join(f"{name} {version}" for name, version in d.versions.items())
    given = {"d": d, "groups": by_layer(d.rows), "versions": versions, "worst": worst, "hue": _hue}
    return html.get_template("page.html").render(given).lstrip() + "\n"


def _hue(nmse: float) -> str:
    """A colour from green to red, by the logarithm."""
    power = math.log10(nmse) if 0 < nmse < math.inf else (_BEST if nmse == 0 else _WORST)
    share = min(1.0, max(0.0, (power - _BEST) / (_WORST - _BEST)))
    return f"{140 * (1 - share):.0f}"
