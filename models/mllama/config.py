"""The hyperparameters of Llama 3.2 Vision."""

from __future__ import annotations

from typing import Any

from ggmodel import Config, kv


def _vision(key: str, hf: str, default: Any = 0) -> Any:
    return kv(f"vision.{key}", hf=f"vision_config.{hf}", default=default)


class Hyper(Config):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps")
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    rope_dims: int = kv("rope.dimension_count", default="head_dim")
    rope_base: float = kv("rope.freq_base", hf="rope_theta", default=500000.0)
    # Which layers these are shows in the tensors; other programs ask for it.
    cross_layers: list = kv(
        "attention.cross_attention_layers", hf="cross_attention_layers", default=[]
    )
    head_dim = property(lambda h: h.hidden // h.heads)
    k_width = property(lambda h: h.kv_heads * h.head_dim)

    vision_layers: int = _vision("block_count", "num_hidden_layers")
    global_layers: int = _vision("global.block_count", "num_global_layers")
    intermediate: list = _vision("intermediate_layers_indices", "intermediate_layers_indices", [])
    vision_hidden: int = _vision("embedding_length", "hidden_size")
    vision_ffn: int = _vision("feed_forward_length", "intermediate_size")
    vision_heads: int = _vision("attention.head_count", "attention_heads")
    vision_eps: float = _vision("attention.layer_norm_epsilon", "norm_eps", 1e-5)
    tile: int = _vision("image_size", "image_size", 560)  # pixels a side
    patch: int = _vision("patch_size", "patch_size", 14)
    channels: int = _vision("num_channels", "num_channels", 3)
    tiles: int = _vision("max_num_tiles", "max_num_tiles", 4)
    positions = property(lambda h: (h.tile // h.patch) ** 2 + 1)  # of a tile, its class token too
    tiles_width = property(lambda h: h.tiles * h.vision_hidden)
    encoded_width = property(lambda h: (1 + len(h.intermediate)) * h.vision_hidden)
