"""The hyperparameters of Voxtral: of the text, and of the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import ConfigError


def _stack(hf: Mapping[str, Any]) -> int | None:
    """How many rows of the encoder become one: transformers cuts them into pieces as long as the
    feed-forward part is wide."""
    tower = hf.get("audio_config") or {}
    width, ffn = (
        next((tower[name] for name in names if name in tower), usual)
        for names, usual in (
            (("hidden_size", "d_model"), 1280),
            (("intermediate_size", "encoder_ffn_dim"), 5120),
        )
    )
    if not (isinstance(width, int) and isinstance(ffn, int)) or width < 1 or ffn % width:
        raise ConfigError(
            f"audio_config has a width of {width!r:.20} and a feed-forward part of {ffn!r:.20}; "
            "the first divides the second, which is the width of the projector's rows"
        )
    return ffn // width


class VoxtralConfig(nn.DecoderConfig, nn.AudioConfig):
    fixed = {
        "features:truncation": ...,  # the processor says otherwise
        "audio_config.head_dim": ...,  # it follows from the heads
        "audio_config.num_key_value_heads": ...,
    }

    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")

    stack: int = kv(
        "audio.projector.stack_factor", hf=_stack, default=4, least=1, divides="positions"
    )
    mm_activation: str = nn.activation("gelu", "projector_hidden_act", "mm.hidden_activation")
    stacked_width = property(lambda h: h.stack * h.audio_width)
    rows = property(lambda h: h.positions // h.stack)  # of a window
