"""BERT and its relatives, which llama.cpp's files call `bert`, too: RoBERTa and XLM-RoBERTa with
positions that begin behind the padding's, DistilBERT and ELECTRA with other names; small ELECTRAs
have embeddings of a width of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Bidirectional
from ggmodel.nn import Embedding, Linear

# Their positions count from the id of the padding on.
_OFFSET = ("roberta", "xlm-roberta", "camembert")
_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_FAMILIES = ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "Electra")


def _positions(hf: Mapping[str, Any]) -> int:
    kind = hf.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ConfigError(f"position_embedding_type {kind!r} is unsupported; supported: absolute")
    offset = hf.get("pad_token_id", 1) + 1 if hf.get("model_type") in _OFFSET else 0
    return hf["max_position_embeddings"] - offset


def _token_width(hf: Mapping[str, Any]) -> int | None:
    own = hf.get("embedding_size")
    return None if own == hf.get("hidden_size", hf.get("dim")) else own


class BertConfig(nn.EncoderConfig):
    context: int = kv("context_length", hf=_positions)
    activation: str = nn.activation("gelu", ("hidden_act", "activation"))
    own_width: int | None = kv("token_embedding_length", hf=_token_width)
    token_width = property(lambda h: h.own_width or h.width)


class Text(nn.EncoderText):
    positions: Embedding = nn.position_table()
    project: Linear | None = gguf(
        "token_embd_project", hf="embeddings_project", shape=("token_width", "width")
    )


@register("bert", hf=tuple(f"{family}{head}" for family in _FAMILIES for head in _HEADS))
class Bert(nn.Encoder):
    config: BertConfig
    text: Text

    @classmethod
    def stored_as(cls, hf: Mapping[str, Any], program: str | None = None) -> str:
        """XLM-RoBERTa with rotary positions is Jina's."""
        kind = hf.get("model_type"), hf.get("position_embedding_type")
        return "jina-bert-v3" if kind == ("xlm-roberta", "rotary") else cls.architecture

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional()] * self.config.layers
