"""The tiny Llama 4 models of the goldens, as the config.json a checkpoint would have.

Text-only ones are spelt as those in the wild: `rope_theta` and `rope_scaling` at the top. Sizes are
multiples of 32, so that every matrix has whole Q8_0 blocks in its rows. Chunks, the interval of
layers without rope and the floor of temperature tuning are small enough for a prompt to go beyond
them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights

START, END, ACROSS, DOWN, IMAGE, PATCH = range(64, 70)  # special tokens, behind those of text
SPECIAL = {
    "<|image_start|>": START,
    "<|image_end|>": END,
    "<|tile_x_separator|>": ACROSS,
    "<|tile_y_separator|>": DOWN,
    "<|image|>": IMAGE,
    "<|patch|>": PATCH,
}
CLASSES = 4  # of tokens, by the experts they prefer
SIDE = 24  # of a tile: 6 x 6 patches of 4 x 4 pixels, of which 3 x 3 rows come


def text(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 8,
        "attn_scale": 0.5,
        "attn_temperature_tuning": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "floor_scale": 4,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 64,
        "intermediate_size_mlp": 96,
        "max_position_embeddings": 128,
        "no_rope_layers": [1, 0, 1],
        "num_attention_heads": 4,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_qk_norm": True,
        "vocab_size": 72,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def vision(seen: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The same with images."""
    config = text(**changes)
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "boi_token_index": START,
        "eoi_token_index": END,
        "image_token_index": PATCH,
        "text_config": {k: v for k, v in config.items() if k != "architectures"},
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": {
            "hidden_act": "gelu",
            "hidden_size": 32,
            "image_size": SIDE,
            "intermediate_size": 128,  # that of an adapter's input too: hidden * 2 * 2
            "model_type": "llama4_vision_model",
            "norm_eps": 1e-5,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "patch_size": 4,
            "pixel_shuffle_ratio": 0.5,
            "projector_input_dim": 96,
            "projector_output_dim": 96,
            "rope_theta": 100.0,
            "vision_output_dim": 96,
            **(seen or {}),
        },
    }


PROMPT = 20
LENGTHS = {"interleaved": 32, "llama3_rope": 40}

CASES: dict[str, dict[str, Any]] = {
    # As Scout: experts in every layer, every 4th without rope; the list may be empty.
    "every_layer": text(no_rope_layers=[], num_hidden_layers=4, num_key_value_heads=1),
    # As Maverick: experts in every other layer, no norm of queries and keys.
    "interleaved": text(
        interleave_moe_layer_step=2,
        num_hidden_layers=4,
        no_rope_layers=[1, 0, 1, 0],
        use_qk_norm=False,
    ),
    "two_experts": text(num_experts_per_tok=2, no_rope_layers=[1, 0], num_hidden_layers=2),
    # A chunk longer than the prompt, no tuning, and an epsilon large enough to be seen.
    "untuned": text(attention_chunk_size=64, attn_temperature_tuning=False, rms_norm_eps=1e-2),
    # Scout's kind of scaling: between low and high there is nothing to blend.
    "llama3_rope": text(
        rope_theta=500000.0,
        rope_scaling={
            "factor": 8.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_type": "llama3",
        },
    ),
    "images": vision(num_hidden_layers=4, interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1, 0]),
    # Values of the released models that files by llama.cpp's converter leave out; small, since such
    # files are kept (converted/).
    "released": vision(
        {"num_hidden_layers": 3, "rope_theta": 10000.0},
        attention_chunk_size=8192,
        attn_scale=0.1,
        floor_scale=8192,
        head_dim=16,
        hidden_size=32,
        interleave_moe_layer_step=2,
        intermediate_size=32,
        intermediate_size_mlp=64,
        no_rope_layers=[],
        num_hidden_layers=4,
        num_key_value_heads=1,
    ),
}
TOKENS = dict.fromkeys(CASES, START)
ONE = ((1, 3, SIDE, SIDE), {"aspect_ratio": [1, 1]})
WIDE = ((3, 3, SIDE, SIDE), {"aspect_ratio": [1, 2]})
FOUR = ((5, 3, SIDE, SIDE), {"aspect_ratio": [2, 2]})
PICTURES = {"images": {"one": ONE, "wide": WIDE, "four": FOUR}, "released": {"wide": WIDE}}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    "images": {
        "start": ["one", 6],
        "middle": [7, "four", 5],
        "end": [5, "one"],
        "two": [4, "wide", 3, "one", 4],
    },
    "released": {"middle": [4, "wide", 5]},
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but experts are stored [experts, in, out], and no router is near a tie.

    For that the first elements of an embedding say which expert a token prefers (images: the
    first); layers leave them alone, and routers read nothing else.
    """
    values = weights.weight(name, shape)
    if ".experts." in name:
        values *= np.float32(np.sqrt(shape[2]))
    if "embed_tokens" in name:
        values[:, :CLASSES] = 4 * np.eye(CLASSES)[np.arange(shape[0]) % CLASSES]
    elif "vision" not in name and name.endswith(("o_proj.weight", "down_proj.weight")):
        values[:CLASSES] = 0
    elif "multi_modal_projector" in name:
        values[:CLASSES] = 0
        values[0] = 0.25  # of what GELU gives, which is positive on the whole
    elif "lm_head" in name:
        values *= np.float32(2)  # a clearer choice, too
        values[:, :CLASSES] = 0
    elif name.endswith("experts.down_proj"):
        values[..., :CLASSES] = 0
    elif ".router." in name:
        order = np.subtract.outer(np.arange(shape[0]), np.arange(CLASSES)) % CLASSES
        values[:, :CLASSES] = values[:, :CLASSES] / 4 + np.float32(0.5) - order / 4
        values[:, CLASSES:] = 0
    return values


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    rows, columns = picture.data["aspect_ratio"]
    tile = [PATCH] * 9
    ids = [START]
    if rows * columns > 1:
        for _ in range(rows):
            for column in range(columns):
                ids += [*tile, ACROSS if column < columns - 1 else DOWN]
    return [*ids, IMAGE, *tile, END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"pixel_values": np.concatenate([picture.pixels for picture in pictures])}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    seen = model.get_image_features(pixel_values=inputs["pixel_values"]).last_hidden_state
    return model.multi_modal_projector(seen.flatten(0, 1))


# One tile, several with black to the right or below, more than there may be.
FILES = {
    "images": {
        "small": ("<|image|>", 13, 10),
        "wide": ("<|image|>", 61, 27),
        "high": ("<|image|>", 30, 71),
        "large": ("<|image|>", 90, 80),
        "square": ("<|image|>", 30, 31),
    }
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    images = transformers.Llama4ImageProcessor(
        size={"height": SIDE, "width": SIDE},
        max_patches=4,
        image_mean=[0.5, 0.45, 0.4],
        image_std=[0.27, 0.26, 0.28],
    )
    return transformers.Llama4Processor(
        tokenizer=tokenizer,
        image_processor=images,
        patch_size=config["vision_config"]["patch_size"],
        pixel_shuffle_ratio=config["vision_config"]["pixel_shuffle_ratio"],
    )


# Numbers that no case can see.
UNSEEN = {
    "value_dim": "other programs ask for it; the tensors tell the same",
}
# Numbers to which a model that is right does not follow transformers.
UNFOLLOWED = {"llama3_rope.rope_scaling.low_freq_factor": "it is above the high one then"}
