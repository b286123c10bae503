"""EmbeddingGemma under the name that llama.cpp's converter gives it, `gemma-embedding`."""

from __future__ import annotations

from ggmodel import register

from .model import EmbeddingGemma


@register("gemma-embedding", hf="Gemma3TextModel")
class GemmaEmbedding(EmbeddingGemma):
    pass
