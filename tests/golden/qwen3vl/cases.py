"""The configurations of the qwen3vl golden files, as the config.json of a checkpoint: Qwen3-VL,
dense and with experts, and Qwen 3.5, which has the same tower."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.image import unfold
from ggmodel.workbench.golden import Picture, weights

START, END, IMAGE, VIDEO = 64, 65, 66, 67  # special tokens, behind those of text
SPECIAL = {
    "<|vision_start|>": START,
    "<|vision_end|>": END,
    "<|image_pad|>": IMAGE,
    "<|video_pad|>": VIDEO,
}
# Texts before pairs of frames, each one token here.
TIMES = {"<0.2 seconds>": 10, "<1.5 seconds>": 11, "<2.9 seconds>": 12}
SPECIAL |= TIMES
PATCH, MERGE = 4, 2


def vision(**changes: Any) -> dict[str, Any]:
    """As published, with a learned grid of 5 x 5 patches."""
    return {
        "deepstack_visual_indexes": [0, 2],
        "depth": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "num_heads": 2,
        "num_position_embeddings": 25,
        "out_hidden_size": 64,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        **changes,
    }


def rope(**changes: Any) -> dict[str, Any]:
    return {"mrope_interleaved": True, "rope_theta": 5000000, "rope_type": "default", **changes}


def qwen3vl(text: dict[str, Any], tower: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """As Qwen3-VL-8B is published."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": IMAGE,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "dtype": "float32",
            "eos_token_id": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_parameters": rope(mrope_section=[4, 2, 2]),
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": 68,
            **text,
        },
        "tie_word_embeddings": False,
        "video_token_id": VIDEO,
        "vision_config": {"model_type": "qwen3_vl", **tower},
        "vision_end_token_id": END,
        "vision_start_token_id": START,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "images": qwen3vl({}, vision()),
    # Pairs that no section covers turn fast enough to be seen; mergers in an order of their own.
    "fast_rope": qwen3vl(
        {"rope_parameters": rope(mrope_section=[3, 2, 1], rope_theta=100.0)},
        vision(deepstack_visual_indexes=[2, 0]),
    ),
    "experts": qwen3vl(
        {
            "model_type": "qwen3_vl_moe_text",
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 96,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
        },
        vision(depth=2, deepstack_visual_indexes=[1], model_type="qwen3_vl_moe"),
        architectures=["Qwen3VLMoeForConditionalGeneration"],
        model_type="qwen3_vl_moe",
    ),
    "qwen35": qwen3vl(
        {
            "model_type": "qwen3_5_text",
            "attn_output_gate": True,
            "full_attention_interval": 2,
            "head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 32,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_value_head_dim": 32,
            "num_hidden_layers": 2,
            "rope_parameters": rope(mrope_section=[6, 5, 5], partial_rotary_factor=1.0),
        },
        {k: v for k, v in vision().items() if k != "deepstack_visual_indexes"}
        | {"model_type": "qwen3_5"},
        architectures=["Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5",
    ),
}

TOKENS = dict.fromkeys(CASES, START)
PROMPT = 24
SIZES = {"red": (16, 24), "blue": (32, 8)}  # height and width
SEEN: dict[str, Any] = {name: ((1, 3, *size), {}) for name, size in SIZES.items()}
# Pairs of frames, and the times of these.
SEEN |= {
    "clip": ((3, 2, 3, 16, 24), {"times": [0.25, 1.5, 2.875]}, "video"),
    "short": ((1, 2, 3, 8, 16), {"times": [1.46]}, "video"),
}
PICTURES = dict.fromkeys(CASES, SEEN)
ASKED: dict[str, list[int | str]] = {
    "start": ["red", 6],
    "middle": [7, "blue", 5],
    "end": [9, "red"],
    "two": [4, "red", 3, "blue", 4],
    "adjacent": [5, "blue", "red", 2],
    "watched": [4, "clip", 5],
    "both": [3, "short", 4, "blue", 2, "clip", 3],
}
# No router may be near a tie anywhere, which is rarer in longer prompts.
FEWER: dict[str, list[int | str]] = {"middle": [3, "blue", 2], "watched": [2, "short", 2]}
PROMPTS = dict.fromkeys(CASES, ASKED) | {"experts": FEWER}
# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = dict.fromkeys(CASES, 1e-6)


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but delta nets add less, for their norms multiply by 1 + weight, and routers
    are rarely near a tie."""
    values = weights.weight(name, shape)
    if name.endswith("linear_attn.out_proj.weight"):
        return np.float32(1 / 8) * values
    return np.float32(4) * values if name.endswith("mlp.gate.weight") else values


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    rows = math.prod(picture.shape[-2:]) // (PATCH * MERGE) ** 2
    if picture.kind == "video":
        times = (TIMES[f"<{time:.1f} seconds>"] for time in picture.data["times"])
        return [id for time in times for id in (time, START, *[VIDEO] * rows, END)]
    return [START, *[IMAGE] * rows, END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    """Patches of the same frame twice, or of the pairs of a video, and the grid of each."""
    kinds = (np.array([ids]) == IMAGE) + 2 * (np.array([ids]) == VIDEO)
    inputs: dict[str, NDArray[Any]] = {"mm_token_type_ids": kinds.astype(np.int64)}
    for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        frames = [as_pairs(picture.pixels) for picture in pictures if picture.kind == kind]
        if frames:
            inputs[name] = np.concatenate([patches(pairs) for pairs in frames])
            grids = [[len(p), *(n // PATCH for n in p.shape[-2:])] for p in frames]
            inputs[f"{kind}_grid_thw"] = np.array(grids)
    return inputs


def as_pairs(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """[pairs, 2, 3, height, width]; a picture is one, its frames alike."""
    return pixels if pixels.ndim == 5 else np.repeat(pixels[None], 2, axis=1)


def patches(pairs: NDArray[np.float32]) -> NDArray[np.float32]:
    """As the reference's processor gives them, [n, 3 · 2 · patch²]."""
    frames = [unfold(pairs[:, i], PATCH, MERGE).reshape(-1, 3, PATCH**2) for i in (0, 1)]
    both = np.stack(frames, axis=2)
    return both.reshape(len(both), -1)


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    if "pixel_values_videos" in inputs:
        given = inputs["pixel_values_videos"], inputs["video_grid_thw"]
        return model.get_video_features(*given).pooler_output[0]
    found = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    return found.pooler_output[0]


_TEXT = "<|vision_start|><|image_pad|><|vision_end|>"
PICTURED = {
    "wide": (_TEXT, 61, 37),
    "high": (_TEXT, 30, 71),
    "small": (_TEXT, 13, 10),
    "narrow": (_TEXT, 5, 40),
}
FILES = {"images": PICTURED, "qwen35": {name: PICTURED[name] for name in ("wide", "small")}}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    options = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "size": {"shortest_edge": 512, "longest_edge": 2000},
        "image_mean": [0.5, 0.45, 0.4],
        "image_std": [0.27, 0.26, 0.28],
    }
    return transformers.Qwen3VLProcessor(
        tokenizer=tokenizer,
        image_processor=transformers.Qwen2VLImageProcessor(**options),
        video_processor=transformers.Qwen3VLVideoProcessor(**options),
    )


# Numbers that no case can see.
UNSEEN = {
    "video_*_pixels": "goldens are given prepared pixels; the preparation is tested apart",
    "interval": "read where a file lacks the list of layers",
    "side": "patches are counted: 21 pixels have as many as 20, and other counts are refused",
    "taken": "other programs ask for it; here the list of layers tells the same",
}
