"""A llama that asks its tokenizer while graphs are recorded."""

from __future__ import annotations

from ggmodel import Context, Tensor, register
from ggmodel.model import Batch
from ggmodel.models.llama import Llama


@register("speller")
class Speller(Llama):
    """Its logits are scaled by the number of tokens of "the".

    Attributes:
        asked: the id of a space and those of "the", in every recording.
    """

    def __init__(self, config):
        super().__init__(config)
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        logits = super().forward(ctx, batch)
        ids = tuple(self.tokenizer.encode("the", add_special=False))
        self.asked.append((self.token_id(" "), ids))
        return logits.scale(float(len(ids)))
