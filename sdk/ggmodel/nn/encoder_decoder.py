"""Models whose encoder reads the prompt once, and whose decoder attends to what it read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from ..kvcache import Cross
from ..ml import Context, DType, Tensor
from ..model.model import Model
from ..model.multimodal import Input, Modality, Multimodal, MultimodalEmbedding, Prepared


def one_table(hf: Mapping[str, Any], *names: str) -> None:
    """Checks that a checkpoint's tables of embeddings are one, as many of them as it has: a decoder
    may have its own, which transformers then takes.

    Raises:
        ConfigError: two tables differ.
    """
    tensors = hf.get("tensors:", {})
    for name, other in pairwise(n for n in names if n in tensors):
        if not np.array_equal(tensors[name], tensors[other]):
            raise ConfigError(
                f"{name} and {other} are two tables of embeddings; supported: one that encoder and "
                "decoder share"
            )


class EncoderDecoder(Model):
    """The tokens of a prompt are the source, which `encode` reads; the answer begins with the
    config's `start`. Reads the config's `context`, the most tokens of a source in a model that is
    not loaded. A subclass writes `encode`, and declares `source_cache()` beside the layers' own."""

    prompt_item: ClassVar[str] = "source"

    def modalities(self) -> Mapping[str, Modality]:
        """The modalities of the other bases, and "source"."""
        source = Modality(
            marker="",
            open=np.asarray,
            prepare=lambda ids: Prepared(np.asarray(ids, np.float32)),
            encode=self.encode_source,
            inputs=self.source_inputs,
            largest=lambda: Prepared(np.zeros(self.source_rows, np.float32)),
            shape=("tokens",),
            data={},
        )
        return {**super().modalities(), "source": source}

    @property
    def source_rows(self) -> int:
        """The most tokens of a source."""
        return self.config.loaded_context or self.config.context

    def source_cache(self) -> Cross:
        """The declaration of a layer's keys and values of a source."""
        return Cross(rows=self.source_rows)

    def encode_source(self, ctx: Context, source: Prepared) -> list[Multimodal]:
        """Records the graph that encodes the tokens of a source, in a context of its own."""
        n = len(source.values)
        ids = ctx.feed(lambda source: source.values.astype(np.int32), DType.I32, n, name="source")
        return [Multimodal(self.encode(ctx, ids))]

    def encode(self, ctx: Context, ids: Tensor) -> Tensor:
        """Token ids I32 [n] → F32 [width, n], what layers attend to."""
        raise NotImplementedError

    def source_inputs(self, source: list[MultimodalEmbedding]) -> list[Input]:
        """The decoder begins with this token, from whose position on it sees the source."""
        return [Input(self.config.start, source[0])]
