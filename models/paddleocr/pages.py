"""Pages of any size on their way to inputs, as PaddleOCR-VL and GLM-OCR take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ggmodel import Context, Input, Tensor, nn
from ggmodel.errors import PromptError
from ggmodel.image import composite, normalize, resize
from ggmodel.model import Multimodal, MultimodalEmbedding, Pixels, VisionModel

if TYPE_CHECKING:
    from PIL.Image import Image


class Pages(VisionModel):
    """A model that takes pages. A subclass has a tower of rows and columns, and in its config
    `patch`, `merge`, `cell`, the side of a row's pixels, `max_pixels` of a page, and how to make
    them of a picture.

    Attributes:
        page_size: the width and height of a picture → those of its page.
        frame: the tokens before, in the place of and behind a page's rows, with their usual ids.
    """

    position_components = 4
    image_data = {}
    page_size: ClassVar[Callable[[tuple[int, int], Any], tuple[int, int]]]
    frame: ClassVar[Mapping[str, int]]

    @property
    def largest_image(self) -> tuple[int, int]:
        """A square with as many rows as the context, or a page, may have."""
        h: Any = self.config
        most = h.max_pixels // h.cell**2
        side = h.cell * max(1, math.isqrt(min(most, h.loaded_context or most)))
        return side, side

    def preprocess(self, image: Image) -> Pixels:
        h: Any = self.config
        page = resize(composite(image), type(self).page_size(image.size, h), h.resample)
        return Pixels(normalize(page, h.image_mean, h.image_std)[None])

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
