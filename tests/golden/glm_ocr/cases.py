"""The configurations of the glm_ocr golden files, spelt as the published config.json of GLM-OCR."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.image import unfold
from ggmodel.workbench.golden import Picture

START, END, IMAGE = 96, 97, 98  # special tokens, behind those of text
SPECIAL = {"<|begin_of_image|>": START, "<|end_of_image|>": END, "<|image|>": IMAGE}
PATCH, MERGE = 4, 2


def config(text: dict[str, Any], vision: dict[str, Any] | None = None, **changes: Any) -> Any:
    return {
        "architectures": ["GlmOcrForConditionalGeneration"],
        "model_type": "glm_ocr",
        "text_config": {
            "model_type": "glm_ocr_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": "bfloat16",
            "eos_token_id": [1, 2],
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "num_nextn_predict_layers": 1,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                "mrope_section": [2, 3, 3],
                "partial_rotary_factor": 1.0,
                "rope_theta": 10000,
                "rope_type": "default",
            },
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": 100,
            **text,
        },
        "vision_config": {
            "model_type": "glm_ocr_vision",
            "attention_bias": True,
            "attention_dropout": 0.0,
            "depth": 2,
            "hidden_act": "silu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": 32,
            "image_size": 24,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": PATCH,
            "rms_norm_eps": 1e-05,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            **(vision or {}),
        },
        "image_end_token_id": END,
        "image_start_token_id": START,
        "image_token_id": IMAGE,
        "video_end_token_id": 95,
        "video_start_token_id": 94,
        "video_token_id": 99,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": config({}),
    # Half of each head rotated, heads of another size than width / heads; a tower without biases,
    # with another activation, and numbers that are seen.
    "partial": config(
        {
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {
                "mrope_section": [4, 2, 2],
                "partial_rotary_factor": 0.5,
                "rope_theta": 500,
                "rope_type": "default",
            },
        },
        {
            "attention_bias": False,
            "hidden_act": "gelu",
            "num_heads": 4,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"},
        },
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
    """Patches of two frames alike, and the grid of each picture."""
    frames = [unfold(p.pixels, PATCH, MERGE).reshape(-1, 3, 1, PATCH**2) for p in pictures]
    return {
        "pixel_values": np.repeat(np.concatenate(frames), 2, axis=2).reshape(-1, 6 * PATCH**2),
        "image_grid_thw": np.array([[1, *grid_of(picture)] for picture in pictures]),
        "mm_token_type_ids": (np.array([ids]) == IMAGE).astype(np.int64),
    }


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    features = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    return features.pooler_output[0]


_TEXT = "<|begin_of_image|><|image|><|end_of_image|>"
# Below the least pixels, beyond the most, narrower than a row of patches.
FILES = {
    "published": {
        "wide": (_TEXT, 61, 37),
        "high": (_TEXT, 30, 71),
        "small": (_TEXT, 13, 10),
        "narrow": (_TEXT, 5, 60),
        "flat": (_TEXT, 50, 6),
    }
}
NAMED = {"image_token": "<|image|>"}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    options = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "size": {"shortest_edge": 1152, "longest_edge": 4000},
        "image_mean": [0.5, 0.45, 0.4],
        "image_std": [0.27, 0.26, 0.28],
    }
    return transformers.Glm46VProcessor(
        tokenizer=tokenizer,
        image_processor=transformers.Glm46VImageProcessor(**options),
        video_processor=transformers.Glm46VVideoProcessor(**options),
    )
