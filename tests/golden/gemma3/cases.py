"""The configurations of the gemma3 golden files, as the config.json of a checkpoint.

Text-only ones are spelt as those in the wild: `rope_theta`, `rope_local_base_freq`, `rope_scaling`,
`sliding_window_pattern`. hidden, ffn and heads * head_dim are multiples of 32, so that every matrix
has whole Q8_0 blocks in its rows.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights

NEWLINES, BEGIN, END, IMAGE = 64, 65, 66, 67  # special tokens, behind those of text
SPECIAL = {
    "\n\n": NEWLINES,
    "<start_of_image>": BEGIN,
    "<end_of_image>": END,
    "<image_soft_token>": IMAGE,
}


def text(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "final_logit_softcapping": None,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 32,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 68,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def vision(tokens: int, seen: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A model with images of 24 x 24 pixels, 6 x 6 patches."""
    config = text(**changes)
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": BEGIN,
        "eoi_token_index": END,
        "image_token_index": IMAGE,
        "mm_tokens_per_image": tokens,
        "text_config": {k: v for k, v in config.items() if k != "architectures"},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vision_config": {
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 64,
            "image_size": 24,
            "intermediate_size": 96,
            "layer_norm_eps": 1e-6,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "patch_size": 4,
            "vision_use_head": False,
            **(seen or {}),
        },
    }


PROMPT, LENGTHS = 32, dict[str, int]()
MARGIN = 0.2  # logits are larger than llama's, and layers with more norms round more

CASES: dict[str, dict[str, Any]] = {
    # The pattern of the released models: the 6th layer is global, the 7th local again.
    "every_6th": text(sliding_window_pattern=..., num_hidden_layers=7),
    # A window longer than any prompt, and no global layer but the third.
    "every_3rd": text(sliding_window_pattern=3, sliding_window=256, num_key_value_heads=1),
    "window_1": text(sliding_window=1, num_hidden_layers=3),
    # As from 4B on: positions of global layers are divided by 8, those of local ones are not.
    "linear_rope": text(rope_scaling={"factor": 8.0, "rope_type": "linear"}),
    "softcap": text(final_logit_softcapping=6.0),
    # As in 27B: queries are scaled by 1/sqrt(hidden / heads), which is not 1/sqrt(head_dim).
    "scaled_queries": text(query_pre_attn_scalar=16),
    # An epsilon large enough to be seen, layers listed by kind, an output of its own.
    "untied": text(
        tie_word_embeddings=False,
        rms_norm_eps=1e-2,
        sliding_window_pattern=...,
        layer_types=["full_attention", *["sliding_attention"] * 2, "full_attention"],
    ),
    "images": vision(9, {"layer_norm_eps": 1e-2}, sliding_window=16),
    # Images longer than the window: their rows see later ones of the same image, whatever the
    # distance, but no row further back than the window.
    "long_images": vision(9, sliding_window=4, rope_scaling={"factor": 8.0, "rope_type": "linear"}),
    "large_pool": vision(4, {"num_hidden_layers": 3, "num_attention_heads": 2}),
}
SEEING = ("images", "long_images", "large_pool")
TOKENS = dict.fromkeys(SEEING, NEWLINES)
PICTURES = {case: {name: ((1, 3, 24, 24), {}) for name in ("red", "blue")} for case in SEEING}
ASKED: dict[str, list[int | str]] = {
    "start": ["red", 6],
    "middle": [7, "red", 5],
    "end": [9, "blue"],
    "two": [4, "red", 3, "blue", 4],
    "adjacent": [5, "blue", "red", 2],
}
PROMPTS = dict.fromkeys(SEEING, ASKED)
# Right behind the image this model goes on with the last token of it, again and again.
PROMPTS["long_images"] = ASKED | {"end": [9, "blue", 1]}

# Texts shorter and longer than the window, which reaches 4 tokens to either side.
EMBEDDINGS: dict[str, Any] = {
    "embedding": (
        text(
            architectures=["Gemma3TextModel"],
            use_bidirectional_attention=True,
            num_hidden_layers=7,
            sliding_window=8,
            sliding_window_pattern=...,
        ),
        {"2_Dense.linear.weight": (128, 64), "3_Dense.linear.weight": (64, 128)},
        [3, 1, 30, 17],
    ),
    "embedding_alone": (
        text(architectures=["Gemma3TextModel"], use_bidirectional_attention=True),
        {},
        [12, 5],
    ),
}


# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = dict.fromkeys([*CASES, *EMBEDDINGS], 1e-6)


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but norms that multiply by 1 + weight have weights around 0, and embeddings,
    which are multiplied by sqrt(hidden), are smaller: a tied head would repeat the last token. The
    last norm makes up for that in the logits."""
    values = weights.weight(name, shape)
    if name.endswith("embed_tokens.weight"):
        return np.float32(1 / 8) * values
    if name.endswith("model.norm.weight"):
        return np.float32(4) * values
    return values - np.float32(1) if "norm" in name and "vision_tower" not in name else values


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [NEWLINES, BEGIN, *[IMAGE] * config["mm_tokens_per_image"], END, NEWLINES]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {
        "pixel_values": np.concatenate([picture.pixels for picture in pictures]),
        "token_type_ids": (np.array([ids]) == IMAGE).astype(np.int64),
    }


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.get_image_features(inputs["pixel_values"]).pooler_output[0]


def embed(states: Any, layers: dict[str, Any]) -> Any:
    """The mean of all tokens, then the dense layers (sentence-transformers' modules)."""
    vector = states.mean(0)
    for weight in layers.values():
        vector = weight @ vector
    return vector


# Preparation stretches each picture to a square.
PICTURED = {
    "wide": ("<start_of_image>", 61, 37),
    "high": ("<start_of_image>", 30, 71),
    "small": ("<start_of_image>", 5, 13),
    "exact": ("<start_of_image>", 24, 24),
}
FILES = {"images": PICTURED}
NAMED = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    side = config["vision_config"]["image_size"]
    means = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.27, 0.26, 0.28]}
    images = transformers.Gemma3ImageProcessor(size={"height": side, "width": side}, **means)
    return transformers.Gemma3Processor(
        tokenizer=tokenizer,
        image_processor=images,
        image_seq_length=config["mm_tokens_per_image"],
    )


# Numbers that no case can see.
UNSEEN = {
    "v.blk.*.attn_k.bias": "it adds the same to all scores of a query, which softmax takes off",
}
