"""The hyperparameters of Qwen3-ASR: of the text, Qwen 3's, and of the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import ConfigError
from ggmodel.models.qwen.qwen3 import Qwen3Config

CHUNK = 100  # frames, a second, that the convolutions see at once
ROWS = 13  # of a chunk
SHORTEST = 8000  # samples; silence fills up shorter sounds


def _window(hf: Mapping[str, Any]) -> int:
    """Frames whose rows see each other: whole chunks."""
    frames = (hf.get("audio_config") or {}).get("n_window_infer", 800)
    if not isinstance(frames, int) or frames < CHUNK:
        raise ConfigError(
            f"audio_config.n_window_infer is {frames!r:.40}; supported: {CHUNK} frames or more"
        )
    return frames // CHUNK * CHUNK


class Qwen3ASRConfig(Qwen3Config, nn.AudioConfig):
    unread = ("positions",)
    fixed = {
        "audio_config.n_window": CHUNK // 2,
        "audio_config.output_dim": lambda hf: hf.get("hidden_size"),
        "audio_config.downsample_hidden_size": ...,  # the tensors tell
        "audio_config.max_position_embeddings": ...,  # the rows of a chunk are computed
        "audio_config.scale_embedding": ...,  # transformers computes without it
        "features:chunk_length": ...,  # sounds are not filled up to it
        "features:min_length": SHORTEST,
        "features:n_window": CHUNK // 2,
        "processor:timestamp_segment_time": ...,  # of the model that aligns words
    }

    # The table has as many in llama.cpp's files, which have no key for it.
    positions: int = kv("audio.context_length", default=1500, least=ROWS)
    audio_layers: int = nn.audio_kv(
        "block_count", ("num_hidden_layers", "encoder_layers"), usual=24
    )
    audio_width: int = nn.audio_kv(
        "embedding_length", ("hidden_size", "d_model"), usual=1024, least=4
    )
    audio_ffn: int = nn.audio_kv(
        "feed_forward_length", ("intermediate_size", "encoder_ffn_dim"), usual=4096, least=1
    )
    audio_heads: int = nn.audio_kv(
        "attention.head_count",
        ("num_attention_heads", "encoder_attention_heads"),
        usual=16,
        least=1,
        divides="audio_width",
    )
    frames: int = kv("audio.window_frames", hf=_window, default=800, least=CHUNK)
