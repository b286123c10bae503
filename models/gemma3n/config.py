"""Hyperparameters of Gemma 3n."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from ggmodel import kv, nn
from ggmodel.audio import gemma_mel
from ggmodel.errors import ConfigError
from ggmodel.nn import audio_kv, vision_kv

_SPARSE = 10  # the first layers, if a config does not say which


def _cutoffs(hf: Mapping[str, Any]) -> list[float]:
    """Layer → the deviations from the mean below which activations are dropped: the quantile of the
    normal distribution at the layer's sparsity. −∞ for a layer that drops none."""
    layers, each = hf["num_hidden_layers"], hf.get("activation_sparsity_pattern")
    if each is None:
        each = [0.95 if i < _SPARSE < layers else 0.0 for i in range(layers)]
    if any(not 0 <= share < 1 for share in each):
        raise ConfigError(f"activation_sparsity_pattern has {max(each, key=abs)}, not 0 to 1")
    return [NormalDist().inv_cdf(share) if share else -math.inf for share in each]


def _widths(hf: Mapping[str, Any]) -> list[int]:
    """Layer → the width of its feed-forward part."""
    width = hf["intermediate_size"]
    return width if isinstance(width, list) else [width] * hf["num_hidden_layers"]


def _layers(hf: Mapping[str, Any]) -> list[bool]:
    """Layer → whether it is local; every fifth is not, if a config does not say which."""
    local = nn.sliding_layers(hf)
    return nn.local_layers([5], hf["num_hidden_layers"], 1) if local is None else local


# Keys of a network's blocks that tensors tell again, and those that they do not, with the values
# that are supported.
_FROM_TENSORS = {
    "er": ("exp_kernel_size", "pw_kernel_size", "exp_ratio", "force_in_chs"),
    "uir": ("dw_kernel_size_start", "dw_kernel_size_mid", "dw_kernel_size_end", "exp_ratio"),
    "mqa": ("dw_kernel_size", "num_heads", "key_dim", "value_dim"),
}
_FIXED: dict[str, tuple[Any, ...]] = {
    "act_layer": (None,),
    "kv_stride": (1, 2),
    "noskip": (False,),
    "se_ratio": (0, None),
}
_STAGES = [3, 5, 37, 39]  # blocks of each in mobilenetv5_300m_enc


def _stages(hf: Mapping[str, Any]) -> list[int] | None:
    """The number of blocks in each stage of a network of a config's own."""
    args = dict((hf.get("vision_config") or {}).get("model_args") or {})
    blocks = args.pop("block_args", None)
    args.pop("stem_size", None)  # the tensors say it
    rows = hf.get("vision_soft_tokens_per_image", 256)
    if args.pop("msfa_output_resolution", 16) ** 2 != rows:
        raise ConfigError(f"the network of images makes no {rows} vision_soft_tokens_per_image")
    if args:
        raise ConfigError(f"model_args has {next(iter(args))!r:.40}, which is unsupported")
    if blocks is None:
        return None
    if len(blocks) != len(_STAGES):
        raise ConfigError(f"block_args has {len(blocks)} stages; supported: {len(_STAGES)}")
    for s, stage in enumerate(blocks):
        for i, block in enumerate(stage):
            _check_block(f"block_args[{s}][{i}]", block, i)
    return [len(stage) for stage in blocks]


def _check_block(name: str, block: Mapping[str, Any], i: int) -> None:
    kind = block.get("block_type")
    if kind not in _FROM_TENSORS:
        raise ConfigError(f"{name} is a block {kind!r:.40}; supported: {', '.join(_FROM_TENSORS)}")
    for key, value in block.items():
        if key == "stride":  # of later blocks it is 1 in any case
            supported = value == 2 or i > 0
        elif key in _FIXED:
            supported = value in _FIXED[key]
        else:
            supported = key in (*_FROM_TENSORS[kind], "block_type", "out_chs")
        if not supported:
            raise ConfigError(f"{name} has {key} = {value!r:.40}, which is unsupported")


def _side(hf: Mapping[str, Any]) -> Any:
    return ((hf.get("preprocessor:") or {}).get("size") or {}).get("height")


