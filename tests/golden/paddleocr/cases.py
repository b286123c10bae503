"""The configurations of the paddleocr golden files, spelt as the published config.json of
PaddleOCR-VL: text keys at the top."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.image import unfold
from ggmodel.workbench.golden import Picture, weights

START, END, IMAGE = 96, 97, 98  # special tokens, behind those of text
SPECIAL = {"<|IMAGE_START|>": START, "<|IMAGE_END|>": END, "<|IMAGE_PLACEHOLDER|>": IMAGE}
PATCH, MERGE = 4, 2


def config(seen: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """With a learned grid of 5 × 5 patches."""
    vision = {
        "architectures": ["PaddleOCRVisionModel"],
        "hidden_size": 32,
        "image_size": 20,
        "intermediate_size": 48,
        "layer_norm_eps": 1e-06,
        "model_type": "paddleocr_vl",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "torch_dtype": "bfloat16",
        **(seen or {}),
    }
    return {
        "architectures": ["PaddleOCRVLForConditionalGeneration"],
        "attention_probs_dropout_prob": 0.0,
        "compression_ratio": 1.0,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 64,
        "ignored_index": -100,
        "image_token_id": IMAGE,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "max_sequence_length": None,
        "model_type": "paddleocr_vl",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "mrope_section": [2, 3, 3],
            "rope_type": "default",
            "type": "default",
        },
        "rope_theta": 500000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_bias": False,
        "use_cache": False,
        "use_flash_attention": False,
        "video_token_id": 99,
        "vision_config": vision,
        "vision_start_token_id": START,
        "vocab_size": 100,
        "weight_share_add_bias": True,
        "use_3d_rope": True,
        "rope_is_neox_style": True,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "pages": config(),
    # Heads of another size than width / heads, biases, an epsilon of the tower that is seen, and
    # more learned positions than patches.
    "biases": config(
        {"image_size": 48, "layer_norm_eps": 1e-2, "num_attention_heads": 4},
        head_dim=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=2,
        rope_scaling={"mrope_section": [8, 4, 4], "rope_type": "default", "type": "default"},
        tie_word_embeddings=True,
        use_bias=True,
    ),
}

TOKENS = dict.fromkeys(CASES, START)
PROMPT, MARGIN = 24, 0.05
SIZES = {"page": (40, 24), "line": (8, 48), "square": (24, 24)}  # height and width
PICTURES = {case: {name: ((1, 3, *size), {}) for name, size in SIZES.items()} for case in CASES}
ASKED: dict[str, list[int | str]] = {
    "start": ["page", 6],
    "middle": [7, "line", 5],
    "end": [9, "square"],
    "two": [4, "page", 3, "line", 4],
    "adjacent": [5, "line", "square", 2],
}
PROMPTS = dict.fromkeys(CASES, ASKED)
# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = dict.fromkeys(CASES, 1e-6)


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but embeddings are smaller: a tied head would repeat the last token. The
    last norm makes up for that in the logits."""
    values = weights.weight(name, shape)
    if name.endswith("embed_tokens.weight"):
        return np.float32(1 / 8) * values
    last = name.endswith(("model.norm.weight", "language_model.norm.weight"))
    return np.float32(8) * values if last else values


def grid_of(picture: Picture) -> tuple[int, int]:
    """Rows and columns of patches."""
    height, width = picture.shape[-2:]
    return height // PATCH, width // PATCH


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    rows, columns = grid_of(picture)
    return [START, *[IMAGE] * (rows * columns // MERGE**2), END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    patches = [unfold(picture.pixels, PATCH).reshape(-1, 3, PATCH, PATCH) for picture in pictures]
    return {
        "pixel_values": np.concatenate(patches),
        "image_grid_thw": np.array([[1, *grid_of(picture)] for picture in pictures]),
        "mm_token_type_ids": (np.array([ids]) == IMAGE).astype(np.int64),
    }


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    seen = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    return seen.pooler_output[0]


_TEXT = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
# Below the least pixels, beyond the most, narrower than a row of patches.
FILES = {
    "pages": {
        "wide": (_TEXT, 61, 37),
        "high": (_TEXT, 30, 71),
        "small": (_TEXT, 13, 10),
        "narrow": (_TEXT, 5, 60),
        "flat": (_TEXT, 50, 6),
    }
}
NAMED = {"image_token": "<|IMAGE_PLACEHOLDER|>"}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    images = transformers.PaddleOCRVLImageProcessor(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=1,
        size={"shortest_edge": 576, "longest_edge": 2000},
        image_mean=[0.5, 0.45, 0.4],
        image_std=[0.27, 0.26, 0.28],
    )
    return transformers.PaddleOCRVLProcessor(tokenizer=tokenizer, image_processor=images)
