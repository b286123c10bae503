"""The configurations of the gemma3n golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights

# Tokens of text, the last ones special; from there on those of images and of sounds.
BREAKS, IMAGE_BEGIN, BEGIN, IMAGES, SOUNDS = 57, 58, 59, 64, 72
IMAGE, END, SOUND = IMAGES + 1, SOUNDS, SOUNDS + 1
SPECIAL = {
    "\n\n": BREAKS,
    "<start_of_image>": IMAGE_BEGIN,
    "<image_soft_token>": IMAGE,
    "<end_of_image>": IMAGES,
    "<start_of_audio>": BEGIN,
    "<audio_soft_token>": SOUND,
    "<end_of_audio>": END,
}
LOCAL, FULL = "sliding_attention", "full_attention"


def gemma3n(**changes: Any) -> dict[str, Any]:
    """The text of Gemma 3n E2B as it is published, with the keys that nobody reads. The
    last 8 tokens, of images and sounds, have no row of their own in each layer."""
    config = {
        "architectures": ["Gemma3nForCausalLM"],
        "model_type": "gemma3n_text",
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_lr_multiplier": 1.0,
        "altup_num_inputs": 4,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "hidden_size_per_layer_input": 32,
        "initializer_range": 0.02,
        "intermediate_size": [128] * 6,
        "laurel_rank": 32,
        "layer_types": [LOCAL, LOCAL, FULL, LOCAL, LOCAL, FULL],
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 3,
        "query_pre_attn_scalar": 32,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
        "vocab_size_per_layer_input": 56,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def _block(kind: str, channels: int, stride: int = 1, **changes: Any) -> dict[str, Any]:
    """A block of a network of timm."""
    usual = {"act_layer": None, "exp_ratio": 2.0, "noskip": False, "se_ratio": 0.0}
    return {"block_type": kind, "out_chs": channels, "stride": stride, **usual, **changes}


def _inverted(channels: int, stride: int, start: int, middle: int) -> dict[str, Any]:
    kernels = {"dw_kernel_size_start": start, "dw_kernel_size_mid": middle, "dw_kernel_size_end": 0}
    return _block("uir", channels, stride, **kernels)


# A MobileNet-v5 of few channels. timm builds it: the reference needs `pip install timm`.
STAGES = [
    [_block("er", 8, 2, exp_kernel_size=3, pw_kernel_size=1, force_in_chs=0)],
    [_inverted(8, 2, 3, 5)],
    [_inverted(16, 2, 5, 5)],
    [_inverted(16, 2, 5, 5)],
]


def _attention(channels: int, heads: int, stride: int) -> dict[str, Any]:
    sizes = {"key_dim": 16, "value_dim": 16, "num_heads": heads, "kv_stride": stride}
    found = _block("mqa", channels, dw_kernel_size=3, **sizes)
    return {key: value for key, value in found.items() if key not in ("exp_ratio", "se_ratio")}


# All kinds of blocks of the published network, in its order.
SEEN = [
    [_block("er", 24, 2, exp_kernel_size=3, pw_kernel_size=1, force_in_chs=0)] * 2,
    [_inverted(24, 2, 3, 5), _inverted(24, 1, 5, 0)],
    [_inverted(32, 2, 5, 5), _attention(32, 3, 2), _inverted(32, 1, 0, 0)],
    [_inverted(40, 2, 5, 5), _attention(40, 2, 1), _inverted(40, 1, 0, 0)],
]
SIDE = 64
# preprocessor_config.json, as it is published: nothing is normalized.
PREPARED = {
    "crop_size": None,
    "do_center_crop": None,
    "do_convert_rgb": None,
    "do_normalize": False,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessorFast",
    "image_seq_length": 4,
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": SIDE, "width": SIDE},
}


def hearing(
    text: dict[str, Any], heard: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """The whole of Gemma 3n as it is published: sounds of up to 6 rows, of 8 frames each."""
    text = {k: v for k, v in text.items() if k not in ("architectures", "torch_dtype")}
    return {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "audio_config": {
            "conf_attention_chunk_size": 4,
            "conf_attention_context_left": 5,
            "conf_attention_context_right": 0,
            "conf_attention_logit_cap": 50.0,
            "conf_conv_kernel_size": 5,
            "conf_num_attention_heads": 4,
            "conf_num_hidden_layers": 2,
            "conf_positional_bias_size": 256,
            "conf_reduction_factor": 2,
            "conf_residual_weight": 0.5,
            "gradient_clipping": 10000000000.0,
            "hidden_size": 32,
            "input_feat_size": 16,
            "model_type": "gemma3n_audio",
            "rms_norm_eps": 1e-06,
            "sscp_conv_channel_size": [8, 4],
            "sscp_conv_eps": 0.001,
            "sscp_conv_group_norm_eps": 0.001,
            "sscp_conv_kernel_size": [[3, 3], [3, 3]],
            "sscp_conv_stride_size": [[2, 2], [2, 2]],
            "torch_dtype": "float32",
            "vocab_offset": SOUNDS,
            "vocab_size": 8,
            **(heard or {}),
        },
        "audio_soft_tokens_per_image": 6,
        "audio_token_id": SOUND,
        "boa_token_id": BEGIN,
        "boi_token_id": IMAGE_BEGIN,
        "eoa_token_id": END,
        "eoi_token_id": IMAGES,
        "image_token_id": IMAGE,
        "initializer_range": 0.02,
        "text_config": {**text, "vocab_size": 80, "vocab_size_per_layer_input": 64},
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": {
            "architecture": "mobilenetv5_300m_enc",
            "do_pooling": False,
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "model_args": {"block_args": STAGES, "msfa_output_resolution": 2, "stem_size": 8},
            "model_type": "gemma3n_vision",
            "num_classes": 2,
            "rms_norm_eps": 1e-06,
            "torch_dtype": "float32",
            "vocab_offset": IMAGES,
            "vocab_size": 8,
        },
        "vision_soft_tokens_per_image": 4,
        **changes,
    }


def seeing(text: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same with images of 64 x 64 pixels. Their size stands in a file beside config.json."""
    config = hearing(text, **changes)
    network = {"block_args": SEEN, "msfa_output_resolution": 2, "stem_size": 24}
    config["vision_config"]["model_args"] = network
    return {**config, "preprocessor:": PREPARED}


