"""The configurations of the gemma4 golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights

BEGIN, IMAGE, END = 64, 65, 66  # special tokens, behind those of text
SOUND_BEGIN, SOUND, SOUND_END = 67, 68, 69
SPECIAL = {
    "<|image>": BEGIN,
    "<|image|>": IMAGE,
    "<image|>": END,
    "<|audio>": SOUND_BEGIN,
    "<|audio|>": SOUND,
    "<audio|>": SOUND_END,
}
LOCAL, FULL = "sliding_attention", "full_attention"


def gemma4(**changes: Any) -> dict[str, Any]:
    """The text of Gemma 4 E2B as it is published."""
    config = {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": False,
        "bos_token_id": 2,
        "dtype": "float32",
        "enable_moe_block": False,
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 64,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "hidden_size_per_layer_input": 32,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "layer_types": [LOCAL, LOCAL, FULL, LOCAL, LOCAL, FULL],
        "max_position_embeddings": 128,
        "moe_intermediate_size": None,
        "num_attention_heads": 4,
        "num_experts": None,
        "num_global_key_value_heads": None,
        "num_hidden_layers": 6,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 3,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "top_k_experts": None,
        "use_bidirectional_attention": None,
        "use_cache": True,
        "use_double_wide_mlp": True,
        "vocab_size": 64,
        "vocab_size_per_layer_input": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def large(**changes: Any) -> dict[str, Any]:
    """As the larger ones: no embedding for each layer, nothing shared, values that are keys."""
    usual: dict[str, Any] = {
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "layer_types": [LOCAL, LOCAL, FULL],
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
    }
    return gemma4(**{**usual, **changes})


def seeing(
    text: dict[str, Any], seen: dict[str, Any] | None = None, tokens: int = 68, **changes: Any
) -> dict[str, Any]:
    """A model with images of up to 6 squares of 2 x 2 patches of 4 x 4 pixels, as it is published
    but for the tower of sounds."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "audio_config": None,
        "boi_token_id": BEGIN,
        "dtype": "float32",
        "eoi_token_id": END,
        "image_token_id": IMAGE,
        "text_config": {
            **{k: v for k, v in text.items() if k != "architectures"},
            "vocab_size": tokens,
            "vocab_size_per_layer_input": tokens,
        },
        "tie_word_embeddings": True,
        "vision_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "default_output_length": 6,
            "dtype": "float32",
            "global_head_dim": 16,
            "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 131072,
            "model_type": "gemma4_vision",
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 16,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"},
            "standardize": False,
            "use_clipped_linears": True,
            **(seen or {}),
        },
        "vision_soft_tokens_per_image": 6,
        **changes,
    }


def hearing(**changes: Any) -> dict[str, Any]:
    """The encoder of sounds as it is published."""
    return {
        "attention_chunk_size": 4,
        "attention_context_left": 5,
        "attention_context_right": 0,
        "attention_invalid_logits_value": -1e9,
        "attention_logit_cap": 50.0,
        "conv_kernel_size": 5,
        "dtype": "float32",
        "gradient_clipping": 10000000000.0,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "model_type": "gemma4_audio",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "output_proj_dims": 48,
        "residual_weight": 0.5,
        "rms_norm_eps": 1e-6,
        "subsampling_conv_channels": [16, 4],
        "use_clipped_linears": True,
        **changes,
    }


EXPERTS = {
    "enable_moe_block": True,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "top_k_experts": 2,
}

PROMPT = 32
MARGIN = 0.1

