"""The hyperparameters and tensors that llama.cpp does not take from files, by architecture.

The tables follow llama.cpp's source (src/llama-arch.cpp, src/llama-model.cpp, src/models/), which a
test holds them against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..nn import SOFTMAX


@dataclass(frozen=True)
class Fixed:
    """A hyperparameter that llama.cpp does not take from the file.

    Attributes:
        key: without the architecture.
        values: what llama.cpp computes with, given all hyperparameters; several values mean the
            same.
        matters: whether it has an effect in this model.
        refused: a file with another value is refused; otherwise it is loaded as another model.
    """

    key: str
    values: Callable[[Any], Sequence[Any]]
    matters: Callable[[Any], bool] = lambda h: True
    refused: bool = False

    def fits(self, value: Any, h: Any) -> bool:
        """Whether llama.cpp computes what this value means."""
        return not self.matters(h) or any(_same(value, other) for other in self.values(h))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6)  # files hold float32
    return a == b


def _fixed(key: str, *values: Any, matters: Callable[[Any], bool] = lambda h: True) -> Fixed:
    return Fixed(key, lambda h: values, matters)


def _without_effect(key: str) -> Fixed:
    return _fixed(key, matters=lambda h: False)


def _scale_by_layers(layers: int) -> Fixed:
    """Gemma's scale of scores: llama.cpp knows the largest model by its number of layers."""

    def scale(h: Any) -> list[float]:
        return [(h.width // h.heads if h.layers == layers else h.head_dim) ** -0.5]

    return Fixed("attention.scale", scale)


def _two_scales(h: Any) -> list[float | None]:
    """YaRN's magnitude by llama.cpp: 1 + 0.1 ln s, over the same for the second scale if any."""
    first = 1 + 0.1 * math.log(h.rope_factor)
    if h.yarn_scale:
        return [first / (1 + 0.1 * h.yarn_scale * math.log(h.rope_factor))]
    return [None, first]


def _of_yarn(key: str, *values: Any) -> Fixed:
    return _fixed(f"rope.scaling.yarn_{key}", *values, matters=lambda h: h.scaling == "yarn")


_YARN = (
    Fixed(
        "rope.scaling.yarn_attn_factor",
        lambda h: [None, 1 + 0.1 * math.log(h.rope_factor)],
        lambda h: h.scaling == "yarn",
    ),
    _of_yarn("beta_fast", 32.0),
    _of_yarn("beta_slow", 1.0),
    _of_yarn("ext_factor", 1.0),
    _of_yarn("truncate", True),
    _without_effect("rope.scaling.dynamic_factor"),  # neither program computes with it
)
# The types of tokens are read with the vocabulary.
_ENCODER = (
    _without_effect("tokenizer.ggml.token_type_count"),
    _fixed("classifier.per_token", False),
)
_SILU = (*_YARN, _fixed("hidden_activation", "silu", "swish"))
_TANH = (*_YARN, _fixed("hidden_activation", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"))
_RELU2 = (*_YARN, _fixed("hidden_activation", "relu2"))
_NO_WINDOW = (
    _fixed("attention.sliding_window", 0),
    _without_effect("attention.sliding_window_pattern"),  # said by the window
)
_WIDE = Fixed("attention.key_length", lambda h: [h.width / h.heads], refused=True)
_ROUTER = (
    _fixed("expert_gating_func", SOFTMAX),
    _fixed("expert_weights_scale", 1.0),
    _without_effect("leading_dense_block_count"),  # the tensors tell
)
_SHARED = Fixed(
    "expert_shared_feed_forward_length", lambda h: [h.shared_experts * h.expert_ffn], refused=True
)
_STREAMS = Fixed("hyper_connection.count", lambda h: [4], refused=True)
_ALL_HEADS = Fixed("attention.head_count_kv", lambda h: [h.heads], refused=True)
_QWEN3 = (
    *_SILU,
    *_ROUTER,
    *_NO_WINDOW,
    _fixed("expert_weights_norm", True, matters=lambda h: h.experts > 0),
)
_OF_EXPERTS = (
    *("expert_feed_forward_length", "leading_dense_block_count", "expert_gating_func"),
    *("expert_weights_norm", "expert_weights_scale", "use_expert_bias"),
)

# Constants of llama.cpp's Gemma 3n: its first layers drop 95% of the activations.
_SPARSE, _CUTOFF = 10, 1.6448533535003662
_GEMMA3N = (
    *_TANH,
    *map(_without_effect, ("vocab_size", "vocab_size_per_layer_input")),  # the tables' rows
    _fixed("final_logit_softcapping", 30.0),
    Fixed("attention.shared_kv_layers", lambda h: [max(0, h.layers - 20)]),
    Fixed(
        "activation_sparsity_scale",
        lambda h: [[_CUTOFF if i < _SPARSE else -math.inf for i in range(h.layers)]],
    ),
    _fixed("altup.active_idx", 0),
    Fixed("altup.num_inputs", lambda h: [4], refused=True),
    Fixed("embedding_length_per_layer_input", lambda h: [256], refused=True),
)


def _of_images(key: str, *values: Any) -> Fixed:
    return _fixed(f"vision.{key}", *values, matters=lambda h: h.vit_layers > 0)


def _of_sounds(key: str, *values: Any) -> Fixed:
    return _fixed(f"audio.{key}", *values, matters=lambda h: h.audio_layers > 0)


_RELATIVE = (
    _fixed("attention.relative_max_distance", 128),
    _fixed("hidden_activation", None, "relu, or gelu_new with a gate"),
    _without_effect("attention.layer_norm_epsilon"),  # no norm has a mean
)

FIXED: Mapping[str, Sequence[Fixed]] = {
    **dict.fromkeys(
        (
            *("paddleocr", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "exaone-moe", "gpt-oss"),
            *("granite", "granitemoe", "glm4", "seed_oss", "ernie4_5", "hunyuan-dense", "olmo"),
            "eurobert",
        ),
        _SILU,
    ),
    "t5": (*_RELATIVE, _fixed("logit_scale", None, 1.0)),
    "t5encoder": _RELATIVE,
    "llama": (*_SILU, Fixed("rope.dimension_count", lambda h: [h.head_dim], refused=True)),
    "llama4": (
        *_SILU,
        _without_effect("vocab_size"),
        _fixed("attention.chunk_size", 8192),
        _fixed("no_rope_interval", 4),
        Fixed("use_qk_norm", lambda h: [h.experts != 128]),
        _fixed("attention.temperature_tuning", True),
        _fixed("attention.scale", 0.1, matters=lambda h: h.tuned),
        _fixed("attention.floor_scale", 8192, matters=lambda h: h.tuned),
        _of_images("rope.freq_base", 1e4),
    ),
    "mistral3": (
        Fixed("rope.scaling.yarn_attn_factor", _two_scales, lambda h: h.scaling == "yarn"),
        _of_yarn("ext_factor", 1.0),
        _of_yarn("truncate", True),
        _fixed("hidden_activation", "silu", "swish"),
        _without_effect("vocab_size"),
        _without_effect("rope.scaling.dynamic_factor"),
        _of_images("rope.freq_base", 1e4),
    ),
    "arcee": _RELU2,
    "nemotron": (*_RELU2, _WIDE),
    "gemma": _TANH,
    "gemma2": (
        *_TANH,
        _scale_by_layers(46),
        # It divides by these.
        Fixed("attn_logit_softcapping", lambda h: [h.score_cap or "NaN"]),
        Fixed("final_logit_softcapping", lambda h: [h.logit_cap or "NaN"]),
    ),
    "gemma3": (*_TANH, _scale_by_layers(62)),
    "gemma3n": _GEMMA3N,
    "gemma4": (
        *_TANH[-1:],
        Fixed(
            "attention.bidirectional_images",
            lambda h: [h.width not in (1536, 2560)],
            lambda h: h.vit_layers > 0,
        ),
        _of_images("rope.freq_base", 100.0),
        _of_sounds("attention.context_left", 13),
        _of_sounds("attention.layer_norm_epsilon", 1e-6),
        _of_sounds("attention.logit_softcapping", 50.0),
        _of_sounds("residual_scale", 0.5),
    ),
    "gemma-embedding": (
        *_TANH,
        Fixed("attention.scale", lambda h: [h.head_dim**-0.5]),
        _without_effect("final_logit_softcapping"),  # there are no logits
    ),
    "qwen2": (*_SILU, *_NO_WINDOW, _WIDE),
    "qwen2vl": (
        *_SILU,
        *_NO_WINDOW,
        _WIDE,
        _fixed("vision.window_size", 112, matters=lambda h: h.full_every > 0),
    ),
    "qwen3": (*_QWEN3, _without_effect("expert_feed_forward_length")),
    "qwen3moe": _QWEN3,
    "qwen2moe": (
        *_SILU,
        *_NO_WINDOW,
        *_ROUTER,
        _WIDE,
        _fixed("expert_weights_norm", False),
        _without_effect("expert_shared_count"),  # said by their width
    ),
    "phi3": (*_SILU, _fixed("attention.sliding_window", 0), _WIDE),
    "phimoe": (
        *_SILU,
        _fixed("attention.sliding_window", 0),
        _WIDE,
        _fixed("expert_router_jitter", None, "weights by softmax, and RMS norms"),
    ),
    "olmo2": (*_SILU, _WIDE),
    "olmoe": (
        *_SILU,
        *_ROUTER,
        _WIDE,
        _fixed("expert_weights_norm", False),
        _without_effect("expert_feed_forward_length"),  # that of layers
    ),
    "glm4moe": (*_SILU, _SHARED),
    "bailingmoe2": (*_SILU, _WIDE, _without_effect("vocab_size")),
    "dots1": (*_SILU, *_NO_WINDOW, _SHARED, _ALL_HEADS),
    "afmoe": (
        *_SILU,
        _SHARED,
        Fixed("embedding_scale", lambda h: [h.width**0.5]),
        _fixed(
            "attention.sliding_window_pattern",
            [4],
            matters=lambda h: h.local != [(i + 1) % 4 > 0 for i in range(h.layers)],
        ),
    ),
    "minimax-m2": (*_SILU, *_ROUTER[1:]),
    "ernie4_5-moe": (
        *_SILU,
        *_ROUTER[:2],
        _without_effect("expert_shared_count"),  # said by their width
        Fixed("interleave_moe_layer_step", lambda h: [1], refused=True),
    ),
    "deepseek2": (
        *_SILU[1:],
        Fixed(
            "rope.scaling.yarn_attn_factor",
            lambda h: [1.0] if h.yarn_log else [None, 1 + 0.1 * math.log(h.rope_factor)],
            lambda h: h.scaling == "yarn",
        ),
        _SHARED,
        _fixed("expert_group_best", 2, matters=lambda h: h.expert_groups > 1),
    ),
    "deepseek4": (*_SILU[1:], _of_yarn("attn_factor", 1.0), _STREAMS),
    "smollm3": (
        *_SILU,
        Fixed("rope.layers", lambda h: [[(i + 1) % 4 != 0 for i in range(h.layers)]]),
    ),
    "exaone4": (
        *_SILU,
        _WIDE,
        # It knows the one model with windows by its number of layers, and rotates all in others.
        Fixed("attention.sliding_window", lambda h: [h.window] if h.layers == 64 else [0, ""]),
    ),
    "hunyuan-moe": (*_SILU, *_ROUTER),
    "starcoder2": (*_TANH, _WIDE, _fixed("attention.sliding_window", 0)),
    "stablelm": (*_SILU, _without_effect("use_parallel_residual")),  # the tensors tell the same
    "gpt2": _TANH,
    "gptneox": _TANH,
    "bloom": _TANH,
    "mpt": (*_TANH, Fixed("attention.scale", lambda h: [h.head_dim**-0.5])),
    "apertus": _YARN,
    "muse-glimmer": (
        *_SILU,
        Fixed("rope.layers", lambda h: [h.local]),
        _fixed("attention.post_norm_rms_epsilon", 1e-8),
        _without_effect("attention.query_scale"),  # the norms' weights
    ),
    "cohere2": (*_SILU, _WIDE),
    "command-r": (*_SILU, _WIDE),
    "lfm2": (*_YARN, _WIDE, *map(_without_effect, _OF_EXPERTS)),
    "lfm2moe": (
        *_YARN,
        _WIDE,
        _fixed("expert_weights_norm", True),
        _fixed("expert_weights_scale", 1.0),
        _without_effect("use_expert_bias"),  # then the bias is zeros
    ),
    "mamba": (
        _SILU[-1],
        Fixed("ssm.inner_size", lambda h: [2 * h.width], refused=True),
        Fixed("ssm.dt_b_c_rms_epsilon", lambda h: [h.eps], lambda h: h.selected_norms),
    ),
    "mamba2": _SILU[-1:],
    "rwkv7": (),
    "jamba": (*_SILU, Fixed("ssm.inner_size", lambda h: [2 * h.width], refused=True)),
    "qwen3next": (*_SILU, _fixed("expert_weights_norm", True)),
    "nemotron_h": (*_SILU, _fixed("feed_forward_activation", "relu2")),
    "nemotron_h_moe": (
        *_SILU,
        _fixed("feed_forward_activation", "relu2"),
        Fixed(  # all of these layers have experts
            "feed_forward_length",
            lambda h: [[n and h.expert_ffn for n in h.each_ffn]],
            refused=True,
        ),
    ),
    "kimi-linear": (
        *_SILU,
        _SHARED,
        _fixed("expert_weights_norm", True),
        Fixed("attention.q_lora_rank", lambda h: [0], refused=True),
        _without_effect("rope.scaling.yarn_log_multiplier"),  # nothing is rotated
    ),
    "laguna": (*_SILU, _fixed("router_logit_softcapping", 0.0)),
    "falcon-h1": (*_SILU, _without_effect("multipliers")),
    "granitehybrid": (
        *_SILU,
        Fixed("ssm.inner_size", lambda h: [2 * h.width], refused=True),
        Fixed(
            "attention.head_count_kv",
            lambda h: ["one with 0, a layer with states"],
            lambda h: not any(h.recurrent),
            refused=True,
        ),
    ),
    "bert": (
        _fixed("hidden_activation", "gelu", "gelu_new", "gelu_pytorch_tanh"),
        *_ENCODER,
        _fixed("classifier.activation", "tanh"),
        Fixed("token_embedding_length", lambda h: [h.width, None], refused=True),
    ),
    "modern-bert": (
        *_YARN,
        _fixed("classifier.activation", "gelu"),
        *_ENCODER,
    ),
    "nomic-bert": (
        *_SILU,
        *_ENCODER,
        _without_effect("classifier.activation"),  # no checkpoint of it has a head
    ),
    "jina-bert-v3": (
        *_YARN,
        _fixed("hidden_activation", "gelu", "gelu_new", "gelu_pytorch_tanh"),
        *_ENCODER,
        _without_effect("classifier.activation"),  # no checkpoint of it has a head
    ),
}
"""Architecture → the hyperparameters that llama.cpp does not take from its files, or not as they
are meant."""

_TILES = {"preproc_min_tiles": 2, "preproc_max_tiles": 10, "tile_size": 512, "tile_tolerance": 2.0}
_HEARING = (_fixed("audio.hidden_activation", "gelu"), _fixed("mm.hidden_activation", "gelu"))
PROJECTORS: Mapping[str, tuple[Sequence[Fixed], str]] = {
    "glm4v": ((_fixed("vision.rope.freq_base", 1e4), _fixed("vision.spatial_merge_size", 2)), ""),
    "internvl": ((), "it adds to each patch of a picture the position before its own"),
    "lfm2": (
        (
            _fixed("mm.hidden_activation", "gelu"),
            _fixed("vision.image_min_tokens", 64),
            _fixed("vision.image_max_tokens", 256),
            *(_fixed(f"vision.{key}", value) for key, value in _TILES.items()),
            _fixed("vision.thumbnail", True),
        ),
        "",
    ),
    "llama4": ((), "it lays the rows of a tile column by column, and no tokens between tiles"),
    "qwen2a": (
        _HEARING,
        "it fills sounds up to 30 s with silence, which is heard and laid into the text, too",
    ),
    "qwen3a": (
        (_fixed("audio.hidden_activation", "gelu"), _fixed("audio.window_frames", 800)),
        "it hears a frame more of each sound, and silence up to a whole second, whose rows it lays "
        "into the text, too",
    ),
    "voxtral": (
        _HEARING,
        "it averages pairs of the encoder's rows before they are stacked, and ends at windows of "
        "30 s, whose rows it miscounts",
    ),
}
"""Type of a projector, or architecture of a text beside one of its own → its hyperparameters that
llama.cpp does not take from the file, and a reason why rows of any picture or sound are others, if
they are. Not all reasons are here; docs/convert.md lists them."""

_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_BIAS = "blk.*.attn_output.bias"
_MLP_BIASES = tuple(f"blk.*.ffn_{part}.bias" for part in ("gate", "up", "down"))
_SHORTCONV = tuple(f"blk.*.shortconv.{part}.bias" for part in ("in_proj", "conv", "out_proj"))
_SSM = ("blk.*.ssm_in.bias", "blk.*.ssm_out.bias")
_DENSE = tuple(f"blk.*.ffn_{part}.weight" for part in ("gate", "up", "down"))

SURPLUS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        (
            *("gemma3", "gemma-embedding", "qwen2", "qwen2vl", "glm4", "starcoder2", "gpt2", "mpt"),
            *("gptneox", "bloom", "minimax-m2", "gpt-oss", "laguna", "eurobert", "nomic-bert"),
            *("jina-bert-v3", "nemotron"),
        ),
        _FACTORS,
    ),
    "llama4": _FACTORS[1:],
    "arcee": (*_FACTORS[1:], _BIAS, *_MLP_BIASES[1:]),
    "bert": ("token_embd_project.weight", "token_embd_project.bias"),
    "gemma": (*_FACTORS, _BIAS, "output.weight"),
    "gemma2": (*_FACTORS, _BIAS, "output.weight"),
    "gemma3n": (*_FACTORS, _BIAS),
    "gemma4": (*_FACTORS[1:], _BIAS),
    "paddleocr": (*_FACTORS, *_MLP_BIASES),
    "qwen2moe": (*_FACTORS, *_DENSE),
    "qwen3": (*_FACTORS, _BIAS),
    "qwen3moe": (*_FACTORS, _BIAS, *_DENSE),
    "qwen3vlmoe": (*_FACTORS, _BIAS, *_DENSE),
    **dict.fromkeys(("qwen3vl", "qwen35", "qwen35moe", "olmo2"), (*_FACTORS, _BIAS)),
    "phi3": _FACTORS[:1],
    "phimoe": _FACTORS[:1],
    "smollm3": (*_FACTORS, _BIAS, *_MLP_BIASES),
    "seed_oss": (*_FACTORS, _BIAS, *_MLP_BIASES),
    "exaone4": _FACTORS[1:],
    "ernie4_5": (*_FACTORS, *_MLP_BIASES),
    "stablelm": _FACTORS,
    **dict.fromkeys(("olmo", "olmoe", "glm4moe", "dots1", "afmoe"), (*_FACTORS, _BIAS)),
    **dict.fromkeys(("muse-glimmer", "hunyuan-dense", "hunyuan-moe"), (*_FACTORS, _BIAS)),
    "bailingmoe2": (*_FACTORS, _BIAS, "blk.*.attn_qkv.bias"),
    "exaone-moe": _FACTORS[1:],
    "ernie4_5-moe": (*_FACTORS, "output.bias", *_MLP_BIASES),
    "deepseek2": (*_FACTORS, _BIAS, "blk.*.attn_q_a.bias", "blk.*.attn_kv_a_mqa.bias"),
    "deepseek4": (*_FACTORS, *(f"blk.*.ffn_{p}_shexp.bias" for p in ("gate", "up", "down"))),
    "cohere2": (*_FACTORS, _BIAS, "output.weight"),
    "command-r": (*_FACTORS, _BIAS, "output.weight"),
    "lfm2": (*_FACTORS, *_SHORTCONV),
    "lfm2moe": (*_FACTORS, *_SHORTCONV),
    "mamba": _SSM,
    "mamba2": _SSM,
    "jamba": (*_FACTORS, *_SSM, _BIAS),
    "qwen3next": (*_FACTORS, _BIAS, *_DENSE),
    "nemotron_h": (*_FACTORS, *_SSM),
    "nemotron_h_moe": (
        *_FACTORS,
        *_SSM,
        *(f"blk.*.ffn_{p}.bias" for p in ("up_shexp", "down_shexp", "latent_down", "latent_up")),
    ),
    "falcon-h1": (*_FACTORS[1:], *_SSM),
    "granitehybrid": (*_FACTORS[1:], *_SSM),
    "modern-bert": (
        *_FACTORS,
        _BIAS,
        *(f"blk.*.{part}.bias" for part in ("attn_qkv", "ffn_up", "ffn_down", "attn_norm")),
        *(f"{part}.bias" for part in ("cls", "cls.norm", "output_norm", "token_embd_norm")),
    ),
}
"""Architecture → tensors that llama.cpp has no place for: it refuses a file with one."""

NEEDED: Mapping[str, Sequence[str]] = {
    "gemma3n": tuple(f"blk.*.attn_{part}.weight" for part in ("k", "v", "k_norm")),
    "gpt-oss": (_BIAS,),
    "mamba": ("blk.*.ssm_conv1d.bias",),
    "mamba2": ("blk.*.ssm_conv1d.bias",),
    **dict.fromkeys(("apertus", "deepseek4", "stablelm"), ("output.weight",)),
    "phimoe": ("output.weight", "output.bias", _BIAS),
    "starcoder2": (_BIAS, *_MLP_BIASES[1:]),
    "gptneox": ("output.weight", "blk.*.attn_qkv.bias", _BIAS),
    "bailingmoe2": ("output.weight", *(f"blk.*.attn_{part}_norm.weight" for part in "qk")),
    **dict.fromkeys(
        ("dots1", "exaone-moe", "minimax-m2", "nemotron", "olmo2", "olmoe", "qwen2moe"),
        ("output.weight",),
    ),
}
"""Architecture → tensors that a model may lack here, and that llama.cpp needs, in every layer."""

BY_DEPTH: Mapping[str, Sequence[tuple[int, str]]] = {
    "command-r": ((64, "blk.*.attn_q_norm.weight"), (64, "blk.*.attn_k_norm.weight")),
}
"""Architecture → numbers of layers and tensors: llama.cpp needs a tensor in models of so many
layers and more, and has no place for it in others."""
