"""The classes of sentence-transformers, for programs that use them. Results are numpy arrays,
never tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, Unsupported
from ..loading import load
from ..resources import Closing
from ..runner import LoadedModel
from ..runner.requests.readout import normalized

_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# Prompts that a model of sentence-transformers has without declaring them.
_USUAL = {"query": "", "document": ""}


class _Compatible(Closing):
    """A loaded model, its prompts, and the length that texts are cut at."""

    def __init__(
        self,
        model_name_or_path: str | Path | LoadedModel,
        device: str | None,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        options: Mapping[str, Any],
    ):
        opened = isinstance(model_name_or_path, LoadedModel)
        self._owned = not opened
        self.model: LoadedModel = (
            model_name_or_path if opened else _loaded(str(model_name_or_path), device, options)  # type: ignore[assignment]
        )
        readout = self.model.readout
        self.prompts = {**_USUAL, **readout.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or readout.default_prompt
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ConfigError(
                f"there is no prompt {self.default_prompt_name!r}; name one of prompts"
            )
        self._most: int | None = None

    @property
    def max_seq_length(self) -> int:
        """Tokens of a text; longer ones are cut."""
        return self._most or self.model.longest_embedded

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        self._most = tokens

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.model.tokenizer

    def close(self) -> None:
        """Frees the model; one that was given stays open."""
        if self._owned:
            self.model.close()

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None:
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            raise ConfigError(
                f"prompt_name {name!r} is none of this model's: {', '.join(self.prompts)}"
            )
        return "" if name is None else self.prompts[name]


class SentenceTransformer(_Compatible):
    """An embedding model.

    Args:
        model_name_or_path: anything that `ggmodel.load` takes, or a loaded model.
        device: None or "cpu"; anything else uses GPUs.
        prompts, default_prompt_name: beside those of the model.
        similarity_fn_name: "cosine", "dot", "euclidean" or "manhattan"; None takes the model's.
        truncate_dim: the first of each row that are kept.
        options: of `ggmodel.load`.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | LoadedModel,
        *,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        **options: Any,
    ):
        super().__init__(model_name_or_path, device, prompts, default_prompt_name, options)
        readout = self.model.readout
        self.similarity_fn_name = similarity_fn_name or readout.similarity
        if self.similarity_fn_name not in _SIMILARITIES:
            raise ConfigError(f"similarity_fn_name is none of {', '.join(_SIMILARITIES)}")
        self.truncate_dim = truncate_dim if truncate_dim is not None else readout.dimensions

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task: str | None = None,
    ) -> Any:
        """Rows float32 [n, width] of texts, or one [width] of a text.

        Args:
            inputs: texts, or one.
            prompt_name, prompt: put before each; see `LoadedModel.embed`.
            batch_size, show_progress_bar, device: of no effect: texts are computed together as the
                model's own batch size allows.
            convert_to_numpy: one array; else a list of rows.
            normalize_embeddings: make rows of length 1.
            truncate_dim: the first of each row that are kept.
            task: an adapter that was loaded (`adapters=` among the options), for these texts alone.

        Raises:
            Unsupported: tensors of torch, rows of tokens, or another precision.
            Error: as `LoadedModel.embed`.
        """
        _need(not convert_to_tensor, "convert_to_tensor: results are numpy arrays; leave it out")
        _need(output_value == "sentence_embedding", f"output_value {output_value!r:.40}")
        _need(precision == "float32", f"precision {precision!r:.40}; round the rows yourself")
        one = isinstance(inputs, str)
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        if not texts:
            return np.zeros(0, np.float32) if convert_to_numpy else []
        before = self._prompt(prompt, prompt_name)
        ids = self.model.embedding_ids(texts, before, truncate=True, most=self._most)
        rows = self.model.embed_ids(ids, prompt=before, dimensions=0, adapters=task)
        rows = rows[:, : truncate_dim if truncate_dim is not None else self.truncate_dim]
        rows = normalized(rows) if normalize_embeddings else rows
        if one:
            return rows[0]
        return rows if convert_to_numpy else list(rows)

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt "query", unless another is named."""
        return self._encode_as(("query",), inputs, options)

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the first prompt of "document", "passage" and "corpus" that there is."""
        return self._encode_as(("document", "passage", "corpus"), inputs, options)

    def _encode_as(self, names: Sequence[str], inputs: Any, options: dict[str, Any]) -> Any:
        if options.get("prompt_name") is None and options.get("prompt") is None:
            options["prompt_name"] = next((n for n in names if n in self.prompts), None)
        return self.encode(inputs, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """The similarity of each row to each, float32 [n1, n2]; of distances the negative."""
        a, b = (np.atleast_2d(np.asarray(x, np.float32)) for x in (embeddings1, embeddings2))
        return self._similar(a[:, None], b[None], lambda: a @ b.T)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """The similarity of rows of one number, float32 [n]."""
        a, b = (np.asarray(x, np.float32) for x in (embeddings1, embeddings2))
        return self._similar(a, b, lambda: (a * b).sum(-1))

    def _similar(
        self, a: np.ndarray, b: np.ndarray, product: Callable[[], np.ndarray]
    ) -> np.ndarray:
        name = self.similarity_fn_name
        if name == "manhattan":
            return -np.abs(a - b).sum(-1)
        if name == "euclidean":
            return -np.sqrt(((a - b) ** 2).sum(-1))
        if name == "dot":
            return product()
        lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        return product() / np.maximum(lengths, np.float32(1e-12))

    def get_embedding_dimension(self) -> int:
        """Numbers of a row."""
        width = self._width or self.model.embed_ids([np.zeros(1, np.int32)], dimensions=0).shape[1]
        self._width = width
        return min(width, self.truncate_dim or width)

    get_sentence_embedding_dimension = get_embedding_dimension
    _width: int | None = None

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within the block, the first `truncate_dim` of each row are kept."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings


class CrossEncoder(_Compatible):
    """A model that scores pairs of texts.

    Args:
        model_name_or_path: anything that `ggmodel.load` takes, or a loaded model.
        device: None or "cpu"; anything else uses GPUs.
        max_length: tokens of a pair; longer ones are an error, as `LoadedModel.score_pairs` says.
        activation_fn: of scores float32 [n, labels]; None takes the model's, else a sigmoid where
            there is one label.
        options: of `ggmodel.load`.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | LoadedModel,
        *,
        device: str | None = None,
        max_length: int | None = None,
        activation_fn: Callable[[np.ndarray], np.ndarray] | None = None,
        **options: Any,
    ):
        super().__init__(model_name_or_path, device, None, None, options)
        self._most = max_length
        known = self.model.readout.score_activation
        usual = "sigmoid" if self.num_labels == 1 else "identity"
        self.activation_fn = activation_fn or _FUNCTIONS.get(known or usual)
        if self.activation_fn is None:
            raise Unsupported(f"{known!r} is no activation of scores; give activation_fn")

    @property
    def num_labels(self) -> int:
        """Scores of a pair; one of a model that answers "yes" or "no"."""
        return 1 if self.model.judges else len(self.model.labels) or 1

    def predict(
        self,
        inputs: Sequence[Any],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[np.ndarray], np.ndarray] | None = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
    ) -> Any:
        """Scores of pairs of texts, float32 [n], or [n, labels] of a head with several labels; of
        one pair its score or scores.

        Args:
            inputs: pairs, or one.
            batch_size, show_progress_bar: of no effect.
            activation_fn: of scores; None takes the model's.
            apply_softmax: over labels, where there are several.

        Raises:
            Unsupported: tensors of torch, or a file without a head.
            Error: as `LoadedModel.score_pairs`.
        """
        _need(not convert_to_tensor, "convert_to_tensor: results are numpy arrays; leave it out")
        pairs = inputs.tolist() if isinstance(inputs, np.ndarray) else list(inputs)
        one = bool(pairs) and isinstance(pairs[0], str)
        pairs = [pairs] if one else pairs
        if not pairs:
            return np.zeros(0, np.float32) if convert_to_numpy else []
        rows = self.model.score_pairs([(a, b) for a, b in pairs], truncate=True, most=self._most)
        if self.model.judges:
            rows = rows[:, :1] - rows[:, 1:]
        rows = np.asarray((activation_fn or self.activation_fn)(rows))  # type: ignore[misc]
        if apply_softmax:
            powers = np.exp(rows - rows.max(axis=1, keepdims=True))
            rows = powers / powers.sum(axis=1, keepdims=True)
        scores = rows[:, 0] if self.num_labels == 1 else rows
        if one:
            return scores[0]
        return scores if convert_to_numpy else list(scores)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Documents by their scores, the best first: dicts with "corpus_id", "score", and "text"
        where `return_documents`.

        Raises:
            Unsupported: the head has several labels.
        """
        _need(self.num_labels == 1, "rank of a head with several labels; use predict")
        scores = self.predict([(query, text) for text in documents], **options).tolist()
        ranked: list[dict[str, Any]] = []
        for i, score in enumerate(scores):
            text = {"text": documents[i]} if return_documents else {}
            ranked.append({"corpus_id": i, "score": score, **text})
        ranked.sort(key=lambda one: one["score"], reverse=True)
        return ranked[:top_k]


def colbert_score(query: np.ndarray, document: np.ndarray) -> float:
    """The score of late interaction of two texts' rows (`LoadedModel.embed_tokens`): the mean over
    the query's rows of the largest product with one of the document's."""
    return float((query @ document.T).max(axis=1).mean())


def lexical_score(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """The sum of products of the weights of tokens that both texts have
    (`LoadedModel.embed_sparse`)."""
    return sum(weight * second[token] for token, weight in first.items() if token in second)


_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "sigmoid": lambda x: (0.5 + 0.5 * np.tanh(x.astype(np.float64) / 2)).astype(np.float32),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def _loaded(name: str, device: str | None, options: Mapping[str, Any]) -> LoadedModel:
    given = dict(options)
    if device in (None, "cpu"):
        given.setdefault("gpu_layers", 0)
    return load(name, **given)


def _need(supported: bool, otherwise: str) -> None:
    if not supported:
        raise Unsupported(f"unsupported here: {otherwise}")
