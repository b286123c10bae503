"""The tiny models of Mistral 3's goldens, as the config.json of a checkpoint: Mistral Small 3.1,
Ministral 3 and Pixtral 12B, whose keys they spell.

Rows of pictures are as wide as the released ones' patches are merged: two by two, or not at all.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

IMAGE, BREAK, END = 80, 81, 82  # special tokens, behind those of text
SPECIAL = {"[IMG]": IMAGE, "[IMG_BREAK]": BREAK, "[IMG_END]": END}


def text(**changes: Any) -> dict[str, Any]:
    config = {
        "attention_dropout": 0.0,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 131072,
        "model_type": "mistral",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "use_cache": True,
        "vocab_size": 96,
    }
    return {**config, **changes}


def tower(**changes: Any) -> dict[str, Any]:
    config = {
        "attention_dropout": 0.0,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "image_size": 48,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "model_type": "pixtral",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 3,  # llama.cpp's converter numbers the projector's maps by layers
        "patch_size": 4,
        "rope_theta": 10000.0,
    }
    return {**config, **changes}


def mistral3(
    vision: dict[str, Any] | None = None, said: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": IMAGE,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": text(**changes),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": tower(**(vision or {})),
        "vision_feature_layer": -1,
        **(said or {}),
    }


# As Ministral 3: the queries grow from the end of the original context on.
YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
    "type": "yarn",
}
BLENDED = {
    "beta_fast": 0.35,
    "beta_slow": 0.02,
    "mscale": 0.5,
    "mscale_all_dim": 2.0,
    "rope_theta": 10000.0,
}
MINISTRAL = {
    "max_position_embeddings": 128,
    "model_type": "ministral3",
    "rope_parameters": YARN,
    "rope_theta": None,
}

CASES: dict[str, dict[str, Any]] = {
    "images": mistral3(),
    "ministral": mistral3(
        {"hidden_act": "gelu", "num_hidden_layers": 2, "rope_theta": 100.0},
        {"multimodal_projector_bias": True},
        **MINISTRAL,
    ),
    "pixtral": {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_seq_length": 1,
        "image_token_index": IMAGE,
        "ignore_index": -100,
        "model_type": "llava",
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "text_config": text(num_key_value_heads=1),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": tower(),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "text": {
        **text(**MINISTRAL),
        "architectures": ["Ministral3ForCausalLM"],
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
    # Two scales; both ends of the blended range lie within the rope.
    "yarn": {
        **text(**{**MINISTRAL, "rope_parameters": {**YARN, **BLENDED}}),
        "architectures": ["Ministral3ForCausalLM"],
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
}
PROMPT = 24
TOKENS = dict.fromkeys(CASES, IMAGE)
SMALL, WIDE, TALL = ((1, 3, *size) for size in ((16, 16), (16, 40), (32, 8)))
PICTURES = {
    case: {"small": (SMALL, {}), "wide": (WIDE, {}), "tall": (TALL, {})}
    for case in ("images", "ministral", "pixtral")
}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    case: {"middle": [5, "wide", 4], "two": [3, "tall", 2, "small", 4]} for case in PICTURES
}


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    unit = config["vision_config"]["patch_size"] * config.get("spatial_merge_size", 1)
    rows, columns = (n // unit for n in picture.pixels.shape[2:])
    return [*([*[IMAGE] * columns, BREAK] * rows)[:-1], END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    sizes = [picture.pixels.shape[2:] for picture in pictures]
    largest = np.max(sizes, axis=0)
    padded = [
        np.pad(
            p.pixels, [(0, 0), (0, 0), *((0, m - n) for n, m in zip(size, largest, strict=True))]
        )
        for p, size in zip(pictures, sizes, strict=True)
    ]
    return {"pixel_values": np.concatenate(padded), "image_sizes": np.array(sizes)}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    sizes = inputs["image_sizes"]
    return model.get_image_features(inputs["pixel_values"], image_sizes=sizes).pooler_output[0]


# Larger than a side; small ones stay, and end with a part of a patch; "cut" is 24.5 high.
PICTURED = {
    "wide": ("[IMG]", 61, 37),
    "high": ("[IMG]", 30, 71),
    "small": ("[IMG]", 13, 21),
    "cut": ("[IMG]", 90, 46),
    "narrow": ("[IMG]", 5, 100),
}
FILES = {"images": PICTURED, "pixtral": {name: PICTURED[name] for name in ("wide", "narrow")}}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    side, patch = (config["vision_config"][key] for key in ("image_size", "patch_size"))
    means = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.27, 0.26, 0.28]}
    images = transformers.PixtralImageProcessor(
        size={"longest_edge": side}, patch_size=patch, **means
    )
    merge = config.get("spatial_merge_size", 1)
    return transformers.PixtralProcessor(
        tokenizer=tokenizer, image_processor=images, patch_size=patch, spatial_merge_size=merge
    )


# Numbers that no case can see.
UNSEEN = {
    "side": "goldens are given prepared pixels; the sizes are tested with the preparation",
    "v.token_embd.img_break": "llama.cpp reads it; here it is a row of the table of tokens",
    "yarn_scale": "llama.cpp reads it; here yarn_magnitude has it",
}
