"""The hyperparameters of Whisper."""

from __future__ import annotations

from typing import Any

from ggmodel import Config, kv, nn

RATE, HOP = nn.AUDIO_RATE, nn.AUDIO_HOP
EPS = 1e-5  # of all norms; no key says it


def _keys(key: str) -> tuple[str, str]:
    """Newer checkpoints have it in generation_config.json."""
    return f"generation:{key}", key


def _encoder(key: str, hf: str, least: int = 1, divides: str | None = None) -> Any:
    return kv(f"encoder.{key}", hf=hf, least=least, divides=divides)


class WhisperConfig(Config):
    unread = ("suppressed", "never_first", "multilingual")
    fixed = {
        "num_hidden_layers": lambda hf: hf["encoder_layers"],
        "scale_embedding": False,
        "use_weighted_layer_sum": False,
        **nn.whisper_features(),
    }

    layers: int = kv("block_count", hf="decoder_layers")
    width: int = kv("embedding_length", hf="d_model")
    ffn: int = kv("feed_forward_length", hf="decoder_ffn_dim")
    heads: int = kv("attention.head_count", hf="decoder_attention_heads", least=1, divides="width")
    context: int = kv("context_length", hf="max_target_positions", default=448)
    activation: str = nn.activation("gelu", "activation_function")
    start: int = kv("decoder_start_token_id", hf="decoder_start_token_id", default=50257)
    # Tokens that are never chosen, and those that never come first.
    suppressed: list = kv("suppress_tokens", hf=_keys("suppress_tokens"), default=[])
    never_first: list = kv("begin_suppress_tokens", hf=_keys("begin_suppress_tokens"), default=[])
    latest_first: int | None = kv(
        "max_initial_timestamp_index", hf="generation:max_initial_timestamp_index"
    )
    multilingual: bool = kv(
        "is_multilingual",
        hf=("generation:is_multilingual", lambda hf: hf.get("vocab_size", 51865) >= 51865),
        default=True,
    )
    language: str | None = kv("language", hf="generation:language")
    task: str | None = kv("task", hf="generation:task")

    mels: int = _encoder("mel_count", "num_mel_bins")
    audio_layers: int = _encoder("block_count", "encoder_layers", 0)
    audio_ffn: int = _encoder("feed_forward_length", "encoder_ffn_dim")
    audio_heads: int = _encoder("attention.head_count", "encoder_attention_heads", divides="width")
    positions: int = _encoder("context_length", "max_source_positions")
    audio_eps = EPS
    audio_width = property(lambda h: h.width)
    audio_activation = property(lambda h: h.activation)
    frames = property(lambda h: 2 * h.positions)  # the second convolution halves them