def _row_of(key: str, part: str = "audio") -> Callable[[Mapping[str, Any]], int | None]:
    """The row of a token in the table of the tokens of sounds, or of images."""

    def row(hf: Mapping[str, Any]) -> int | None:
        begin, token = (hf.get(f"{part}_config") or {}).get("vocab_offset"), hf.get(key)
        return None if begin is None or token is None else token - begin

    return row


def _filler(hf: Mapping[str, Any]) -> int | None:
    """The row of the vocabulary's last token."""
    row = _row_of("vocab_size")(hf)
    return None if row is None else row - 1


class Gemma3nConfig(nn.DecoderConfig, nn.ImageConfig):
    # Weights are clipped in training; the tensors say sizes. Rows see those nearby, however they
    # are cut into chunks.
    fixed = {
        "altup_coef_clip": ...,
        "altup_correct_scale": True,
        "laurel_rank": ...,
        "audio_config.conf_attention_chunk_size": ...,
        "audio_config.conf_conv_kernel_size": ...,
        "audio_config.gradient_clipping": 1e10,
        "audio_config.sscp_conv_channel_size": ...,
        "audio_config.sscp_conv_kernel_size": [[3, 3], [3, 3]],
        "audio_config.sscp_conv_stride_size": [[2, 2], [2, 2]],
        "audio_config.vocab_size": ...,
        "vision_config.architecture": "mobilenetv5_300m_enc",
        "vision_config.do_pooling": ...,  # not of images in a text
        "vision_config.model_args": ...,  # see `_stages`
        "vision_config.vocab_size": ...,
        "preprocessor:do_normalize": False,
        "preprocessor:image_mean": ...,
        "preprocessor:image_std": ...,
        "preprocessor:size.width": _side,
        "preprocessor:image_seq_length": lambda hf: hf.get("vision_soft_tokens_per_image", 256),
        "processor:image_seq_length": lambda hf: hf.get("vision_soft_tokens_per_image", 256),
        **nn.mel_features(gemma_mel),
        "features:feature_size": lambda hf: (hf.get("audio_config") or {}).get(
            "input_feat_size", ...
        ),
        "processor:audio_seq_length": lambda hf: hf.get("audio_soft_tokens_per_image", 188),
    }

    ffn_each: list = kv("feed_forward_length", hf=_widths)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf="sliding_window", least=1)
    pattern: list = kv("attention.sliding_window_pattern", hf=_layers, default=[5])
    sharing: int = kv("attention.shared_kv_layers", hf="num_kv_shared_layers", least=0)
    rope_base: float = kv(
        "rope.freq_base",
        hf=("rope_theta", "rope_parameters.full_attention.rope_theta"),
        default=1e6,
    )
    local_base: float = kv(
        "rope.freq_base_swa",
        hf=("rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"),
        default=1e4,
    )
    softcap: float = kv("final_logit_softcapping", hf="final_logit_softcapping", default=30.0)
    activation: str = nn.activation("gelu_pytorch_tanh", "hidden_activation")
    cutoffs: list = kv("activation_sparsity_scale", hf=_cutoffs)
    streams: int = kv("altup.num_inputs", hf="altup_num_inputs", least=2)
    active: int = kv("altup.active_idx", hf="altup_active_idx", least=0, most="passive")
    per_layer: int = kv("embedding_length_per_layer_input", hf="hidden_size_per_layer_input")
    # The tokens of the checkpoint's tables; files have as many in both.
    vocabulary: int | None = kv("vocab_size", hf="vocab_size")
    layer_vocabulary: int | None = kv("vocab_size_per_layer_input", hf="vocab_size_per_layer_input")
    audio_layers: int = audio_kv("block_count", "conf_num_hidden_layers")
    audio_width: int = audio_kv("embedding_length", "hidden_size")
    audio_heads: int = audio_kv(
        "attention.head_count", "conf_num_attention_heads", divides="audio_half"
    )
    mels: int = audio_kv("num_mel_bins", "input_feat_size")
    audio_eps: float = audio_kv("rms_norm_epsilon", "rms_norm_eps", 1e-6)
    audio_conv_eps: float = audio_kv("conv_norm_epsilon", "sscp_conv_group_norm_eps", 1e-3)
    audio_before: int = audio_kv(
        "attention.context_left", "conf_attention_context_left", 13, most=nn.MOST_NEARBY + 1
    )
    audio_ahead: int = audio_kv(
        "attention.context_right", "conf_attention_context_right", most=nn.MOST_NEARBY
    )
    audio_cap: float = audio_kv(
        "attention.logit_softcapping", "conf_attention_logit_cap", 50.0, least=1e-6
    )
    audio_residual: float = audio_kv("residual_scale", "conf_residual_weight", 0.5)
    audio_reduction: int = audio_kv("projector.stack_factor", "conf_reduction_factor", 4, least=1)
    # The rows of every sound, and the tokens that fill them up and end them, as rows of a table.
    audio_rows: int = kv(
        "audio.soft_tokens", hf="audio_soft_tokens_per_image", default=188, least=1, most="longest"
    )
    audio_filler: int | None = kv("audio.filler", hf=_filler)
    audio_end: int = kv("audio.end", hf=_row_of("eoa_token_id"), default=0)
    # Tokens before and behind a sound.
    audio_begins: int = kv("audio.begin_token_id", hf="boa_token_id", default=256000, least=0)
    audio_ends: int = kv("audio.end_token_id", hf="eoa_token_id", default=262272, least=0)
    vit_width: int = vision_kv("embedding_length", "hidden_size")
    vit_eps: float = vision_kv("attention.layer_norm_epsilon", "rms_norm_eps", 1e-6)
    side: int = vision_kv("image_size", _side, 768, least=32)
    stages: list = kv("vision.stages", hf=_stages, default=_STAGES)
    rows: int = kv("vision.soft_tokens", hf="vision_soft_tokens_per_image", default=256, least=1)
    image_mean: Any = (0.0, 0.0, 0.0)  # pixels are from 0 to 1
    image_std: Any = (1.0, 1.0, 1.0)
    # The token that ends an image as a row of a table, and the tokens before and behind one.
    image_end: int = vision_kv("end", _row_of("eoi_token_id", "vision"))
    image_begins: int = kv("vision.begin_token_id", hf="boi_token_id", default=255999, least=0)
    image_ends: int = kv("vision.end_token_id", hf="eoi_token_id", default=262144, least=0)
    grid = property(lambda h: math.isqrt(h.rows))
    blocks_0 = property(lambda h: h.blocks(0))
    blocks_1 = property(lambda h: h.blocks(1))
    blocks_2 = property(lambda h: h.blocks(2))
    blocks_3 = property(lambda h: h.blocks(3))
    audio_head_dim = property(lambda h: h.audio_width // h.audio_heads)
    audio_ffn = property(lambda h: 4 * h.audio_width)
    audio_activation = "silu"
    audio_frames = property(lambda h: 4 * h.audio_reduction)  # that become a row
    row_samples = property(lambda h: h.audio_rows * h.audio_frames * nn.AUDIO_HOP)
    # The rows of 30 s.
    longest = property(lambda h: -(-30 * nn.AUDIO_RATE // (nn.AUDIO_HOP * h.audio_frames)))
    audio_half = property(lambda h: h.audio_width / 2)
    audio_past = property(lambda h: max(0, h.audio_before - 1))  # itself is one of them
    ffn: Any = property(lambda h: max(h.ffn_each))
    ffns = property(lambda h: h.ffn_each * (h.layers if len(h.ffn_each) == 1 else 1))
    passive = property(lambda h: h.streams - 1)
    squared = property(lambda h: h.streams**2)
    per_layers = property(lambda h: h.per_layer * h.layers)

    def blocks(self, stage: int) -> int:
        """The number of blocks in a stage of the encoder of images.

        Raises:
            ConfigError: there are no numbers for all stages.
        """
        if len(self.stages) != len(_STAGES) or not all(isinstance(n, int) for n in self.stages):
            raise ConfigError(
                f"vision.stages is {self.stages!r:.80}; it has {len(_STAGES)} numbers"
            )
        return self.stages[stage]
