"""Hyperparameters of InternVL: of the text, Qwen 2's or Qwen 3's, and of the vision tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import ConfigError


def _square(key: str, usual: int) -> Callable[[Mapping[str, Any]], Any]:
    """A side of the tower's tiles or patches, which configs give as height and width."""

    def find(hf: Mapping[str, Any]) -> Any:
        size = (hf.get("vision_config") or {}).get(key, usual)
        sides = size if isinstance(size, list | tuple) else [size, size]
        if len(sides) != 2 or sides[0] != sides[1]:
            raise ConfigError(f"vision_config.{key} is {size!r:.60}; supported: squares")
        return sides[0]

    return find


def _merge(hf: Mapping[str, Any]) -> int:
    """Patches a side that become one row: 2 for a ratio of 0.5. All but the class token of the last
    layer do."""
    for key, usual in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "default")):
        if hf.get(key, usual) != usual:
            raise ConfigError(f"{key} is {hf[key]!r:.40}; supported: {usual!r}")
    ratio = hf.get("downsample_ratio", 0.5)
    if not isinstance(ratio, int | float) or not 0 < ratio <= 1 or 1 / ratio % 1:
        raise ConfigError(f"downsample_ratio is {ratio!r:.40}; supported: 1 over a whole number")
    return int(1 / ratio)


def _film(hf: Mapping[str, Any], key: str) -> Any:
    return (hf.get("video:") or {}).get(key)


def _by_rate(hf: Mapping[str, Any]) -> int | None:
    """No number of frames of its own, where a file says how many a second are seen."""
    return None if _film(hf, "fps") is None else 0


def _unset(hf: Mapping[str, Any]) -> bool:
    """Whether a file has the size, mean and deviation that transformers' class has by default, for
    a tower of another size: those of InternVL 3.5 do, and frames are prepared as pictures."""
    if _square("image_size", 448)(hf) == 384:
        return False
    size = _film(hf, "size") == {"height": 384, "width": 384}
    scale = [_film(hf, f"image_{key}") for key in ("mean", "std")]
    return size and scale == [list(nn.CLIP_MEAN), list(nn.CLIP_STD)]


def _frame_side(key: str) -> Callable[[Mapping[str, Any]], Any]:
    tower = _square("image_size", 448)
    return lambda hf: _film(hf, "size")[key] if _unset(hf) else tower(hf)


def _frame_scale(key: str, usual: Sequence[float]) -> Callable[[Mapping[str, Any]], Any]:
    """The mean or standard deviation of frames: that of pictures."""

    def find(hf: Mapping[str, Any]) -> Any:
        values = (hf.get("preprocessor:") or {}).get(key, list(usual))
        return _film(hf, key) if _unset(hf) else values

    return find


def _experts(hf: Mapping[str, Any]) -> int | None:
    return hf.get("num_experts") or hf.get("num_local_experts")


class InternVLConfig(nn.DecoderConfig, nn.VideoConfig):
    fixed = {
        "use_sliding_window": False,
        "sliding_window": ...,  # unused then
        "max_window_layers": ...,
        "layer_types": ...,
        "mlp_only_layers": ...,  # the tensors tell
        "decoder_sparse_step": ...,
        "image_seq_length": ...,  # it follows from the tower
        "vision_config.num_channels": 3,
        "vision_config.attention_bias": ...,  # the tensors tell
        "vision_config.use_qk_norm": ...,
        "vision_config.norm_type": ...,
        "vision_config.use_mean_pooling": ...,
        "vision_config.layer_scale_init_value": ...,
        "vision_config.use_mask_token": False,
        "vision_config.use_absolute_position_embeddings": True,
        "preprocessor:size.height": _square("image_size", 448),
        "preprocessor:size.width": _square("image_size", 448),
        "preprocessor:crop_to_patches": ...,  # InternVL's processor always does
        "preprocessor:do_convert_rgb": ...,  # pictures are RGB here
        "processor:image_seq_length": ...,
        "video:size.height": _frame_side("height"),
        "video:size.width": _frame_side("width"),
        "video:image_mean": _frame_scale("image_mean", nn.CLIP_MEAN),
        "video:image_std": _frame_scale("image_std", nn.CLIP_STD),
        "video:initial_shift": True,
        "video:do_sample_frames": ...,  # a video has more frames than a context takes
    }

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    experts: int = kv("expert_count", hf=_experts, default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size", default=0)
    # llama.cpp's converter does not write this; all published models normalize.
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=True)

    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)
    resample: str = nn.resample("bicubic")
    # Tiles of a picture.
    least_tiles: int = kv(
        "vision.preproc_min_tiles",
        hf="preprocessor:min_patches",
        default=1,
        least=1,
        most="most_tiles",
    )
    most_tiles: int = kv(
        "vision.preproc_max_tiles", hf="preprocessor:max_patches", default=12, least=1
    )
    # Frames of a video that are seen; 0 for video_fps a second. The authors' examples take 8.
    video_max_frames: int = kv(
        "vision.video_max_frames", hf=("video:num_frames", _by_rate), default=8, least=0
    )
    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers", usual=24)
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size", usual=1024)
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size", usual=4096)
    vit_heads: int = nn.vision_kv(
        "attention.head_count", "num_attention_heads", usual=16, least=1, divides="vit_width"
    )
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "layer_norm_eps", usual=1e-6)
    vit_activation: str = nn.activation(
        "gelu", "vision_config.hidden_act", "vision.hidden_activation"
    )
    mm_activation: str = nn.activation("gelu", "projector_hidden_act", "mm.hidden_activation")
    side: int = kv("vision.image_size", hf=_square("image_size", 448), default=448, least=1)
    patch: int = kv(
        "vision.patch_size", hf=_square("patch_size", 14), default=14, least=1, most="side"
    )
    merge: int = kv("vision.projector.scale_factor", hf=_merge, default=2, least=1, divides="grid")
    grid = property(lambda h: h.side // h.patch)
    patches = property(lambda h: h.grid**2)
    places = property(lambda h: h.patches + 1)
    patch_width = property(lambda h: 3 * h.patch**2)
    rows = property(lambda h: (h.grid // h.merge) ** 2)  # of a tile
    merged_width = property(lambda h: h.vit_width * h.merge**2)
