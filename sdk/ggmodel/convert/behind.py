"""Modules behind a checkpoint's model: those of sentence-transformers, further heads, a head of two
tokens' logits, by which Qwen3-Reranker ranks documents. Their tensors and keys become those of the
model's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, FormatError, Unsupported
from ..model.operations import Operation
from ..model.report import LoadReport
from ..reading import decoded, read_file
from .checkpoint import Checkpoint
from .declaration import PlannedTensor
from .sentence_transformers import check_read, read_folder, score_activation
from .tasks import instructions_of

_TEMPLATES = "tokenizer.chat_templates"
_RERANKER = "qwen3-reranker"
_RANKED = "qwen3"  # the architecture of those with such a head in files of llama.cpp
_LABELS = ["yes", "no"]
_SCORES = 4  # the `pooling_type` of models that rank
# The text that the model was trained with, as llama.cpp's converter writes it.
RERANKER_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


_RANKING = {"pooling_type": _SCORES, "classifier.output_labels": _LABELS}
_TEXTS = {"tokenizer.chat_template.rerank": RERANKER_TEMPLATE, _TEMPLATES: ["rerank"]}


class Behind:
    """The modules of a folder.

    Args:
        architecture: the name of the model's.

    Attributes:
        pooling: the `pooling_type` that they say; None if they say none.
    """

    def __init__(self, checkpoint: Checkpoint, architecture: str):
        self._checkpoint, self._architecture = checkpoint, architecture
        self._folder = read_folder(checkpoint.folder, checkpoint.tensors)
        self._reranks = _names_reranker(checkpoint, architecture)
        self.pooling = self._folder.pooling

    def plan(
        self,
        entries: list[PlannedTensor],
        report: LoadReport,
        tied: bool,
        vocabulary: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Adds the tensors that the declaration does not read to those that it does.

        Args:
            tied: the output is the embedding of tokens.
            vocabulary: gives the metadata `tokenizer.*`.
        """
        folder, planned = self._folder, {entry.name for entry in entries}
        read = [name for name in folder.tensors if name in planned]
        check_read(folder, read, self._checkpoint.folder)
        for name in sorted(folder.tensors.keys() - planned):
            entries.append(PlannedTensor(name, (folder.tensors[name],)))
            if folder.tensors[name] in report.unused:
                report.unused.remove(folder.tensors[name])
        if self._reranks and folder.judges is None:
            folder.judges = _judges_of(vocabulary())
        if folder.judges is not None:
            names = self._checkpoint.tensors
            entries.append(_ranking(self._architecture, names, tied, folder.judges))
            # As in llama.cpp's files: a model that ranks has no other output.
            entries[:] = [entry for entry in entries if entry.name != "output.weight"]

    def keys(self, architecture: str) -> dict[str, Any]:
        """The keys of modules and heads, with the name of an architecture in front."""
        folder, file = self._folder, self._checkpoint.folder / "config.json"
        keys = dict(folder.metadata)
        if texts := instructions_of(self._checkpoint.config, file):
            keys.setdefault("embedding.prompt_names", list(texts))
            keys.setdefault("embedding.prompts", list(texts.values()))
        if folder.layers:
            keys["embedding.layers"] = folder.layers
        if folder.pooling is not None:  # decoders do not declare it
            keys["pooling_type"] = folder.pooling
        if folder.judges is not None:
            keys |= _RANKING
        if (activation := score_activation(self._checkpoint.config, file)) is not None:
            keys.setdefault("classifier.score_activation", activation)
        return {f"{architecture}.{key}": value for key, value in keys.items()}

    def with_templates(self, vocabulary: dict[str, Any]) -> dict[str, Any]:
        """The metadata `tokenizer.*`, with the text around query and document of a reranker."""
        texts = _TEXTS if self._reranks and self._folder.judges is not None else {}
        if texts and _TEMPLATES in vocabulary:
            texts = {**texts, _TEMPLATES: [*vocabulary[_TEMPLATES], *texts[_TEMPLATES]]}
        return {**vocabulary, **texts}

    def differences(self) -> list[str]:
        """Reasons why llama.cpp computes other rows from the file."""
        folder, said = self._folder, list[str]()
        if "embedding.pooling" in folder.metadata:
            said.append(f"it does not pool by {' and '.join(folder.metadata['embedding.pooling'])}")
        if not folder.metadata.get("embedding.include_prompt", True):
            said.append("it pools the tokens of prompts, too")
        return said


@dataclass(frozen=True)
class _TakeRows(Operation):
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


def _names_reranker(checkpoint: Checkpoint, architecture: str) -> bool:
    """Whether a checkpoint is called Qwen3-Reranker, by its folder, its config or its README, where
    llama.cpp's converter looks, too; or by a folder around it, as in the hub's cache."""
    if architecture != _RANKED:
        return False
    card = checkpoint.folder / "README.md"
    text = decoded(read_file(card, "text_file_bytes"), str(card)) if card.is_file() else ""
    names = (*checkpoint.folder.resolve().parts[-3:], checkpoint.config.get("_name_or_path", ""))
    return f"# {_RERANKER}" in text.lower() or any(_RERANKER in str(name).lower() for name in names)


def _judges_of(vocabulary: Mapping[str, Any]) -> tuple[int, int]:
    """The ids of "yes" and "no".

    Raises:
        FormatError: the vocabulary lacks them.
    """
    tokens: Any = vocabulary.get("tokenizer.ggml.tokens") or ()
    ids: dict[str, int] = {token: i for i, token in enumerate(tokens) if token in _LABELS}
    if len(ids) < len(_LABELS):
        raise FormatError(
            "a reranker of this kind needs the tokens 'yes' and 'no', which its vocabulary lacks; "
            "get its tokenizer's files, too"
        )
    return ids["yes"], ids["no"]


def _ranking(
    architecture: str, names: Mapping[str, Any], tied: bool, judges: tuple[int, int]
) -> PlannedTensor:
    """The tensor of a head made of the output's rows for two tokens.

    Args:
        names: of the tensors of the checkpoint.
        tied: the output is the embedding of tokens.

    Raises:
        Unsupported: files of this architecture have no such head.
    """
    if architecture != _RANKED:
        raise Unsupported(
            f"{architecture}: scores of two tokens' logits (LogitScore) are supported for "
            f"{_RANKED!r} alone"
        )
    sources = ("model.embed_tokens.weight", "embed_tokens.weight") if tied else ("lm_head.weight",)
    source = next((name for name in sources if name in names), None)
    if source is None:
        raise FormatError(f"the checkpoint has no {sources[0]}, of which its scores are made")
    return PlannedTensor("cls.output.weight", (source,), None, _TakeRows(judges))
