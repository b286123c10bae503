"""Pages of any size on their way to inputs, as PaddleOCR-VL and GLM-OCR take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from ggmodel import Context, Input, Tensor, nn
from ggmodel.errors import PromptError
from ggmodel.model import Multimodal, MultimodalEmbedding, Pixels, VisionModel


class Pages(VisionModel):
    """A model that takes pages. A subclass has a tower of rows and columns, and in its config
    `patch`, `merge`, `cell`, the side of a row's pixels, and `largest`, that of a page.

    Attributes:
        frame: the tokens before, in the place of and behind a page's rows, with their usual ids.
    """

    position_components = 4
    image_data = {}
    frame: ClassVar[Mapping[str, int]]

    largest_image = property(lambda m: (m.config.largest, m.config.largest))

    def positions(self, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        return nn.grid_positions(inputs, before, lambda grid: grid)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """Pixels [1, 3, height, width]; the data is the grid of rows: one frame, rows, columns."""
        h, shape = self.config, image.values.shape
        if len(shape) != 4 or shape[:2] != (1, 3):
            raise PromptError(f"pixels {list(shape)}; [1, 3, height, width] is needed")
        if any(n % h.cell or not n for n in shape[2:]):
            raise PromptError(
                f"a page of {shape[3]} × {shape[2]} pixels; both are multiples of {h.cell}"
            )
        rows, columns = (n // h.patch for n in shape[2:])
        merged = self.encoded(ctx, rows, columns)
        return [Multimodal(merged, (1, rows // h.merge, columns // h.merge))]

    def encoded(self, ctx: Context, rows: int, columns: int) -> Tensor:
        """F32 [width, rows of the text], of the patches of a page."""
        raise NotImplementedError

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        (one,) = image
        before, pad, behind = (self.token_id(text, default=i) for text, i in self.frame.items())
        return [Input(before), *one.inputs(pad), Input(behind)]
