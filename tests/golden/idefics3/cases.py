"""The tiny models of Idefics3's goldens, as the config.json of a checkpoint: Idefics3 8B,
Granite-Docling and SmolVLM, whose keys they spell."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

IMAGE, FAKE, WHOLE, BREAK, BREAKS, FIRST = 80, 81, 82, 83, 84, 85  # behind the tokens of text
GRID = (2, 3)  # of the largest picture here
TILES = [f"<row_{r + 1}_col_{c + 1}>" for r in range(GRID[0]) for c in range(GRID[1])]
SPECIAL = {
    "<image>": IMAGE,
    "<fake_token_around_image>": FAKE,
    "<global-img>": WHOLE,
    "\n": BREAK,
    "\n\n": BREAKS,  # one token, as in published vocabularies
    **{name: FIRST + i for i, name in enumerate(TILES)},
}
# The text of a video, each part one token here.
MOMENTS = {0.0: "\nFrame from 00:00:", 1.5: "\nFrame from 00:01:", 61.0: "\nFrame from 01:01:"}
WATCHED = {
    "You are provided the following series of three frames from a 0:01:02 [H:MM:SS] video.\n": 7,
    **{text: 8 + i for i, text in enumerate(MOMENTS.values())},
}
SPECIAL |= WATCHED
SPECIAL |= {f"<row_3_col_{column}>": 90 + column for column in (1, 2, 3)}


def text(**changes: Any) -> dict[str, Any]:
    config = {
        "attention_bias": False,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 273768.0,
        "use_cache": True,
        "vocab_size": 96,
    }
    return {**config, **changes}


def tower(**changes: Any) -> dict[str, Any]:
    config = {
        "attention_dropout": 0.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "image_size": 26,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "layer_norm_eps": 1e-06,
        "model_type": "idefics3_vision",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "patch_size": 4,
    }
    return {**config, **changes}


def idefics3(
    vision: dict[str, Any] | None = None, said: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "image_token_id": IMAGE,
        "model_type": "idefics3",
        "scale_factor": 2,
        "text_config": text(**changes),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": tower(**(vision or {})),
        **(said or {}),
    }


CASES: dict[str, dict[str, Any]] = {
    "tiles": idefics3(),
    # As Granite-Docling: the head is the embedding, and a tile has fewer rows.
    "docling": idefics3(
        {
            "image_size": 32,
            "max_image_size": {"longest_edge": 32},
            "size": {"longest_edge": 60},
            "use_base_siglip": True,
        },
        {"scale_factor": 4, "tie_word_embeddings": True},
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    ),
    "smolvlm": idefics3(
        {"image_size": 27, "patch_size": 3, "model_type": "smolvlm_vision"},
        {
            "architectures": ["SmolVLMForConditionalGeneration"],
            "model_type": "smolvlm",
            "scale_factor": 3,
            "tie_word_embeddings": False,
        },
        num_key_value_heads=4,
        rope_theta=130000,
    ),
}
PROMPT = 24
# GELU by tanh is a table of F16 in ggml, as in Gemma 3's goldens; by numpy the difference is 1e-12.
BOUNDS = dict.fromkeys(CASES, 1e-6)
MARGIN = 0.01  # prompts with many tiles change slowly: few have a larger one
TOKENS = dict.fromkeys(CASES, IMAGE)


def _picture(case: str, rows: int, columns: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    side = CASES[case]["vision_config"]["image_size"]
    return (rows * columns + 1, 3, side, side), {"grid": [rows, columns]}


PICTURES: dict[str, dict[str, Any]] = {
    "smolvlm": {
        "wide": _picture("smolvlm", 1, 2),
        "clip": ((3, 3, 27, 27), {"times": list(MOMENTS), "seconds": 62.9}, "video"),
    },
    "docling": {"page": _picture("docling", 2, 1)},
    "tiles": {
        "small": _picture("tiles", 0, 0),
        "wide": _picture("tiles", 1, 2),
        "high": _picture("tiles", 2, 1),
        "large": _picture("tiles", *GRID),
    },
}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    "docling": {"page": [5, "page", 4]},
    "tiles": {
        "middle": [5, "small", 4],
        "two": [3, "high", 2, "wide", 4],
        "large": [2, "large", 3],
    },
    "smolvlm": {
        "middle": [5, "wide", 4],
        "watched": [3, "clip", 4],
        "both": [3, "wide", 4, "clip", 2],
    },
}


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    vision = config["vision_config"]
    side = vision["image_size"] // vision["patch_size"] // config["scale_factor"]
    image = [IMAGE] * side**2
    if picture.kind == "video":
        begin, *moments = WATCHED.values()
        frames = [id for moment in moments for id in (moment, FAKE, WHOLE, *image, FAKE)]
        return [begin, *frames, BREAKS]
    rows, columns = picture.data["grid"]
    found: list[int] = []
    for row in range(rows):
        for column in range(columns):
            tile = SPECIAL[f"<row_{row + 1}_col_{column + 1}>"]
            found += [FAKE, tile, *image]
        found += [BREAK if row < rows - 1 else BREAKS]
    return [*found, FAKE, WHOLE, *image, FAKE]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"pixel_values": np.concatenate([picture.pixels for picture in pictures])[None]}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.model.get_image_features(inputs["pixel_values"]).pooler_output[0]


# The longer side becomes 60, and both whole tiles; the tiles have other proportions then.
FILES = {
    case: {
        "wide": ("<image>", 61, 37),
        "high": ("<image>", 30, 71),
        "narrow": ("<image>", 5, 40),
    }
    for case in CASES
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    """With the processors on Pillow, whose Lanczos these models were trained with: torchvision's
    differs by up to 28 levels where it reduces."""
    smolvlm = transformers.models.smolvlm.image_processing_pil_smolvlm
    idefics3 = transformers.models.idefics3.image_processing_pil_idefics3
    vision = config["vision_config"]
    side = vision["image_size"]
    options = {
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": 60},
        "image_mean": [0.5, 0.45, 0.4],
        "image_std": [0.27, 0.26, 0.28],
    }
    rows = (side // vision["patch_size"] // config["scale_factor"]) ** 2
    if config["model_type"] == "smolvlm":
        return transformers.SmolVLMProcessor(
            tokenizer=tokenizer,
            image_processor=smolvlm.SmolVLMImageProcessorPil(**options),
            video_processor=transformers.SmolVLMVideoProcessor(**options),
            image_seq_len=rows,
        )
    images = idefics3.Idefics3ImageProcessorPil(**options)
    return transformers.Idefics3Processor(
        tokenizer=tokenizer, image_processor=images, image_seq_len=rows
    )


# Numbers that no case can see.
UNSEEN = {
    "v.blk.*.attn_k.bias": "it adds the same to all scores of a query, which softmax takes off",
    "longest": "goldens are given prepared pixels; the sizes are tested with the preparation",
    "video_max_frames": "goldens are given chosen frames",
}
