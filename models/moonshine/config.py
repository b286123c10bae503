"""The hyperparameters of Moonshine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import ConfigError

RATE = nn.AUDIO_RATE
SECONDS = 30  # the longest sounds that it was trained with (arXiv 2410.15608, 3.2)
# Length and stride of each convolution.
STEPS = ((127, 64), (7, 3), (3, 2))


def _heads(hf: Mapping[str, Any]) -> int:
    """The encoder's heads, with which transformers makes the decoder, too (modeling_moonshine,
    MoonshineAttention); it reads queries by the number of keys."""
    return hf.get("encoder_num_attention_heads", 8)


def _rotated(hf: Mapping[str, Any]) -> int:
    heads, share = _heads(hf), hf.get("partial_rotary_factor", 0.9)
    head_dim = hf["hidden_size"] // max(heads, 1)
    dims = int(head_dim * share)
    if heads < 1 or dims % 2 or not 0 < dims <= head_dim:
        keys = f"encoder_num_attention_heads {heads}, partial_rotary_factor {share}"
        raise ConfigError(f"{keys}: {dims} of {head_dim} elements; supported: an even number")
    return dims


def rows_of(samples: int) -> int:
    """The rows of so many samples; 0 or less is none."""
    for length, stride in STEPS:
        samples = (samples - length) // stride + 1
    return samples


class MoonshineConfig(nn.DecoderConfig):
    fixed = {
        "decoder_num_attention_heads": _heads,
        "decoder_num_key_value_heads": _heads,
        "encoder_num_key_value_heads": _heads,
        "layer_types": None,
        "pad_head_dim_to_multiple_of": ...,  # by zeros, which add nothing to scores
        "features:do_normalize": False,
        "features:feature_size": 1,
        "features:padding_side": ...,  # no sound is filled up
        "features:padding_value": ...,
        "features:return_attention_mask": ...,
        "features:sampling_rate": RATE,
    }

    layers: int = kv("block_count", hf="decoder_num_hidden_layers")
    heads: int = kv("attention.head_count", hf=_heads, least=1, divides="width")
    rope_dims: int = kv("rope.dimension_count", hf=_rotated, default="head_dim", least=2)
    activation: str = nn.activation("silu", "decoder_hidden_act")
    start: int = kv("decoder_start_token_id", hf="decoder_start_token_id", default=1, least=0)
    audio_layers: int = kv("encoder.block_count", hf="encoder_num_hidden_layers", least=0)
    audio_activation: str = nn.activation("gelu", "encoder_hidden_act", "encoder.hidden_activation")
    kv_heads: Any = property(lambda h: h.heads)
    head_dim: Any = property(lambda h: h.width // h.heads)
    value_dim: Any = property(lambda h: h.head_dim)
    eps: Any = property(lambda h: 1e-5)  # of all norms; no key says it
