"""The hyperparameters of Llama 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import Unsupported


def _no_rope_interval(hf: Mapping[str, Any]) -> int:
    """Interval between layers without rope, from `no_rope_layers` or its own key."""
    declared, layers = hf.get("no_rope_layer_interval", 4), hf.get("no_rope_layers") or []
    if not layers:  # in which 1 is a layer with rope
        return declared
    interval = [*layers, 0].index(0) + 1
    if layers != [int((i + 1) % interval > 0) for i in range(len(layers))]:
        raise Unsupported(f"no_rope_layers {layers}; only regular intervals are supported")
    return interval


# An mmproj file names them otherwise.
_EPS = "vision.layer_norm_epsilon", "clip.vision.attention.layer_norm_epsilon"
_SHUFFLE = "vision.pixel_shuffle_ratio", "clip.vision.projector.scale_factor"


def _kinds(hf: Mapping[str, Any]) -> list[str]:
    """Layers with rope attend within chunks."""
    every, layers = _no_rope_interval(hf), range(1, hf["num_hidden_layers"] + 1)
    return ["chunked_attention" if i % every else "full_attention" for i in layers]


def _tile(hf: Mapping[str, Any]) -> Any:
    return hf.get("vision_config", {}).get("image_size")


class Llama4Config(nn.DecoderConfig, nn.ImageConfig):
    unread = ("expert_step",)
    fixed = {
        "layer_types": _kinds,
        "moe_layers": ...,  # the tensors tell
        "vision_config.hidden_act": ...,  # always gelu
        "preprocessor:size.height": _tile,
        "preprocessor:size.width": _tile,
        "preprocessor:resize_to_max_canvas": None,
    }

    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    ffn: int = kv("feed_forward_length", hf="intermediate_size_mlp")
    head_dim: int = kv("attention.key_length", "attention.head_dim", hf="head_dim", default=128)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    rope_base: float = kv("rope.freq_base", hf="rope_theta", default=500000.0)
    chunk: int = kv("attention.chunk_size", hf="attention_chunk_size", default=8192)
    no_rope_interval: int = kv("no_rope_interval", hf=_no_rope_interval, default=4, least=1)
    # llama.cpp's files lack the key; of the two models the one with 128 experts has none.
    qk_norm: bool = kv("use_qk_norm", hf="use_qk_norm", default=lambda h: h.experts != 128)
    # Some checkpoints give a number of layers here, which means yes.
    tuned: bool = kv(
        "attention.temperature_tuning",
        hf=lambda hf: bool(hf.get("attn_temperature_tuning", True)),
        default=True,
    )
    tuning_scale: float = kv("attention.scale", hf="attn_scale", default=0.1)
    tuning_floor: int = kv("attention.floor_scale", hf="floor_scale", default=8192, least=1)
    experts: int = kv("expert_count", hf="num_local_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    expert_ffn: int = kv("expert_feed_forward_length", hf="intermediate_size")
    shared_ffn = property(lambda h: h.expert_ffn)
    # The tensors tell which layers have experts; other programs need it.
    expert_step: int = kv("interleave_moe_layer_step", hf="interleave_moe_layer_step", default=1)

    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers")
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = nn.vision_kv("attention.head_count", "num_attention_heads")
    vit_eps: float = kv(*_EPS, hf="vision_config.norm_eps", default=1e-5, least=0)
    vit_rope_base: float = kv(
        "vision.rope.freq_base",
        hf=("vision_config.rope_theta", "vision_config.rope_parameters.rope_theta"),
        default=10000.0,
    )
    vit_activation = "gelu"
    tile: int = nn.vision_kv("image_size", "image_size", 336)  # pixels a side
    patch: int = nn.vision_kv("patch_size", "patch_size", 14, least=1)
    tiles: int = kv(  # of a picture, at most
        "vision.max_tiles",
        "clip.vision.preproc_max_tiles",
        hf="preprocessor:max_patches",
        default=16,
        least=1,
    )
    # Patches a side that become one: 0.5 in one file, 2 in an mmproj file.
    shuffle: float = kv(*_SHUFFLE, hf="vision_config.pixel_shuffle_ratio", default=0.5)
    side = property(lambda h: h.tile // h.patch)  # of a tile, in patches
    positions = property(lambda h: h.side**2 + 1)  # of a tile, its class token too
    merged = property(lambda h: round(max(h.shuffle, 1 / h.shuffle)))
    patch_width = property(lambda h: 3 * h.patch**2)
    shuffled_width = property(lambda h: h.vit_width * h.merged**2)
