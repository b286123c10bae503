"""A glancer whose positions have components: the rows of an image are a grid of 3 × 3, and what
follows goes on behind its side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmodel import Input, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from tests.runner.models.glancer import Glancer

SECTIONS = 3, 3, 2


@register("strider")
class Strider(Glancer):
    position_components = 4

    def positions(self, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        return nn.grid_positions(inputs, before, lambda _: (1, 3, 3))

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.MROPE, SECTIONS))] * self.config.layers
