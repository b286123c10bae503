"""The configurations of the qwen2vl golden files, spelt as the published config.json of Qwen2-VL-2B
and Qwen2.5-VL-3B: text keys at the top, `rope_scaling` of the type "mrope"."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights

START, END, IMAGE, VIDEO = 96, 97, 98, 99  # special tokens, behind those of text
SPECIAL = {
    "<|vision_start|>": START,
    "<|vision_end|>": END,
    "<|image_pad|>": IMAGE,
    "<|video_pad|>": VIDEO,
}
PATCH = 4


def config(name: str, kind: str, vision: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "architectures": [name],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "max_window_layers": 28,
        "model_type": kind,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": vision,
        "vocab_size": 100,
        **changes,
    }


def qwen2(seen: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "mlp_ratio": 4,
        "num_heads": 2,
        "in_chans": 3,
        "hidden_size": 64,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "spatial_patch_size": PATCH,
        "temporal_patch_size": 2,
        **(seen or {}),
    }
    return config("Qwen2VLForConditionalGeneration", "qwen2_vl", vision, **changes)


def qwen25(seen: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    vision = {
        "depth": 4,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_heads": 2,
        "in_chans": 3,
        "out_hidden_size": 64,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "spatial_patch_size": PATCH,
        "window_size": 16,
        "fullatt_block_indexes": [1, 3],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
        **(seen or {}),
    }
    return config("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", vision, **changes)


PROMPT, LENGTHS = 32, dict[str, int]()
MARGIN = 0.05

CASES: dict[str, dict[str, Any]] = {
    "qwen2": qwen2(),
    # An output of its own, an epsilon large enough to be seen (the tower has its own), as many
    # heads of keys as of queries, and layers with a window.
    "qwen2_untied": qwen2(
        {"num_heads": 4, "mlp_ratio": 2},
        num_hidden_layers=4,
        rms_norm_eps=1e-2,
        tie_word_embeddings=False,
        num_key_value_heads=4,
        rope_scaling={"type": "mrope", "mrope_section": [4, 2, 2]},
        use_sliding_window=True,
        sliding_window=16,
        max_window_layers=2,
    ),
    "qwen25": qwen25(),
    # No layer of the tower sees more than its window, of three squares a side.
    "qwen25_windows": qwen25(
        {"depth": 2, "window_size": 24, "fullatt_block_indexes": [7, 15]},
        tie_word_embeddings=False,
        num_key_value_heads=1,
    ),
}


def grid(rows: int, columns: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """A picture of patches."""
    shape = rows * columns, 3 * 2 * PATCH**2
    return shape, {"image_grid_thw": [1, rows, columns]}


def film(frames: int, rows: int, columns: int, seconds: float) -> tuple[Any, ...]:
    """A video of patches in pairs of frames.

    Args:
        seconds: from one pair to the next.
    """
    shape = frames * rows * columns, 3 * 2 * PATCH**2
    data = {"video_grid_thw": [frames, rows, columns], "second_per_grid_ts": seconds}
    return shape, data, "video"


TOKENS = dict.fromkeys(CASES, START)
# One row; windows that the edges cut, and the order of rows, matter in the others. The first
# video's times are rounded down, its last one comes before the longer side's position, that of the
# other long behind it.
SEEN: dict[str, Any] = {"dot": grid(2, 2), "wide": grid(6, 10), "high": grid(8, 4)}
SEEN |= {"clip": film(3, 4, 6, 0.7), "slow": film(2, 2, 4, 4.25)}
PICTURES = dict.fromkeys(CASES, SEEN)
ASKED: dict[str, list[int | str]] = {
    "start": ["wide", 6],
    "middle": [7, "high", 5],
    "end": [9, "dot"],
    "two": [4, "wide", 3, "high", 4],
    "adjacent": [5, "high", "dot", "high", 2],
    "watched": [4, "clip", 5],
    "both": [3, "slow", 4, "high", 2, "clip", 3],
}
PROMPTS = dict.fromkeys(CASES, ASKED)
# ggml's quick GELU reads a table in F16.
BOUNDS = dict.fromkeys(("qwen2", "qwen2_untied"), 1e-6)


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but embeddings are smaller: a tied head would repeat the last token. The
    last norm makes up for that in the logits."""
    values = weights.weight(name, shape)
    if name.endswith("embed_tokens.weight"):
        return np.float32(1 / 8) * values
    return np.float32(8) * values if name == "model.norm.weight" else values


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    rows = len(picture.pixels) // config["vision_config"]["spatial_merge_size"] ** 2
    return [START, *[VIDEO if picture.kind == "video" else IMAGE] * rows, END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    kinds = (np.array([ids]) == IMAGE) + 2 * (np.array([ids]) == VIDEO)
    inputs: dict[str, NDArray[Any]] = {"mm_token_type_ids": kinds.astype(np.int64)}
    for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        given = [picture for picture in pictures if picture.kind == kind]
        if given:
            inputs[pixels] = np.concatenate([picture.pixels for picture in given])
            grids = [picture.data[f"{kind}_grid_thw"] for picture in given]
            inputs[f"{kind}_grid_thw"] = np.array(grids)
    seconds = [p.data["second_per_grid_ts"] for p in pictures if p.kind == "video"]
    if seconds and config["model_type"] == "qwen2_5_vl":
        inputs["second_per_grid_ts"] = np.array(seconds, np.float32)
    return inputs


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    if "pixel_values_videos" in inputs:
        given = inputs["pixel_values_videos"], inputs["video_grid_thw"]
        return model.get_video_features(*given).pooler_output[0]
    seen = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    return seen.pooler_output[0]


# Below the least pixels, beyond the most, of odd proportions, larger than a row in one way alone.
_TEXT = "<|vision_start|><|image_pad|><|vision_end|>"
PICTURED = {
    "wide": (_TEXT, 61, 37),
    "high": (_TEXT, 30, 71),
    "square": (_TEXT, 35, 35),
    "narrow": (_TEXT, 5, 40),
    "small": (_TEXT, 13, 10),
}
FILES = {"qwen2": PICTURED, "qwen25": PICTURED}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    options = {
        "patch_size": PATCH,
        "merge_size": 2,
        "size": {"shortest_edge": 512, "longest_edge": 2000},
    }
    qwen25 = config["model_type"] == "qwen2_5_vl"
    kind = transformers.Qwen2_5_VLProcessor if qwen25 else transformers.Qwen2VLProcessor
    return kind(
        tokenizer=tokenizer,
        image_processor=transformers.Qwen2VLImageProcessor(**options),
        video_processor=transformers.Qwen2VLVideoProcessor(**options),
    )


# Numbers that no case can see.
UNSEEN = {
    "*_pixels": "goldens are given prepared pixels; the sizes are tested with the preparation",
}
