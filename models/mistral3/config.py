"""The hyperparameters of Mistral 3: of the text, and of Pixtral's tower."""

from __future__ import annotations

from typing import Any

from ggmodel import kv, nn


def _tower(key: str) -> Any:
    return lambda hf: hf.get("vision_config", {}).get(key)


def _yarn_magnitude(h: Mistral3Config) -> float | None:
    """From the one scale that llama.cpp's files have; its other one is 1."""
    if h.scaling != "yarn" or not h.yarn_scale:
        return None
    return nn.paper_magnitude(h.rope_factor) / nn.paper_magnitude(h.rope_factor, h.yarn_scale)


class Mistral3Config(nn.DecoderConfig, nn.ImageConfig):
    fixed = {
        "rope_scaling.max_position_embeddings": ...,  # that of the text
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": ...,  # the tensors tell
        "image_seq_length": ...,  # it follows from the picture
        "vision_config.head_dim": ...,  # unused by transformers, too
        "vision_config.image_size": ...,  # of a picture, unless its processor says so
        "preprocessor:patch_size": ...,  # its processor's takes the place
        "processor:patch_size": _tower("patch_size"),
        "processor:image_token": "[IMG]",
        "processor:image_break_token": "[IMG_BREAK]",
        "processor:image_end_token": "[IMG_END]",
    }

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    temperature: float = kv(
        "attention.temperature_scale", hf="rope_scaling.llama_4_scaling_beta", default=0.0
    )
    yarn_scale: float = kv(
        "rope.scaling.yarn_log_multiplier", hf="rope_scaling.mscale_all_dim", default=0.0
    )
    yarn_magnitude: float | None = kv(
        "rope.scaling.yarn_attn_factor", hf=nn.yarn_magnitude, default=_yarn_magnitude
    )

    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)
    resample: str = nn.resample("bicubic")
    side: int = kv(  # the longer one of a picture, at most
        "vision.image_size",
        hf=("preprocessor:size.longest_edge", "vision_config.image_size"),
        default=1024,
        least=1,
    )
    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers")
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = nn.vision_kv(
        "attention.head_count", "num_attention_heads", divides="vit_quarter"
    )
    vit_eps: float = kv(  # that of all of transformers' towers
        "vision.attention.layer_norm_epsilon", default=1e-5
    )
    vit_rope_base: float = kv(
        "vision.rope.freq_base",
        hf=("vision_config.rope_theta", "vision_config.rope_parameters.rope_theta"),
        default=10000.0,
    )
    tower_activation: str = nn.activation(
        "silu", "vision_config.hidden_act", "vision.hidden_activation"
    )
    use_gelu: bool = kv("vision.use_gelu", "clip.use_gelu", default=False)
    mm_activation: str = nn.activation("gelu", "projector_hidden_act", "mm.hidden_activation")
    patch: int = nn.vision_kv("patch_size", "patch_size", 16, least=1)
    merge: int = kv(  # patches a side that become one row
        "vision.spatial_merge_size",
        hf=("spatial_merge_size", "processor:spatial_merge_size"),
        default=1,
        least=1,
    )
    row_break: int = kv("vision.image_break_token_id", default=12)
    vit_quarter = property(lambda h: h.vit_width / 4)  # heads are rotated in two dims
    unit = property(lambda h: h.patch * h.merge)
    merged_width = property(lambda h: h.vit_width * h.merge**2)

    @property
    def vit_activation(self) -> str:
        """llama.cpp's files have a flag in place of the name."""
        named = self.tower_activation
        return "gelu" if self.use_gelu and named == "silu" else named
