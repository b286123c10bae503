"""The tiny models of LFM2-VL's goldens: a text of LFM2 as its goldens spell it, and one with
experts."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture
from tests.golden.lfm2 import cases as lfm2

IMAGE, START, END, WHOLE, FIRST = 80, 81, 82, 83, 84  # behind the tokens of text
GRIDS = [(row, column) for row in range(1, 5) for column in range(1, 5) if row * column <= 4]
SPECIAL = {
    "<image>": IMAGE,
    "<|image_start|>": START,
    "<|image_end|>": END,
    "<|img_thumbnail|>": WHOLE,
    **{f"<|img_row_{row}_col_{column}|>": FIRST + i for i, (row, column) in enumerate(GRIDS)},
}


def lfm2_vl(text: dict[str, Any], vision: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """As LFM2-VL-1.6B is published, with the keys that nobody reads."""
    tower = {
        "attention_dropout": 0.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "intermediate_size": 48,
        "layer_norm_eps": 1e-06,
        "model_type": "siglip2_vision_model",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "num_patches": 25,
        "patch_size": 4,
        "torch_dtype": "bfloat16",
        "vision_use_head": False,
        **vision,
    }
    return {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "do_image_splitting": True,
        "downsample_factor": 2,
        "encoder_patch_size": tower["patch_size"],
        "image_token_id": IMAGE,
        "max_image_tokens": 256,
        "max_num_patches": 1024,
        "max_pixels_tolerance": 2.0,
        "max_tiles": 10,
        "min_image_tokens": 64,
        "min_tiles": 2,
        "model_type": "lfm2_vl",
        "projector_bias": True,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": 40,
        "text_config": {**text, "vocab_size": 96},
        "tie_word_embeddings": text.get("tie_word_embeddings", True),
        "tile_size": 512,
        "torch_dtype": "bfloat16",
        "use_image_special_tokens": True,
        "use_thumbnail": False,
        "vision_config": tower,
        "vision_feature_layer": -1,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": lfm2_vl(lfm2.lfm2(), {}),
    # A text with experts; no norm and no biases in the projector, larger squares, epsilons and an
    # activation that are seen, more learned positions than patches.
    "experts": lfm2_vl(
        lfm2.experts(num_hidden_layers=2, layer_types=["full_attention", "conv"], norm_eps=1e-2),
        {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-2,
            "num_attention_heads": 4,
            "num_patches": 121,
            "patch_size": 2,
        },
        downsample_factor=3,
        projector_bias=False,
        projector_hidden_act="silu",
        projector_use_layernorm=False,
    ),
}
TOKENS = dict.fromkeys(CASES, IMAGE)
PROMPT, MARGIN = 24, 0.05
weight = lfm2.weight
# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = {"published": 1e-6}


def _picture(
    case: str, grid: tuple[int, int], *shapes: tuple[int, int]
) -> tuple[tuple[int, ...], dict[str, Any]]:
    patch = CASES[case]["vision_config"]["patch_size"]
    data = {"grid": list(grid), "shapes": [list(shape) for shape in shapes]}
    return (sum(map(math.prod, shapes)), 3 * patch**2), data


TILE = (6, 6)
# More and fewer patches a side than learned positions.
PICTURES = {
    "published": {
        "small": _picture("published", (1, 1), (4, 8)),
        "wide": _picture("published", (1, 2), TILE, TILE, (2, 6)),
        "high": _picture("published", (2, 1), TILE, TILE),
    },
    "experts": {"small": _picture("experts", (1, 1), (6, 15))},
}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    "published": {
        "middle": [5, "small", 4],
        "start": ["wide", 3],
        "two": [3, "high", 2, "small", 4],
    },
    "experts": {"middle": [3, "small", 2]},
}


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    shapes, (_, columns) = picture.data["shapes"], picture.data["grid"]
    tokens = [START]
    for i, shape in enumerate(shapes):
        row, column = divmod(i, columns)
        name = f"<|img_row_{row + 1}_col_{column + 1}|>"
        if i == math.prod(picture.data["grid"]):
            name = "<|img_thumbnail|>"
        tokens += [SPECIAL[name]] if len(shapes) > 1 else []
        tokens += [IMAGE] * (math.prod(shape) // config["downsample_factor"] ** 2)
    return [*tokens, END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    """Tiles filled up to the patches of the largest."""
    patch = config["vision_config"]["patch_size"]
    shapes = [shape for picture in pictures for shape in picture.data["shapes"]]
    counts = [math.prod(shape) for shape in shapes]
    patches = np.concatenate([picture.pixels for picture in pictures])
    patches = patches.reshape(-1, 3, patch, patch).transpose(0, 2, 3, 1).reshape(len(patches), -1)
    tiles = np.split(patches, np.cumsum(counts)[:-1])
    return {
        "pixel_values": np.stack([np.pad(t, ((0, max(counts) - len(t)), (0, 0))) for t in tiles]),
        "pixel_attention_mask": (np.arange(max(counts)) < np.array(counts)[:, None]).astype(int),
        "spatial_shapes": np.array(shapes),
    }


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    parts = model.get_image_features(**inputs).pooler_output
    return parts[0].new_tensor([row for part in parts for row in part.tolist()])


# Enlarged, made smaller, in tiles of several grids, and narrower than a row of patches; of the
# second case, tiles without a view of the whole.
FILES = {
    "published": {
        "small": ("<image>", 13, 10),
        "whole": ("<image>", 30, 31),
        "wide": ("<image>", 61, 37),
        "high": ("<image>", 30, 71),
        "narrow": ("<image>", 3, 40),
    },
    "experts": {"small": ("<image>", 13, 10), "wide": ("<image>", 61, 37)},
}
NAMED = {
    "image_token": "<image>",
    "image_start_token": "<|image_start|>",
    "image_end_token": "<|image_end|>",
    "image_thumbnail_token": "<|img_thumbnail|>",
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    images = transformers.Lfm2VlImageProcessor(
        encoder_patch_size=config["vision_config"]["patch_size"],
        downsample_factor=config["downsample_factor"],
        min_image_tokens=4,
        max_image_tokens=9,
        max_tiles=4,
        tile_size=24,
        use_thumbnail=config["vision_config"]["patch_size"] == 4,
        image_mean=[0.5, 0.45, 0.4],
        image_std=[0.27, 0.26, 0.28],
    )
    return transformers.Lfm2VlProcessor(tokenizer=tokenizer, image_processor=images)


# Numbers that no case can see.
UNSEEN = {
    "v.blk.*.attn_k.bias": "it adds the same to all scores of a query, which softmax takes off",
    "least_rows": "goldens are given prepared pixels; the sizes are tested with the preparation",
    "most_rows": "goldens are given prepared pixels",
    "least_tiles": "goldens are given prepared pixels",
    "most_tiles": "goldens are given prepared pixels",
    "side": "goldens are given prepared pixels",
    "tolerance": "goldens are given prepared pixels",
    "thumbnail": "goldens are given prepared pixels",
    "biased": "the conversion reads it: the biases are zeros then",
}
