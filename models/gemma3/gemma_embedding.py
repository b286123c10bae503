"""EmbeddingGemma under the name that llama.cpp's converter gives it, `gemma-embedding`."""

from ggmodel import register
from ggmodel.models.gemma3.model import EmbeddingGemma


@register("gemma-embedding", hf="Gemma3TextModel")
class GemmaEmbedding(EmbeddingGemma):
    pass
