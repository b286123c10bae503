"""The same one, but the rows of an image see each other in both directions."""

from __future__ import annotations

from ggmodel import register
from tests.runner.models.glancer import Glancer


@register("gazer")
class Gazer(Glancer):
    bidirectional_images = True
