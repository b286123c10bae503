"""Decoders that rank documents by their logits of "yes" and "no", as Qwen3-Reranker does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, FormatError, Unsupported
from ..model.operations import Operation
from ..reading import decoded, read_file
from .checkpoint import Checkpoint
from .declaration import PlannedTensor

_NAME = "qwen3-reranker"
_ARCHITECTURE = "qwen3"  # of those with a head in files of llama.cpp
LABELS = ["yes", "no"]
_SCORES = 4  # the `pooling_type` of models that rank
# The text that the model was trained with, as llama.cpp's converter writes it.
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True)
class TakeRows(Operation):
    """Some rows of a matrix, in this order."""

    rows: tuple[int, ...]

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        if max(self.rows) >= shape[0] or min(self.rows) < 0:
            raise ConfigError(f"tokens {self.rows} are not in a vocabulary of {shape[0]}")
        return (len(self.rows), *shape[1:])

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return np.ascontiguousarray(x[list(self.rows)])

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        raise ConfigError("the other rows of the matrix are unknown")


def names_reranker(checkpoint: Checkpoint, architecture: str) -> bool:
    """Whether a checkpoint is called Qwen3-Reranker, by its folder, its config or its README, where
    llama.cpp's converter looks, too; or by a folder around it, as in the hub's cache."""
    if architecture != _ARCHITECTURE:
        return False
    card = checkpoint.folder / "README.md"
    text = decoded(read_file(card, "text_file_bytes"), str(card)) if card.is_file() else ""
    names = (*checkpoint.folder.resolve().parts[-3:], checkpoint.config.get("_name_or_path", ""))
    return f"# {_NAME}" in text.lower() or any(_NAME in str(name).lower() for name in names)


def judges_of(vocabulary: Mapping[str, Any]) -> tuple[int, int]:
    """The ids of "yes" and "no".

    Raises:
        FormatError: the vocabulary lacks them.
    """
    tokens: Any = vocabulary.get("tokenizer.ggml.tokens") or ()
    ids: dict[str, int] = {token: i for i, token in enumerate(tokens) if token in LABELS}
    if len(ids) < len(LABELS):
        raise FormatError(
            "a reranker of this kind needs the tokens 'yes' and 'no', which its vocabulary lacks; "
            "get its tokenizer's files, too"
        )
    return ids["yes"], ids["no"]


def ranking(
    architecture: str, names: Mapping[str, Any], tied: bool, judges: tuple[int, int]
) -> PlannedTensor:
    """The tensor of a head made of the output's rows for two tokens.

    Args:
        names: of the tensors of the checkpoint.
        tied: the output is the embedding of tokens.

    Raises:
        Unsupported: files of this architecture have no such head.
    """
    if architecture != _ARCHITECTURE:
        raise Unsupported(
            f"{architecture}: scores of two tokens' logits (LogitScore) are supported for "
            f"{_ARCHITECTURE!r} alone"
        )
    sources = ("model.embed_tokens.weight", "embed_tokens.weight") if tied else ("lm_head.weight",)
    source = next((name for name in sources if name in names), None)
    if source is None:
        raise FormatError(f"the checkpoint has no {sources[0]}, of which its scores are made")
    return PlannedTensor("cls.output.weight", (source,), None, TakeRows(judges))


def metadata_of(template: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys without the architecture, and those of the vocabulary.

    Args:
        template: the file has the text around query and document, too.
    """
    keys = {"pooling_type": _SCORES, "classifier.output_labels": list(LABELS)}
    texts = {"tokenizer.chat_template.rerank": TEMPLATE, "tokenizer.chat_templates": ["rerank"]}
    return keys, texts if template else {}