PROMPT, LENGTHS = 32, dict[str, int]()
MARGIN = 0.1

CASES: dict[str, dict[str, Any]] = {
    "published": gemma3n(),
    # Nothing shared, and no activation dropped; three streams, of which the second is computed
    # with; an epsilon large enough to be seen, a cap that flattens logits, local layers by default.
    "plain": gemma3n(
        activation_sparsity_pattern=...,
        altup_active_idx=1,
        altup_num_inputs=3,
        final_logit_softcapping=6.0,
        intermediate_size=128,
        layer_types=...,
        num_hidden_layers=5,
        num_kv_shared_layers=0,
        rms_norm_eps=1e-2,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
    ),
    # An output of its own; the last layer local and shared; widths and shares by layer.
    "untied": gemma3n(
        activation_sparsity_pattern=[0.5, 0.8, 0.0, 0.9],
        altup_num_inputs=2,
        intermediate_size=[96, 128, 64, 192],
        layer_types=[FULL, LOCAL, FULL, LOCAL],
        num_hidden_layers=4,
        num_key_value_heads=1,
        num_kv_shared_layers=2,
        tie_word_embeddings=False,
        vocab_size_per_layer_input=64,
    ),
    "sounds": hearing(gemma3n()),
    # Rows see some ahead of them, and more behind than a chunk has; epsilons large enough to be
    # seen, a cap that flattens scores.
    "sounds_ahead": hearing(
        gemma3n(num_kv_shared_layers=0),
        {
            "conf_attention_chunk_size": 2,
            "conf_attention_context_left": 4,
            "conf_attention_context_right": 2,
            "conf_attention_logit_cap": 4.0,
            "conf_conv_kernel_size": 3,
            "conf_num_attention_heads": 2,
            "conf_num_hidden_layers": 1,
            "conf_reduction_factor": 1,
            "conf_residual_weight": 0.25,
            "input_feat_size": 9,
            "rms_norm_eps": 0.05,
            "sscp_conv_group_norm_eps": 0.1,
        },
        audio_soft_tokens_per_image=9,
    ),
    "images": seeing(gemma3n()),
}

HEARING, SEEING = ("sounds", "sounds_ahead"), ("images",)
TOKENS = dict.fromkeys((*HEARING, *SEEING), BREAKS)


def _sound(case: str, frames: int) -> tuple[tuple[int, ...], dict[str, Any], str]:
    return (frames, CASES[case]["audio_config"]["input_feat_size"]), {}, "audio"


# All rows, and some that tokens fill up.
PICTURES: dict[str, dict[str, tuple[Any, ...]]] = {
    "sounds": {n: _sound("sounds", f) for n, f in {"full": 45, "short": 21, "dot": 1}.items()},
    "sounds_ahead": {n: _sound("sounds_ahead", f) for n, f in {"full": 35, "short": 22}.items()},
    "images": {
        **{name: ((1, 3, SIDE, SIDE), {}) for name in ("red", "blue")},
        "short": _sound("images", 21),
    },
}
PROMPTS: dict[str, dict[str, list[int | str]]] = {
    "sounds": {
        "start": ["full", 6],
        "middle": [7, "short", 5],
        "end": [9, "dot"],
        "two": [4, "short", 3, "short", 4],
        "adjacent": [5, "full", "full", 2],
    },
    "sounds_ahead": {"middle": [7, "short", 5], "two": [4, "full", 3, "full", 2]},
    "images": {
        "start": ["red", 6],
        "middle": [7, "red", 5],
        "end": [9, "blue"],
        "two": [4, "red", 3, "blue", 4],
        "heard": [3, "blue", 4, "short", 2],
    },
}

# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = dict.fromkeys(CASES, 1e-6)
BOUNDS["images"] = 5e-6  # the encoder has 13 of them behind one another, between norms


FACTORS = {
    "embed_tokens.weight": 1 / 8,
    "embed_tokens_per_layer.weight": 1 / 4,
    "q_norm.weight": 0.4,
    "k_norm.weight": 0.4,
    "coefs.weight": 1 / 4,
    "post_laurel_norm.weight": 1 / 2,
    "post_feedforward_layernorm.weight": 1 / 2,
    "post_per_layer_input_norm.weight": 1 / 2,
    "model.norm.weight": 4,
    "language_model.norm.weight": 4,
    # Rows of sounds come small to norms whose epsilon is a constant of 1e-6, which shows by that.
    "input_proj_linear.weight": 1 / 64,
    "ffw_layer_2.weight": 1 / 64,
    "attention.post.weight": 1 / 64,
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but embeddings, which are multiplied by the root of their width, are
    smaller: a tied head would repeat the last token. The last norm makes up for that. Scores are
    not scaled: norms of queries and keys do it, as in trained models. Streams take less
    over of each other, and the residual of low rank, the feed-forward part and the layer's own
    embedding add less, so that rounding shows no more than in layers of other models. Norms of
    images' blocks and scales of their results are near 1."""
    values = weights.weight(name, shape)
    if name.endswith((".bn.weight", ".bn1.weight", ".bn2.weight", ".gamma")):
        return np.float32(1) + np.float32(0.2) * values
    if name == "lm_head.weight" and len(values) > IMAGES:  # no item's token follows
        values[BREAKS:] *= np.float32(1 / 8)
    for ending, factor in FACTORS.items():
        if name.endswith(ending):
            return np.float32(factor) * values
    return values


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    if picture.kind == "image":
        rows = config["vision_soft_tokens_per_image"]
        return [BREAKS, IMAGE_BEGIN, *[IMAGE] * rows, IMAGES, BREAKS]
    rows = config["audio_soft_tokens_per_image"]
    return [BREAKS, BEGIN, *[SOUND] * rows, END, BREAKS]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    seen = [picture.pixels for picture in pictures if picture.kind == "image"]
    if seen:
        found["pixel_values"] = np.concatenate(seen)
    heard = [picture.pixels for picture in pictures if picture.kind == "audio"]
    if heard:
        features = np.stack(heard)
        found |= {"input_features": features}
        found |= {"input_features_mask": np.ones(features.shape[:2], bool)}
    return found


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    """The rows of the item, and that of the token that ends it."""
    if "pixel_values" in inputs:
        rows = model.get_image_features(inputs["pixel_values"]).pooler_output[0]
        embed, token = model.model.embed_vision, IMAGES
    else:
        rows = model.model(**inputs, use_cache=False).audio_hidden_states[0]
        embed, token = model.model.embed_audio, END
    end = rows.new_tensor([[token]]).long()
    found = rows.new_empty(len(rows) + 1, rows.shape[1])
    found[:-1], found[-1:] = rows, embed(input_ids=end)[0]
    return found


FILES = {
    "sounds": {"long": ("<audio_soft_token>", 4000), "short": ("<audio_soft_token>", 1111)},
    "images": {
        "wide": ("<image_soft_token>", 61, 37),
        "small": ("<image_soft_token>", 13, 10),
        "short": ("<audio_soft_token>", 1111),
    },
}
NAMED = {
    "image_token": "<image_soft_token>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "audio_token": "<audio_soft_token>",
    "boa_token": "<start_of_audio>",
    "eoa_token": "<end_of_audio>",
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    mels = config["audio_config"]["input_feat_size"]
    images = transformers.SiglipImageProcessor(
        size={"height": 32, "width": 32}, do_normalize=False, resample=2
    )
    return transformers.Gemma3nProcessor(
        transformers.Gemma3nAudioFeatureExtractor(feature_size=mels),
        images,
        tokenizer,
        audio_seq_length=config["audio_soft_tokens_per_image"],
        image_seq_length=config["vision_soft_tokens_per_image"],
    )


# Numbers that no case can see.
UNSEEN = {
    "value_dim": "other programs ask for it; the tensors tell the same",
    "layer_vocabulary": "the conversion reads it: it cuts the table",
    "audio_ends": "it stands behind the per-layer table, where all ids are alike",
    "image_ends": "it stands behind the per-layer table, where all ids are alike",
    "vit_eps": "a thousand times as much moves a row by less than the bound",
}
