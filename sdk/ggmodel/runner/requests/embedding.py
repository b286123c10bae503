"""Methods of a loaded model that turn texts into rows of numbers, classes and scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import PromptError, Unsupported
from ...gguf_file import TensorSource
from ...gguf_file.values import KeyValues
from ...ml import Context, Tensor
from ...model import Model
from ...resources import reported
from ..engine.adapters import Strengths
from ..engine.engine import Engine
from ..engine.probes import Probe
from ..loading.adapters import AdapterPaths
from .adapters import Adapters
from .labelling import Entity, Labelled, entities, labelled
from .pooling import embed, probabilities, read_texts, token_rows
from .prompts import Prompts
from .readout import BY_NUMBER, Readout, normalized, poolings_of, shortened

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

Pooling = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens", "rank"]

_RERANK = "tokenizer.chat_template.rerank"  # a text with places for {query} and {document}
_PLACES = re.compile(r"\{(query|document)\}")
_JUDGES = ["yes", "no"]
_UNUSED = ("bos", "eos", "cls", "seperator", "padding", "unknown")  # tokens without sparse weights


class Embedding:
    """The methods; `LoadedModel` inherits them."""

    model: Model
    engine: Engine
    prompts: Prompts
    source: TensorSource
    tokenizer: Tokenizer | None
    adapters: Adapters

    def _check_open(self) -> None:
        raise NotImplementedError

    def probe(self) -> Probe | None:
        raise NotImplementedError

    @cached_property
    def readout(self) -> Readout:
        """How the file makes rows of texts: prompts, pooling, the layers behind it."""
        return Readout.of(self.source)

    @reported
    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: Pooling | Sequence[Pooling] | None = None,
        normalize: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
        adapters: AdapterPaths = None,
    ) -> np.ndarray:
        """One row of numbers a text, float32 [n, width]: similar texts have similar rows.

        The hidden states after the last norm, pooled, and after the layers that the file has behind
        them. Texts are computed together, in a cache of their own: they read and leave no state.

        Args:
            texts: a list of texts, or of token ids each.
            pooling: "mean" of all tokens, "cls" (the first), "last", "max", "weightedmean" (later
                tokens weigh more) or "mean_sqrt_len_tokens", or several, whose rows are joined;
                None takes the file's, else the mean. "rank" gives the scores of a head for whole
                texts, float32 [n, labels], of which `classify` and `rerank` make more.
            normalize: make rows of length 1; zero rows stay zero.
            prompt: put before each text; token ids stay as they are.
            prompt_name: of a prompt of the file. With neither, the file's default prompt is taken,
                if it has one.
            dimensions: keep the first of each row, as models trained for it allow (Matryoshka); by
                default what the file says.
            truncate: cut texts at the length that the file says, or the context's.
            adapters: see `RequestOptions`.

        Raises:
            PromptError: no texts, or one is empty, too long, or has a token id out of range; the
                file has no prompt of that name.
            ConfigError: no pooling or adapter has that name, or a row has fewer dimensions.
            Unsupported: the architecture has no embeddings.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        before = self.readout.prompt(prompt, prompt_name)
        ids = self.embedding_ids(texts, before, truncate=truncate)
        return self.embed_ids(
            ids,
            pooling=pooling,
            normalize=normalize,
            prompt=before,
            dimensions=dimensions,
            adapters=adapters,
        )

    def embedding_ids(
        self,
        texts: Sequence[str | Sequence[int]],
        prompt: str = "",
        *,
        truncate: bool = False,
        most: int | None = None,
    ) -> list[np.ndarray]:
        """The token ids of texts, int32 [n] each, the prompt before each that is no list of ids;
        see `embed`.

        Args:
            most: tokens that `truncate` keeps, if these are fewer.
        """
        if self.model.prompt_item:
            raise Unsupported(
                f"{self.model.architecture}: embeddings are those of an encoder alone; convert its "
                "checkpoint as such (T5EncoderModel)"
            )
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            return read_texts(self.prompts, texts)
        whole = [prompt + text if isinstance(text, str) else text for text in texts]
        return read_texts(
            self.prompts, [self._cut(one, most) for one in whole] if truncate else whole
        )

    def _cut(self, text: Any, most: int | None) -> Any:
        """The ids of the beginning of a text, and the one that closes each."""
        most, tokenizer = min(self.longest_embedded, most or self.longest_embedded), self.tokenizer
        if isinstance(text, str):
            text = self.prompts.vocabulary().encode(text[: self.prompts.longest_text(most)])
        if not isinstance(text, (list, tuple, np.ndarray)) or len(text) <= most:
            return text
        closed = tokenizer is not None and tokenizer.add_eos
        return [*text[: most - 1], text[-1]] if closed else [*text[:most]]

    @property
    def longest_embedded(self) -> int:
        """Tokens of a text that `truncate` keeps."""
        engine = self.engine
        most = min(engine.context_length, self.readout.max_tokens or engine.context_length)
        return min(most, engine.batch_size) if engine.single_step else most

    def embed_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        pooling: Pooling | Sequence[Pooling] | None = None,
        normalize: bool = False,
        prompt: str = "",
        dimensions: int | None = None,
        adapters: AdapterPaths = None,
    ) -> np.ndarray:
        """Rows of texts that `embedding_ids` gave, float32 [n, width]; see `embed`.

        Args:
            prompt: the text that was put before each.
            dimensions: 0 keeps all, whatever the file says.
        """
        readout = self.readout
        ways = readout.poolings if pooling is None else poolings_of(pooling)  # type: ignore[arg-type]
        if unknown := [way for way in ways if way.startswith("pooling_type")]:
            known = ", ".join(BY_NUMBER.values())
            raise Unsupported(
                f"the file's {unknown[0]} is unsupported; give pooling= one of {known}"
            )
        if "rank" in ways:
            self._need_text_head()
        skip = 0 if readout.include_prompt or not prompt else self._length_of(prompt)
        probes, chosen = self._probes(len(ids)), self._chosen(adapters)
        rows = embed(self.engine, ids, ways, skip=skip, probes=probes, adapters=chosen)
        if ways == ("rank",):
            return rows
        rows = shortened(readout.finish(rows), dimensions, readout.dimensions)
        return normalized(rows) if normalize else rows

    def states_of_tokens(
        self,
        ids: Sequence[np.ndarray],
        last: Callable[[Context, Tensor], Tensor] | None = None,
        adapters: AdapterPaths = None,
    ) -> list[np.ndarray]:
        """The hidden states of all tokens of each text that `embedding_ids` gave, float32 [n,
        width], or what `last` makes of them; errors are those of `embed`."""
        chosen = self._chosen(adapters)
        return token_rows(self.engine, ids, last, self._probes(len(ids)), chosen)

    def _chosen(self, adapters: AdapterPaths) -> Strengths | None:
        """None follows the adapters of all requests from step to step."""
        return None if adapters is None else self.adapters.chosen(adapters)

    def _probes(self, texts: int) -> list[Probe]:
        """One for all texts if it can be, else a probe for each; none without any."""
        first = self.probe()
        if first is None:
            return []
        if first.shareable:
            return [first]
        return [first, *(p for _ in range(1, texts) if (p := self.probe()))]

    def _length_of(self, prompt: str) -> int:
        """The tokens of a prompt alone, less the one that closes each text."""
        tokenizer = self.prompts.vocabulary()
        return len(tokenizer.encode(prompt)) - tokenizer.add_eos

    @reported
    def embed_sparse(
        self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> list[dict[int, float]]:
        """The weight of each token of a text, by its id: as BGE-M3's sparse head gives them. The
        score of two texts is the sum of products of the weights of tokens that both have.

        Args:
            texts, truncate: as for `embed`.

        Raises:
            Unsupported: the file has no such head.
            PromptError, ComputeError: as for `embed`.
        """
        weight, bias = self._head("sparse_linear")
        ids = self.embedding_ids(texts, truncate=truncate)
        keys = KeyValues(self.source.metadata, self.source.name)
        special = {keys.get(f"tokenizer.ggml.{name}_token_id", int) for name in _UNUSED}
        found: list[dict[int, float]] = []
        for text, states in zip(ids, self.states_of_tokens(ids), strict=True):
            weights = np.maximum(states @ weight.T + bias, 0)[:, 0]
            best: dict[int, float] = {}
            for token, value in zip(text.tolist(), weights.tolist(), strict=True):
                if value > best.get(token, 0.0) and token not in special:
                    best[token] = value
            found.append(best)
        return found

    @reported
    def embed_tokens(
        self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> list[np.ndarray]:
        """A row of length 1 for each token but the first, float32 [n − 1, width] a text: as
        BGE-M3's head for late interaction (ColBERT) gives them. The score of a document is the mean
        over a query's rows of the largest product with one of the document's.

        Args:
            texts, truncate: as for `embed`.

        Raises:
            Unsupported: the file has no such head.
            PromptError, ComputeError: as for `embed`.
        """
        weight, bias = self._head("colbert_linear")
        ids = self.embedding_ids(texts, truncate=truncate)
        each = self.states_of_tokens(ids)
        return [normalized(states[1:] @ weight.T + bias) for states in each]

    def _head(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        self._check_open()
        if f"{name}.weight" not in self.source.tensors:
            raise Unsupported(
                f"{self.source.name} has no tensor {name}.weight; save BGE-M3's {name}.pt as "
                f"{name}.safetensors beside the model, and convert it again: pickles are not read"
            )
        weight = self.readout.tensor(f"{name}.weight")
        bias = self.readout.tensor(f"{name}.bias", False)
        return weight, np.zeros(len(weight), np.float32) if bias is None else bias

    # heads that classify and rank

    @property
    def labels(self) -> list[str]:
        """The labels of the head, in order of its scores; none without a head."""
        return list(getattr(self.model.config, "labels", None) or ())

    @property
    def ranks(self) -> bool:
        """Whether it has a head for whole texts, of one label or two: `rerank` works."""
        head = getattr(self.model, "classifier", None)
        return head is not None and head.labels <= 2 and not self.labels_tokens

    @property
    def labels_tokens(self) -> bool:
        """Whether it has a head that labels tokens: `classify_tokens` works."""
        head = getattr(self.model, "classifier", None)
        return head is not None and bool(getattr(self.model.config, "per_token", False))

    @property
    def judges(self) -> bool:
        """Whether the head gives the logits of "yes" and of "no", as Qwen3's rerankers do."""
        return [label.lower() for label in self.labels] == _JUDGES

    @reported
    def classify(self, texts: Sequence[str | Sequence[int]]) -> np.ndarray:
        """The probability of each of `labels`, float32 [n, labels], by the model's head for whole
        texts: a softmax over labels, a sigmoid where there is one.

        Args:
            texts: as for `embed`.

        Raises:
            Unsupported: the file has no such head.
            PromptError, ComputeError: as for `embed`.
        """
        self._need_text_head()
        return probabilities(self.embed(texts, pooling="rank", prompt=""))

    def _need_text_head(self) -> None:
        if self.labels_tokens:
            raise Unsupported("the head labels tokens, not whole texts: use classify_tokens")

    @reported
    def score_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        truncate: bool = False,
        most: int | None = None,
    ) -> np.ndarray:
        """The head's scores of pairs of texts, float32 [n, labels], before a softmax or a sigmoid.

        Args:
            truncate: cut tokens off the longer text of a pair that is too long.
            most: tokens that `truncate` keeps, if these are fewer than the file says.

        Raises:
            Unsupported: the file has no head for whole texts.
            PromptError: no pairs, or one is too long.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        self._need_text_head()
        longest = min(self.longest_embedded, most or self.longest_embedded) if truncate else None
        both = [self.pair_ids(query, document, longest) for query, document in pairs]
        ids = read_texts(self.prompts, [ids for ids, _ in both])
        segments = [np.array(s, np.int32) for _, s in both]
        return embed(self.engine, ids, ("rank",), segments, probes=self._probes(len(ids)))

    def pair_ids(
        self, query: str, document: str, most: int | None = None
    ) -> tuple[list[int], list[int]]:
        """The token ids of a query and a document as one text, and the part that each belongs to,
        0 or 1: as the file's template for reranking says, else as its tokenizer joins two texts.

        Args:
            most: of texts that the tokenizer joins, so many ids: the longer text loses tokens at
                its end.
        """
        template, vocabulary = self.source.metadata.get(_RERANK), self.prompts.vocabulary()
        if template is None and not self.judges:
            return vocabulary.encode_pair(query, document, most)
        if template is None:
            texts = (("query", query), ("document", document))
            chat = self.prompts.render([{"role": role, "content": text} for role, text in texts])
            ids = [int(n) for n in self.prompts.numbers(self.prompts.chat(chat))]
            return ids, [0] * len(ids)
        places = {"query": query, "document": document}
        text = _PLACES.sub(lambda place: places[place[1]], str(template))
        ids = vocabulary.encode(text, add_special=False)
        return ids, [0] * len(ids)

    @reported
    def rerank(
        self, query: str, documents: Sequence[str], *, normalize: bool = False
    ) -> np.ndarray:
        """How well each document answers a query, float32 [n], in the order of the documents: the
        larger, the better. Query and document are one text, as the file's template for reranking or
        the model's tokenizer joins them.

        Args:
            normalize: give probabilities from 0 to 1, a sigmoid of the scores.

        Raises:
            Unsupported: the file has no head that ranks, or one of more than two labels. The score
                of a head with two is what the second has more than the first; of labels "yes" and
                "no" it is the probability of "yes", normalised or not.
            PromptError: no documents, or one is too long with the query.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        if isinstance(documents, str) or not documents:
            raise PromptError("documents is a list of texts, of one at least")
        rows = self.score_pairs([(query, document) for document in documents])
        if rows.shape[1] > 2:
            raise Unsupported(
                f"the head has {rows.shape[1]} labels ({', '.join(self.labels)}), and no score of "
                "a document; use classify"
            )
        if self.judges:
            return probabilities(rows)[:, 0]
        scores = rows[:, -1] if rows.shape[1] == 1 else rows[:, 1] - rows[:, 0]
        return probabilities(scores[:, None])[:, 0] if normalize else scores

    @reported
    def classify_tokens(
        self,
        texts: Sequence[str],
        *,
        aggregation: Literal["none", "simple"] = "simple",
        ignore: Sequence[str] = ("O",),
    ) -> list[list[Entity]]:
        """The labels of the tokens of each text, by a head that labels tokens, such as names of
        persons and places.

        Args:
            texts: a list of texts.
            aggregation: "simple" joins neighbours with one label, "B-" and "I-" in front of it
                aside, as transformers' pipelines do; "none" gives each token.
            ignore: labels that are left out.

        Returns:
            for each text dicts with "entity" (of a token) or "entity_group", "score" (of several
            tokens the mean), "word" (the text there), and "start" and "end", its place in
            characters; those of tokens also have "index".

        Raises:
            Unsupported: the file has no such head.
            PromptError, ComputeError: as for `embed`.
        """
        self._check_open()
        if not self.labels_tokens:
            raise Unsupported(f"{self.model.architecture}: the file has no head that labels tokens")
        if isinstance(texts, str):
            raise PromptError("texts is one string; give a list: classify_tokens([text])")
        spans = [self.prompts.vocabulary().encode_spans(text) for text in texts]
        ids = read_texts(self.prompts, [ids for ids, _ in spans])
        found: list[list[Entity]] = []
        rows = self.states_of_tokens(ids, self.model.class_scores)
        for text, (_, places), scores in zip(texts, spans, rows, strict=True):
            tokens: list[Labelled] = labelled(text, places, probabilities(scores), self.labels)
            found.append(entities(text, tokens, aggregation, tuple(ignore)))
        return found