CASES: dict[str, dict[str, Any]] = {
    "published": gemma4(),
    # As 31B.
    "dense": large(),
    # As 26B: experts beside the dense path.
    "experts": large(**EXPERTS, layer_types=[LOCAL, FULL], num_hidden_layers=2),
    "images": seeing(gemma4()),
    # Rows of an image see each other in local layers; the tower's results are standardised. An
    # output of its own.
    "images_dense": seeing(
        large(tie_word_embeddings=False, use_bidirectional_attention="vision"),
        {"standardize": True, "use_clipped_linears": False, "rms_norm_eps": 1e-3},
        tie_word_embeddings=False,
    ),
    "sounds": seeing(
        gemma4(tie_word_embeddings=False),
        tokens=72,
        audio_config=hearing(),
        audio_token_id=SOUND,
        boa_token_id=SOUND_BEGIN,
        eoa_token_index=SOUND_END,
        tie_word_embeddings=False,
    ),
    # Linear maps without bounds; an epsilon and a cap that are seen; another activation.
    "sounds_plain": seeing(
        large(tie_word_embeddings=False),
        tokens=72,
        audio_config=hearing(
            attention_chunk_size=2,
            attention_context_left=3,
            attention_logit_cap=3.0,
            conv_kernel_size=3,
            hidden_act="gelu_pytorch_tanh",
            num_attention_heads=2,
            num_hidden_layers=1,
            residual_weight=0.25,
            rms_norm_eps=0.05,
            subsampling_conv_channels=[8, 4],
            use_clipped_linears=False,
        ),
        audio_token_id=SOUND,
        boa_token_id=SOUND_BEGIN,
        eoa_token_index=SOUND_END,
        tie_word_embeddings=False,
    ),
    # Ropes and kinds of layers by default: one global layer, the last. All of a head rotates; heads
    # of one size; an epsilon large enough to be seen; an output of its own and no cap.
    "untied": gemma4(
        final_logit_softcapping=None,
        global_head_dim=32,
        layer_types=...,
        num_hidden_layers=3,
        num_key_value_heads=2,
        num_kv_shared_layers=0,
        rms_norm_eps=1e-2,
        rope_parameters={
            "full_attention": {"rope_theta": 100000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        tie_word_embeddings=False,
    ),
}

SEEING = ("images", "images_dense")
HEARING = ("sounds", "sounds_plain")
TOKENS = dict.fromkeys((*SEEING, *HEARING), BEGIN)
# Wide, high, the largest, and the smallest.
SIZES = {"wide": (16, 24), "high": (24, 8), "strip": (8, 48), "small": (8, 8)}
PICTURES: dict[str, dict[str, Any]] = {
    case: {name: ((1, 3, *size), {}) for name, size in SIZES.items()} for case in SEEING
}
FRAMES = {"long": 39, "short": 21, "dot": 1}
PICTURES["sounds"] = {name: ((n, 16), {}, "audio") for name, n in FRAMES.items()}
PICTURES["sounds"]["wide"] = ((1, 3, 16, 24), {})
PICTURES["sounds_plain"] = {"short": ((21, 8), {}, "audio")}
ASKED: dict[str, list[int | str]] = {
    "start": ["wide", 6],
    "middle": [7, "strip", 5],
    "end": [9, "high"],
    "two": [4, "wide", 3, "small", 4],
    "adjacent": [5, "high", "wide", 2],
}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    "images": ASKED,
    "images_dense": {k: ASKED[k] for k in ("middle", "adjacent")},
    "sounds": {
        "start": ["long", 6],
        "end": [9, "dot"],
        "two": [4, "long", 3, "short", 4],
        "seen": [4, "short", 2, "wide", 3],
    },
    "sounds_plain": {"middle": [7, "short", 5]},
}

# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = dict.fromkeys(CASES, 1e-6)

FACTORS = {
    "embed_tokens.weight": 1 / 16,
    "embed_tokens_per_layer.weight": 1 / 4,
    "q_norm.weight": 0.4,
    "k_norm.weight": 0.4,
    "post_feedforward_layernorm.weight": 1 / 2,
    "post_per_layer_input_norm.weight": 1 / 2,
    "model.norm.weight": 8,
    "language_model.norm.weight": 8,
    "router.proj.weight": 24,
}
# Maps behind gates and averages, whose inputs and results are small.
SMALL = ("ffw_layer_2", "linear_end", "self_attn.post", "o_proj", "down_proj")


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but embeddings, which are multiplied by the root of their width, are
    smaller: a tied head would repeat the last token. The last norm makes up for that. Scores are
    not scaled: norms of queries and keys do it, as in trained models. The feed-forward part and
    the layer's own embedding add less, so that rounding shows no more than in layers of other
    models. Routers divide by the root of the width, and are rarely near a tie. Scales are
    around one."""
    values = weights.weight(name, shape)
    if name.endswith(("put_min", "put_max")):  # bounds that some values exceed
        sign = np.float32(-1 if name.endswith("min") else 1)
        bound = np.float32(1 / 8 if any(part in name for part in SMALL) else 1)
        return np.array(sign * bound * (1 + np.abs(values)), np.float32)
    if name == "lm_head.weight":  # special tokens do not follow
        values[BEGIN:] *= np.float32(1 / 8)
    if "vision_tower" in name and name.endswith(("q_norm.weight", "k_norm.weight")):
        return np.float32(0.5) * values
    if name.endswith("std_scale"):
        return np.float32(1) + np.float32(0.2) * values
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return np.float32(1) + np.float32(0.2) * values
    for ending, factor in FACTORS.items():
        if name.endswith(ending):
            return np.float32(factor) * values
    return values


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    if picture.kind == "audio":
        return [SOUND_BEGIN, *[SOUND] * -(-picture.shape[0] // 4), SOUND_END]
    _, _, height, width = picture.shape
    return [BEGIN, *[IMAGE] * (width * height // 64), END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    seen = [picture for picture in pictures if picture.kind == "image"]
    found = {"mm_token_type_ids": (np.array([ids]) == IMAGE).astype(np.int64)}
    if len(seen) < len(pictures):
        found |= _sounds([picture for picture in pictures if picture.kind == "audio"])
    return found | (_pictures(config, seen) if seen else {})


def _sounds(sounds: list[Picture]) -> dict[str, NDArray[Any]]:
    """Filled up to the longest, as the feature extractor does."""
    most, mels = (max(sound.shape[i] for sound in sounds) for i in (0, 1))
    features = np.zeros((len(sounds), most, mels), np.float32)
    heard = np.zeros((len(sounds), most), bool)
    for i, sound in enumerate(sounds):
        features[i, : sound.shape[0]], heard[i, : sound.shape[0]] = sound.pixels, True
    return {"input_features": features, "input_features_mask": heard}


def _pictures(config: dict[str, Any], seen: list[Picture]) -> dict[str, NDArray[Any]]:
    most = config["vision_soft_tokens_per_image"] * 4
    patches = np.zeros((len(seen), most, 48), np.float32)
    places = np.full((len(seen), most, 2), -1)
    for i, picture in enumerate(seen):
        _, _, height, width = picture.shape
        rows, columns = np.indices((height // 4, width // 4)).reshape(2, -1)
        pixels = picture.pixels.reshape(3, height // 4, 4, width // 4, 4)
        patches[i, : len(rows)] = pixels.transpose(1, 3, 2, 4, 0).reshape(len(rows), -1)
        places[i, : len(rows)] = np.stack([columns, rows], -1)
    return {"image_position_ids": places, "pixel_values": patches}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    if "input_features" in inputs:
        given = inputs["input_features"], inputs["input_features_mask"]
        return model.model.get_audio_features(*given).pooler_output[0]
    seen = model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"])
    return seen.pooler_output[0]


# Enlarged and reduced to whole squares of patches; one narrower than a square.
FILES = {
    "images": {
        "wide": ("<|image|>", 61, 37),
        "high": ("<|image|>", 10, 23),
        "narrow": ("<|image|>", 5, 60),
        "small": ("<|image|>", 7, 6),
    },
    "sounds": {
        "long": ("<|audio|>", 4000),
        "short": ("<|audio|>", 1111),
        "wide": ("<|image|>", 40, 30),
    },
}
NAMED = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}


MELS = 16


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    reference = transformers.models.gemma4.image_processing_gemma4
    rows = config["vision_soft_tokens_per_image"]
    reference._SUPPORTED_SOFT_TOKENS = (rows,)  # those of the released models are more
    images = transformers.Gemma4ImageProcessor(
        patch_size=4, pooling_kernel_size=2, max_soft_tokens=rows
    )
    return transformers.Gemma4Processor(
        tokenizer=tokenizer,
        image_processor=images,
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(feature_size=MELS),
        video_processor=transformers.Gemma4VideoProcessor(),
    )


# Numbers that no case can see.
UNSEEN = {
    "a.blk.*.ffn_up*.output_m[ai][xn]": "the next map's limits are tighter, behind the gate",
    "blk.5.layer_output_scale.weight": "it is the last layer's: the norm behind takes it off",
    "soft_tokens": "goldens are given prepared pixels; the sizes are tested with the preparation",
}
# Numbers to which a model that is right does not follow transformers.
UNFOLLOWED = {"*.pad_token_id": "0 in every release: its row of the per-layer table is items'"}
