"""The tiny models of InternVL's goldens, as the config.json of a checkpoint: InternVL 3 and 3.5,
whose keys they spell."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

IMAGE, BEGIN, END = 80, 81, 82  # behind the tokens of text
# The text before each frame of a video, each one token here.
FRAMES = {"Frame1: ": 7, "\nFrame2: ": 8, "\nFrame3: ": 9}
SPECIAL = {"<IMG_CONTEXT>": IMAGE, "<img>": BEGIN, "</img>": END, "<video>": 83, **FRAMES}
DYNAMIC = {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}


def qwen2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 32768,
        "max_window_layers": 70,
        "model_type": "qwen2",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": DYNAMIC,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 96,
    }
    return {**config, **changes}


def qwen3(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 24,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "rope_scaling": None,
        "vocab_size": 96,
    }
    return {**qwen2(), **config, **changes}


def qwen3_moe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }
    return {**qwen3(), **config, **changes}


def tower(**changes: Any) -> dict[str, Any]:
    """The smaller one, InternViT 300M."""
    config = {
        "architectures": ["InternVisionModel"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dropout": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 32,
        "image_size": [16, 16],
        "initializer_factor": 0.1,
        "initializer_range": 1e-10,
        "intermediate_size": 64,
        "layer_norm_eps": 1e-06,
        "layer_scale_init_value": 0.1,
        "model_type": "internvl_vision",
        "norm_type": "layer_norm",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "patch_size": [4, 4],
        "projection_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "use_absolute_position_embeddings": True,
        "use_mask_token": False,
        "use_mean_pooling": True,
        "use_qk_norm": False,
    }
    return {**config, **changes}


# InternViT 6B.
LARGE = {"attention_bias": False, "norm_type": "rms_norm", "use_qk_norm": True}


def internvl(said: dict[str, Any], **vision: Any) -> dict[str, Any]:
    return {
        "architectures": ["InternVLForConditionalGeneration"],
        "downsample_ratio": 0.5,
        "image_seq_length": 256,
        "image_token_id": IMAGE,
        "model_type": "internvl",
        "projector_hidden_act": "gelu",
        "text_config": said,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": tower(**vision),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }


CASES: dict[str, dict[str, Any]] = {
    "qwen2": internvl(qwen2()),
    "qwen3": internvl(qwen3(), **LARGE),
    "experts": internvl(qwen3_moe(), use_mean_pooling=False),
}
PROMPT = 24
MARGIN = 0.01  # prompts with many tiles change slowly: few have a larger one
TOKENS = dict.fromkeys(CASES, IMAGE)


def _picture(tiles: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    return (tiles, 3, 16, 16), {}


PICTURES: dict[str, dict[str, Any]] = {
    "qwen2": {
        "small": _picture(1),
        "wide": _picture(3),
        "large": _picture(7),
        "clip": (*_picture(3), "video"),
    },
    "qwen3": {"wide": _picture(3)},
    "experts": {"small": _picture(1)},
}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    "qwen2": {
        "middle": [5, "small", 4],
        "two": [3, "small", 2, "wide", 4],
        "large": [2, "large", 3],
        "watched": [3, "clip", 4],
        "both": [2, "wide", 5, "clip", 3],
    },
    "qwen3": {"middle": [5, "wide", 4]},
    "experts": {"middle": [3, "small", 2]},
}


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    vision, merge = config["vision_config"], round(1 / config["downsample_ratio"])
    rows = [IMAGE] * (vision["image_size"][0] // vision["patch_size"][0] // merge) ** 2
    if picture.kind == "video":
        return [id for text in FRAMES.values() for id in (text, BEGIN, *rows, END)]
    return [BEGIN, *rows * len(picture.pixels), END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"pixel_values": np.concatenate([picture.pixels for picture in pictures])}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.get_image_features(inputs["pixel_values"]).pooler_output.flatten(0, 1)


FILES = {
    "qwen3": {
        "wide": ("<IMG_CONTEXT>", 61, 37),
        "high": ("<IMG_CONTEXT>", 30, 71),
        "square": ("<IMG_CONTEXT>", 14, 13),
        "flat": ("<IMG_CONTEXT>", 60, 9),
    }
}
NAMED = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    side, _ = config["vision_config"]["image_size"]
    images = transformers.GotOcr2ImageProcessor(
        size={"height": side, "width": side},
        crop_to_patches=True,
        max_patches=6,
        image_mean=[0.5, 0.45, 0.4],
        image_std=[0.27, 0.26, 0.28],
    )
    patch, _ = config["vision_config"]["patch_size"]
    return transformers.InternVLProcessor(
        tokenizer=tokenizer,
        image_processor=images,
        video_processor=transformers.InternVLVideoProcessor(),
        image_seq_length=round((side / patch * config["downsample_ratio"]) ** 2),
    )


# Numbers that no case can see.
UNSEEN = {
    "v.blk.*.attn_k.bias": "it adds the same to all scores of a query, which softmax takes off",
    "dynamic_factor": "it is not computed, but warned of",
}
