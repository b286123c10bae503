"""A llama that sees: each 2 × 2 pixels of a picture of 6 × 6 become a row."""

from __future__ import annotations

import numpy as np

from ggmodel import Context, Input, MultimodalEmbedding, gguf, register
from ggmodel.errors import PromptError
from ggmodel.model import Multimodal, Pixels, VisionModel
from ggmodel.models.llama import Llama
from ggmodel.nn import Linear

BEGIN, PLACEHOLDER, END = 5, 100_000, 7  # the second is in no vocabulary
ROWS = 9


@register("glancer")
class Glancer(Llama, VisionModel):
    """Rows of an image see earlier ones, and may be computed in different batches."""

    vision: Linear = gguf("v.proj", shape=(12, "width"))
    image_marker = "<image>"
    largest_image = property(lambda m: (6, 6))
    has_vision = property(lambda m: True)

    def preprocess(self, image) -> Pixels:
        planes = np.asarray(image.convert("RGB").resize((6, 6)), np.float32) / 255
        return Pixels(planes.transpose(2, 0, 1)[None])

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        if image.values.shape != (1, 3, 6, 6):
            raise PromptError(f"pixels {list(image.values.shape)}; [1, 3, 6, 6] is needed")
        patches = image.values[0].reshape(3, 3, 2, 3, 2).transpose(1, 3, 0, 2, 4).reshape(ROWS, 12)
        return [Multimodal(self.vision(ctx.input().from_floats(patches)), image.data)]

    def post_tokenize(self, inputs: list[Input | list[MultimodalEmbedding]]) -> list[Input]:
        out: list[Input] = []
        for one in inputs:
            if isinstance(one, Input):
                out.append(one)
                continue
            (rows,) = one
            places = [Input(PLACEHOLDER, rows), *[Input(PLACEHOLDER)] * (len(rows) - 1)]
            out += [Input(BEGIN), *places, Input(END)]
        return out

    def embedded(self, batch):
        return batch.merge_embeddings(super().embedded(batch))
