"""The hyperparameters of Qwen2-Audio: of the text, and of the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn


def _usual(hf: str, usual: int) -> tuple[Any, ...]:
    """A key of the text; published configs leave out what is transformers' default."""
    return hf, lambda _: usual


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    return nn.sliding_layers(hf) if hf.get("use_sliding_window") else None


class Qwen2AudioConfig(nn.DecoderConfig, nn.AudioConfig):
    fixed = {
        "max_window_layers": ...,  # read where there are windows
        "processor:audio_token": "<|AUDIO|>",
        "processor:audio_bos_token": "<|audio_bos|>",
        "processor:audio_eos_token": "<|audio_eos|>",
    }

    layers: int = kv("block_count", hf=_usual("num_hidden_layers", 32))
    width: int = kv("embedding_length", hf=_usual("hidden_size", 4096))
    ffn: int = kv("feed_forward_length", hf=_usual("intermediate_size", 22016))
    heads: int = kv("attention.head_count", hf=_usual("num_attention_heads", 32))
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf=nn.sliding_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])
