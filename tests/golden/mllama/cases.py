"""The tiny Llama 3.2 Vision models of the goldens, as the config.json a checkpoint would have.

Two spots of transformers 5.23 are put right before anything is computed (`adjust`):

- The projector reads, beside the tower's result, the states that *enter* the layers listed in
  `intermediate_layers_indices`. So does the original release, and so did transformers up to 4.51;
  5.23 collects those that leave them.
- A row that sees no image gets nothing from a cross-attention layer. The original multiplies what
  attention gives it by zero, and what the MLP gives; transformers only the latter: with its mask
  such a row attends to all images, those behind it included, and its result would depend on whether
  an image comes later in the same batch.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

VOCABULARY = 96
IMAGE = VOCABULARY  # the first of the 8 rows that only the token embedding has
SPECIAL = {"<|image|>": IMAGE}
GRIDS = [
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (2, 1),
    (2, 2),
    (3, 1),
    (4, 1),
]  # rows and columns of tiles


def mllama(
    seen: dict[str, Any] | None = None, side: int = 12, tiles: int = 4, **changes: Any
) -> dict[str, Any]:
    """A model whose tiles have side x side pixels, in patches of 4 x 4."""
    vision = {
        "attention_heads": 4,
        "hidden_act": "gelu",
        "hidden_size": 32,
        "image_size": side,
        "intermediate_layers_indices": [1, 2],
        "intermediate_size": 64,
        "max_num_tiles": tiles,
        "model_type": "mllama_vision_model",
        "norm_eps": 1e-5,
        "num_channels": 3,
        "num_global_layers": 2,
        "num_hidden_layers": 3,
        "patch_size": 4,
        "supported_aspect_ratios": [[r, c] for r, c in GRIDS if r * c <= tiles],
        **(seen or {}),
    }
    vision["vision_output_dim"] = vision["hidden_size"] * (
        1 + len(vision["intermediate_layers_indices"])
    )
    text = {
        "bos_token_id": 1,
        "cross_attention_layers": [1, 3],
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "model_type": "mllama_text_model",
        "num_attention_heads": 4,
        "num_hidden_layers": 5,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 16,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        **changes,
    }
    return {
        "architectures": ["MllamaForConditionalGeneration"],
        "image_token_index": IMAGE,
        "model_type": "mllama",
        "text_config": text,
        "torch_dtype": "float32",
        "vision_config": vision,
    }


PROMPT = 32
LENGTHS: dict[str, int] = {}

CASES: dict[str, dict[str, Any]] = {
    "images": mllama(),
    # The last layer attends to images; epsilons large enough to be seen; two tiles at most.
    "last_is_cross": mllama(
        {"norm_eps": 1e-2, "num_global_layers": 1},
        tiles=2,
        cross_attention_layers=[0, 3],
        num_hidden_layers=4,
        num_key_value_heads=4,
        rms_norm_eps=1e-2,
        rope_scaling=None,
    ),
    # The input of the first layer is read, too; neighbours attend to images.
    "more_states": mllama(
        {"intermediate_layers_indices": [0, 2, 3], "num_hidden_layers": 4, "attention_heads": 2},
        side=16,
        cross_attention_layers=[1, 2],
        num_hidden_layers=4,
        num_key_value_heads=1,
    ),
}

Pictures = dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]]


def pictures(case: str, **ratios: int) -> Pictures:
    """Images by name, given how their tiles lie."""
    vision = CASES[case]["vision_config"]
    grids, side = vision["supported_aspect_ratios"], vision["image_size"]
    return {
        name: ((int(np.prod(grids[ratio - 1])), 3, side, side), {"aspect_ratio_id": ratio})
        for name, ratio in ratios.items()
    }


PICTURES: dict[str, Pictures] = {
    "images": pictures("images", one=1, square=6, high=7),
    "last_is_cross": pictures("last_is_cross", one=1, square=2, high=3),
    "more_states": pictures("more_states", one=1, square=6, high=2),
}
ASKED: dict[str, list[int | str]] = {
    "start": ["one", 6],
    "middle": [7, "square", 5],
    "end": [9, "high"],
    "separate": [4, "one", 3, "square", 4],
    "adjacent": [5, "high", "one", 3],
    "many": ["square", 2, "one", "high", 3, "square", 2],
}
PROMPTS = dict.fromkeys(CASES, ASKED)


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [IMAGE]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    from transformers.models.mllama import (  # type: ignore[import-not-found]
        processing_mllama as reference,
    )

    most = config["vision_config"]["max_num_tiles"]
    used = [len(picture.pixels) for picture in pictures]
    pixels = np.zeros((1, len(used), most, *pictures[0].shape[1:]), np.float32)
    for i, picture in enumerate(pictures):
        pixels[0, i, : used[i]] = picture.pixels
    seen = reference.get_cross_attention_token_mask(ids, IMAGE)
    return {
        "pixel_values": pixels,
        "aspect_ratio_ids": np.array([[p.data["aspect_ratio_id"] for p in pictures]]),
        "aspect_ratio_mask": (np.arange(most) < np.array(used)[:, None])[None].astype(np.int64),
        "cross_attention_mask": reference.convert_sparse_cross_attention_mask_to_dense(
            [seen], [used], most, len(ids)
        ),
    }


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    keys = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
    states = model.model.vision_model(**{key: inputs[key] for key in keys}).last_hidden_state
    return model.model.multi_modal_projector(states).flatten(0, -2)


def adjust(model: Any) -> None:
    def entering(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        output.hidden_states = (args[0], *output.hidden_states[:-1])
        return output

    model.model.vision_model.transformer.register_forward_hook(entering)
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            _silence_rows_without_images(layer)


def _silence_rows_without_images(layer: Any) -> None:
    sees: list[Any] = []  # of the rows of the forward under way: 1 or 0

    def note(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        sees[:] = [options["full_text_row_masked_out_mask"][:, 0]]

    def silence(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        return output[0] * sees[0], *output[1:]

    layer.register_forward_pre_hook(note, with_kwargs=True)
    layer.cross_attn.register_forward_hook(silence)


# One tile, several with black to the right or below, more than there may be.
FILES = {
    "images": {
        "small": ("<|image|>", 9, 7),
        "wide": ("<|image|>", 61, 27),
        "high": ("<|image|>", 10, 31),
        "large": ("<|image|>", 40, 45),
        "square": ("<|image|>", 15, 14),
    }
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    tokenizer.bos_token = "w1"
    side = config["vision_config"]["image_size"]
    images = transformers.MllamaImageProcessor(
        size={"height": side, "width": side},
        max_image_tiles=config["vision_config"]["max_num_tiles"],
        image_mean=[0.5, 0.45, 0.4],
        image_std=[0.27, 0.26, 0.28],
    )
    return transformers.MllamaProcessor(image_processor=images, tokenizer=tokenizer)
