"""Hyperparameters of Gemma 4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ggmodel import kv, nn
from ggmodel.audio import gemma_mel
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.nn import audio_kv, vision_kv

HF = Mapping[str, Any]
# The rope of a config that says nothing of it.
_FULL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
_NEVER = 1e30  # divides the frequency of a pair that is not rotated, as in llama.cpp's files


def _layers(hf: HF) -> list[bool]:
    """Layer → whether it is local; all but every sixth, if a config does not say which. The last
    one never is."""
    local = nn.sliding_layers(hf)
    local = nn.local_layers([6], hf["num_hidden_layers"], 1) if local is None else local
    return [*local[:-1], False]


def _of_full_layers(hf: HF, key: str, other: str) -> Any:
    """A value of the layers that see everything: `key` in published configs; in those that
    transformers writes, `other` of each of these layers, or of all if they are like the others."""
    each, local = hf.get("per_layer_config"), _layers(hf)
    if each is None:
        return hf.get(key)
    keys = {"head_dim", "num_key_value_heads"}
    own = [dict(each.get(str(layer)) or {}) for layer in range(len(local))]
    full = [config.get(other) for config, near in zip(own, local, strict=True) if not near]
    unequal = any(value != full[0] for value in full) or not keys.issuperset(set().union(*own))
    if unequal or any(config for config, near in zip(own, local, strict=True) if near):
        raise ConfigError(
            f"per_layer_config is {each!r:.80}; supported: equal {' and '.join(sorted(keys))} in "
            "all layers that see everything"
        )
    return hf.get(other) if full[0] is None else full[0]


def _full_dim(hf: HF) -> int:
    return _of_full_layers(hf, "global_head_dim", "head_dim") or 512


def _kv_heads(hf: HF) -> list[int]:
    """Layer → its heads of keys and values; other ones in layers that see everything, if values
    are keys there."""
    here = hf["num_key_value_heads"]
    full = _of_full_layers(hf, "num_global_key_value_heads", "num_key_value_heads")
    full = full if full is not None and hf.get("attention_k_eq_v") else here
    return [here if local else full for local in _layers(hf)]


def _widths(hf: HF) -> list[int]:
    """Layer → the width of its dense feed-forward part; twice as wide in layers that share keys."""
    layers, width = hf["num_hidden_layers"], hf["intermediate_size"]
    wide = (hf.get("num_kv_shared_layers") or 0) if hf.get("use_double_wide_mlp") else 0
    return [width] * (layers - wide) + [2 * width] * wide


def _full_rope(hf: HF) -> HF:
    rope = (hf.get("rope_parameters") or {}).get("full_attention") or _FULL
    if rope.get("rope_type", "default") not in ("default", "proportional"):
        raise Unsupported(
            f"a rope {rope['rope_type']!r:.40} of layers that see everything; supported: "
            "proportional, default"
        )
    return rope


def rope_factors(hf: HF, h: Any) -> np.ndarray:
    """Divisors of the frequencies of layers that see everything, float32 [head dim / 2]: the
    first pairs, a share of all, are rotated, and the others never."""
    rope, pairs = _full_rope(hf), _full_dim(hf) // 2
    factor, rotated = 1.0, pairs
    if rope.get("rope_type") == "proportional":
        factor = float(rope.get("factor") or 1.0)
        rotated = int(rope.get("partial_rotary_factor", 1.0) * 2 * pairs // 2)
    return np.where(np.arange(pairs) < rotated, factor, _NEVER).astype(np.float32)


def _experts(key: str) -> Any:
    """A key that counts if the config has experts at all."""
    return lambda hf: hf.get(key) if hf.get("enable_moe_block") else None


def _chunk(hf: HF) -> Any:
    """The rows that are computed at once: one less than a row sees."""
    left = (hf.get("audio_config") or {}).get("attention_context_left")
    return ... if left is None else left - 1


def _mels(hf: HF) -> int | None:
    """The mels of a config without features: as many as the first convolution makes channels."""
    channels = (hf.get("audio_config") or {}).get("subsampling_conv_channels")
    return channels[0] if channels else None


def _of_tower(key: str) -> Callable[[HF], Any]:
    """A value of the vision tower; any value if the config has none."""
    return lambda hf: (hf.get("vision_config") or {}).get(key, ...)


def _tower_head_dim(hf: HF) -> Any:
    width, heads = (_of_tower(key)(hf) for key in ("hidden_size", "num_attention_heads"))
    return ... if width is ... or heads is ... else width // max(heads, 1)


def _both_ways(hf: HF) -> bool | None:
    """Whether rows of an image see each other in both directions; None for a model without."""
    value = hf.get("use_bidirectional_attention")
    if value not in (None, "vision"):
        raise Unsupported(f"use_bidirectional_attention {value!r:.40}; supported: vision, none")
    return None if hf.get("vision_config") is None else value == "vision"


_bands = partial(gemma_mel, frame=320, n_fft=512, low=0, high=8000, preemphasis=0, floor=1e-3)
mel = partial(_bands, added=True, early=True)


class Gemma4Config(nn.ImageConfig):
    # The values of layers are checked where they are read; the tensors have as many rows.
    fixed = {
        "per_layer_config": ...,
        "vocab_size_per_layer_input": ...,
        "vision_config.head_dim": _tower_head_dim,
        "vision_config.num_key_value_heads": _of_tower("num_attention_heads"),
        "preprocessor:do_normalize": False,
        "preprocessor:image_mean": ...,
        "preprocessor:image_std": ...,
        "preprocessor:size": ...,
        "preprocessor:patch_size": _of_tower("patch_size"),
        "preprocessor:pooling_kernel_size": _of_tower("pooling_kernel_size"),
        "processor:audio_ms_per_token": ...,
        "processor:audio_seq_length": ...,
        "vision_config.position_embedding_size": ...,
        "vision_config.standardize": ...,
        "vision_config.use_clipped_linears": ...,
        # With these the table of distances begins with the furthest row of a chunk's context.
        "audio_config.attention_chunk_size": _chunk,
        "audio_config.attention_context_right": 0,
        "audio_config.attention_invalid_logits_value": -1e9,
        "audio_config.conv_kernel_size": ...,
        "audio_config.gradient_clipping": 1e10,
        "audio_config.output_proj_dims": ...,
        "audio_config.subsampling_conv_channels": ...,
        "audio_config.use_clipped_linears": ...,
        **nn.mel_features(mel),
    }

    layers: int = kv("block_count", hf="num_hidden_layers")
    width: int = kv("embedding_length", hf="hidden_size")
    ffn_each: list = kv("feed_forward_length", hf=_widths)
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads_each: list = kv("attention.head_count_kv", hf=_kv_heads)
    full_dim: int = kv("attention.key_length", hf=_full_dim)
    local_dim: int = kv("attention.key_length_swa", hf="head_dim")
    full_value_dim: int = kv("attention.value_length", hf=_full_dim, default="full_dim")
    local_value_dim: int = kv("attention.value_length_swa", hf="head_dim", default="local_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps")
    context: int = kv("context_length", hf="max_position_embeddings")
    window: int = kv("attention.sliding_window", hf="sliding_window", least=1)
    pattern: list = kv("attention.sliding_window_pattern", hf=_layers)
    sharing: int = kv("attention.shared_kv_layers", hf="num_kv_shared_layers", default=0, least=0)
    full_rope_dims: int = kv("rope.dimension_count", hf=_full_dim, default="full_dim")
    local_rope_dims: int = kv("rope.dimension_count_swa", hf="head_dim", default="local_dim")
    full_base: float = kv(
        "rope.freq_base", hf=lambda hf: _full_rope(hf).get("rope_theta"), default=1e6
    )
    local_base: float = kv(
        "rope.freq_base_swa", hf="rope_parameters.sliding_attention.rope_theta", default=1e4
    )
    softcap: float = kv("final_logit_softcapping", hf="final_logit_softcapping", default=0.0)
    activation: str = nn.activation("gelu_pytorch_tanh", "hidden_activation")
    per_layer: int = kv(
        "embedding_length_per_layer_input", hf="hidden_size_per_layer_input", default=0
    )
    experts: int = kv("expert_count", hf=_experts("num_experts"), default=0)
    experts_used: int = kv("expert_used_count", hf=_experts("top_k_experts"), default=0)
    expert_ffn: int = kv(
        "expert_feed_forward_length", hf=_experts("moe_intermediate_size"), default=0
    )
    vit_layers: int = vision_kv("block_count", "num_hidden_layers")
    vit_width: int = vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = vision_kv("attention.head_count", "num_attention_heads", divides="vit_quarter")
    vit_eps: float = vision_kv("attention.layer_norm_epsilon", "rms_norm_eps", 1e-6)
    vit_rope_base: float = kv(
        "vision.rope.freq_base", hf="vision_config.rope_parameters.rope_theta", default=100.0
    )
    vit_activation: str = nn.activation(
        "gelu_pytorch_tanh", "vision_config.hidden_activation", "vision.hidden_activation"
    )
    patch: int = vision_kv("patch_size", "patch_size", 16, least=1)
    pool: int = vision_kv("projector.scale_factor", "pooling_kernel_size", 3, least=1)
    # The most rows that an image becomes.
    soft_tokens: int = kv(
        "vision.soft_tokens",
        hf=("preprocessor:max_soft_tokens", "vision_soft_tokens_per_image"),
        default=280,
        least=1,
    )
    image_mean: Any = (0.0, 0.0, 0.0)  # pixels are from 0 to 1
    image_std: Any = (1.0, 1.0, 1.0)
    resample: str = nn.resample("bicubic")
    # Files without the key are of E2B and E4B, known by their widths, or of others.
    both_ways: bool = kv(
        "attention.bidirectional_images",
        hf=_both_ways,
        default=lambda h: h.vit_layers > 0 and h.width not in (1536, 2560),
    )
    audio_layers: int = audio_kv("block_count", "num_hidden_layers")
    audio_width: int = audio_kv("embedding_length", "hidden_size")
    audio_heads: int = audio_kv("attention.head_count", "num_attention_heads", divides="audio_half")
    mels: int = kv("audio.num_mel_bins", hf=("features:feature_size", _mels), default=128, least=1)
    audio_eps: float = audio_kv("attention.layer_norm_epsilon", "rms_norm_eps", 1e-6)
    audio_before: int = audio_kv(
        "attention.context_left", "attention_context_left", 13, least=2, most=nn.MOST_NEARBY + 2
    )
    audio_cap: float = audio_kv(
        "attention.logit_softcapping", "attention_logit_cap", 50.0, least=1e-6
    )
    audio_residual: float = audio_kv("residual_scale", "residual_weight", 0.5)
    audio_activation: str = nn.activation(
        "silu", "audio_config.hidden_act", "audio.hidden_activation"
    )
    audio_head_dim = property(lambda h: h.audio_width // h.audio_heads)
    audio_half = property(lambda h: h.audio_width / 2)
    audio_ffn = property(lambda h: 4 * h.audio_width)
    audio_past = property(lambda h: h.audio_before - 2)  # itself and the last of them are not
    vit_quarter = property(lambda h: h.vit_width / 4)
    vit_head_dim = property(lambda h: h.vit_width // h.vit_heads)
    # One number is that of all layers.
    kv_heads = property(lambda h: h.kv_heads_each * (h.layers if len(h.kv_heads_each) == 1 else 1))
    ffns = property(lambda h: h.ffn_each * (h.layers if len(h.ffn_each) == 1 else 1))
    local = property(lambda h: nn.local_layers(h.pattern, h.layers, h.window))
    per_layers = property(lambda h: h.per_layer * h.layers)
    both_ffns = property(lambda h: 2 * h.expert_ffn)
    half_full_dim = property(lambda h: h.full_dim // 2)
