"""Modules behind a checkpoint's model: those of sentence-transformers, further heads, a head of two
tokens' logits. Their tensors and keys become those of the model's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..model.report import LoadReport
from .checkpoint import Checkpoint
from .declaration import PlannedTensor
from .rerankers import judges_of, metadata_of, names_reranker, ranking
from .sentence_transformers import check_read, read_folder, score_activation
from .tasks import instructions_of

_TEMPLATES = "tokenizer.chat_templates"


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
        self._reranks = names_reranker(checkpoint, architecture)
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
            folder.judges = judges_of(vocabulary())
        if folder.judges is not None:
            names = self._checkpoint.tensors
            entries.append(ranking(self._architecture, names, tied, folder.judges))
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
            keys |= metadata_of(self._reranks)[0]
        if (activation := score_activation(self._checkpoint.config, file)) is not None:
            keys.setdefault("classifier.score_activation", activation)
        return {f"{architecture}.{key}": value for key, value in keys.items()}

    def with_templates(self, vocabulary: dict[str, Any]) -> dict[str, Any]:
        """The metadata `tokenizer.*`, with the text around query and document of a reranker."""
        texts = metadata_of(self._reranks and self._folder.judges is not None)[1]
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
