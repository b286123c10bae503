"""A loaded model: the methods that users call, embeddings among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import ComputeError, ConfigError, PromptError, Unsupported
from ...gguf_file import TensorSource
from ...gguf_file.values import KeyValues
from ...ml import Backend, BackendMemory, Context, Tensor
from ...model import LoadReport, Model, MultimodalEmbedding, Step
from ...resources import Closing, reported
from ..engine.engine import Engine
from ..engine.memory_plan import EncoderMemory
from ..engine.scoring import Scoring
from ..sampling import log_probability
from .answering import Answering
from .prompts import Prompt, Prompts

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer
    from ..engine.graphs import Graphs
    from ..loading.preparation import Devices

Pooling = Literal["mean", "cls", "last", "rank"]

_POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last", "rank")
# The values of `pooling_type` in GGUF; 0 is none.
_BY_NUMBER: dict[int, Pooling] = {0: "mean", 1: "mean", 2: "cls", 3: "last", 4: "rank"}


def pooling_of(metadata: Mapping[str, Any], name: str | None) -> Pooling:
    """The pooling of this name, or else the file's; the mean where it names none.

    Raises:
        ConfigError: no pooling has that name.
        Unsupported: the file's pooling is of another kind.
    """
    for pooling in _POOLINGS:
        if name == pooling:
            return pooling
    if name is not None:
        raise ConfigError(f"there is no pooling {name!r}; there is {', '.join(_POOLINGS)}")
    number = KeyValues(metadata).get("pooling_type", int) or 0
    if number not in _BY_NUMBER:
        raise Unsupported(
            f"the file's pooling_type {number} is unsupported; give pooling= one of "
            f"{', '.join(_POOLINGS)}"
        )
    return _BY_NUMBER[number]


def read_texts(prompts: Prompts, texts: Iterable[str | Sequence[int]]) -> list[np.ndarray]:
    """The token ids of texts, int32 [n] each.

    Raises:
        PromptError: no list of texts, no texts, or one is empty, too long, or holds an image.
    """
    if isinstance(texts, str):
        raise PromptError("texts is one string; give a list: embed([text])")
    if not isinstance(texts, Iterable):
        raise PromptError(f"texts is a list of texts, not {type(texts).__name__}")
    ids: list[np.ndarray] = []
    for i, text in enumerate(texts):
        try:
            ids.append(prompts.read(text))
            if (ids[-1] < 0).any():
                raise PromptError("it holds an image; only texts are embedded")
        except PromptError as error:
            raise PromptError(f"text {i}: {error}") from None
    if not ids:
        raise PromptError("there are no texts; give at least one")
    return ids


def embed(
    engine: Engine,
    texts: Sequence[np.ndarray],
    pooling: Pooling,
    segments: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """One row a text, float32 [texts, width]; [texts, labels] of the head's scores for "rank".

    Texts of similar length share a step, as many as the batch size has room for; a longer text
    takes several. Each step has a cache of its own, and between two of them requests go on.

    Args:
        texts: token ids, int32 [n] each, that `Prompts.read` gave.
        segments: of pairs, the text that each token belongs to, as `Step.segments`.

    Raises:
        Unsupported: the architecture has no embeddings.
        PromptError: a text has to be computed at once and does not fit the batch size.
        ComputeError: the model's hidden states are not finite.
    """
    if engine.single_step:
        for i, text in enumerate(texts):
            if len(text) > engine.batch_size:
                raise PromptError(
                    f"text {i} has {len(text)} tokens, the batch {engine.batch_size}; this model "
                    "reads a text at once: load it with a larger batch_size, or shorten the text"
                )
    rows: dict[int, np.ndarray] = {}
    rest = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    while rest:
        longest = len(texts[rest[0]])
        count = max(1, engine.batch_size // longest)
        together, rest = rest[:count], rest[count:]
        pairs = None if segments is None else [segments[i] for i in together]
        chosen = {i: texts[i] for i in together}
        rows |= engine.call(partial(_embed, engine, chosen, pooling, pairs))
    return np.stack([rows[i] for i in range(len(texts))])


def _embed(
    engine: Engine,
    texts: Mapping[int, np.ndarray],
    pooling: Pooling,
    segments: Sequence[np.ndarray] | None,
) -> dict[int, np.ndarray]:
    """Rows float32 [width] of texts that are computed together, by number; in the engine's
    thread."""
    longest = max(len(text) for text in texts.values())
    ranks = pooling == "rank"
    if ranks:
        pooling = _BY_NUMBER[getattr(engine.model.config, "head_pools", 2)]
    with Scoring(engine).graphs(engine.model.states, len(texts), longest) as graphs:
        pooled = _pool(engine, graphs, list(texts.values()), pooling, segments)
    for i, row in zip(texts, pooled, strict=True):
        if not np.isfinite(row).all():
            raise ComputeError(f"the model's hidden states of text {i} are not finite")
    last = engine.model.class_scores if ranks else engine.model.embeddings
    return dict(zip(texts, _project(engine, pooled, last), strict=True))


def _pool(
    engine: Engine,
    graphs: Graphs,
    texts: Sequence[np.ndarray],
    pooling: Pooling,
    segments: Sequence[np.ndarray] | None,
) -> np.ndarray:
    """Pooled hidden states, float32 [texts, width]. Several texts fit a step together."""
    sums: np.ndarray | None = None
    counts = np.zeros((len(texts), 1))
    last = np.array([len(text) - 1 for text in texts])
    for start in range(0, int(last.max()) + 1, engine.batch_size):
        pieces = [text[start : start + engine.batch_size] for text in texts]
        sequences = np.repeat(np.arange(len(texts), dtype=np.int32), [len(p) for p in pieces])
        positions = np.concatenate([np.arange(len(p), dtype=np.int32) for p in pieces]) + start
        selected = {
            "mean": positions >= 0,
            "cls": positions == 0,
            "last": positions == last[sequences],
        }
        outputs = np.flatnonzero(selected[pooling]).astype(np.int32)
        tokens = np.concatenate(pieces)
        step = Step(tokens, positions, sequences, outputs)
        if segments is not None:
            step.segments = np.concatenate([s[start : start + engine.batch_size] for s in segments])
        if graphs.histories is not None:
            step.components = graphs.histories.components(tokens, positions, sequences)
        graphs.cache.start_forward(step)
        states = graphs.run(step)
        if sums is None:
            sums = np.zeros((len(texts), states.shape[1]))
        np.add.at(sums, sequences[outputs], states)
        np.add.at(counts, sequences[outputs], 1)
    assert sums is not None
    return (sums / counts).astype(np.float32)


def _project(
    engine: Engine, pooled: np.ndarray, last: Callable[[Context, Tensor], Tensor]
) -> np.ndarray:
    """Pooled rows after the architecture's last layers, float32 [texts, width]."""
    with engine.backend.new_context() as ctx, ctx.trace():
        before = ctx.input().from_floats(pooled)
        after = last(ctx, before)
        if after is before:
            return pooled
        ctx.compute(after)
        return after.numpy().reshape(len(pooled), -1)


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1, float32 [n, width]; those that are zero stay so."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Scores of labels [n, labels] as probabilities, float32: a softmax, or a sigmoid of one."""
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        return probabilities(scores)[:, 1:]
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


_CLOSE_SECONDS = 0.3  # seconds that closing waits for a step in another process


class LoadedModel(Answering, Closing):
    """A model ready to run; made by `ggmodel.load`, a context manager.

    Attributes:
        model: the architecture with its tensors.
        report: which tensor filled which field.
        tokenizer: None if the file has no vocabulary.
    """

    def __init__(
        self,
        source: TensorSource,
        devices: Devices,
        backend: Backend,
        model: Model,
        report: LoadReport,
        tokenizer: Tokenizer | None,
        engine: Engine,
    ):
        self.source, self.devices = source, devices
        self.backend, self.model = backend, model
        self.report, self.tokenizer, self.engine = report, tokenizer, engine
        self.prompts = Prompts(engine, tokenizer, source)

    def __repr__(self) -> str:
        return described(self)

    @property
    def context_length(self) -> int:
        """Positions a sequence may have."""
        return self.engine.context_length

    @property
    def memory(self) -> BackendMemory:
        """Bytes by layer and purpose."""
        return self.engine.between_steps(self.backend.backend_memory)

    @property
    def encoder_memory(self) -> Mapping[str, EncoderMemory]:
        """Bytes that images and other items take, by kind; empty for models of text."""
        return self.engine.memory_plan.encoders

    @reported
    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text, special tokens in it recognised; `add_special` adds those that
        the vocabulary wants around a text, such as a beginning-of-sequence token."""
        return self.prompts.vocabulary().encode(text, add_special=add_special)

    @reported
    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self.prompts.vocabulary().decode(ids)

    @reported
    def length(self, prompt: Prompt) -> int:
        """How many positions of the context a prompt takes."""
        return len(self.prompts.numbers(prompt))

    @reported
    def logits(self, prompt: Prompt) -> np.ndarray:
        """Logits after every input of the prompt, float32 [n, vocabulary].

        The prompt is computed in a cache of its own: it reads and leaves no state. A list of
        `Input` is taken as it is: placeholders around an embedding are up to the caller.

        Raises:
            PromptError: empty, too long, or a token id out of range.
        """
        self._check_open()
        return Scoring(self.engine).all_logits(self.prompts.read(prompt))

    @reported
    def score(self, prompt: Prompt) -> np.ndarray:
        """How likely the model takes each token of the prompt but the first, given those before it:
        log-probabilities, float32 [n − 1]. `exp(-score.mean())` is the perplexity.

        Raises:
            PromptError: as for `logits`.
        """
        self._check_open()
        ids = self.prompts.read(prompt)
        if self.model.prompt_item:
            raise Unsupported(
                f"{self.model.architecture}: an encoder reads the text, and gives its tokens no "
                "probabilities; generate(prompt, logprobs=True) has those of an answer"
            )
        if (ids < 0).any():
            raise PromptError("images have no log-probabilities: score a prompt without any")
        scores: list[float] = []

        def take(rows: np.ndarray) -> None:
            for row, token in zip(rows, ids[len(scores) + 1 :].tolist(), strict=False):
                scores.append(log_probability(row, token))

        Scoring(self.engine).each_logits(ids, take)
        return np.array(scores, np.float32)

    @reported
    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool = False,
    ) -> np.ndarray:
        """One row of numbers a text, float32 [n, width]: similar texts have similar rows.

        The hidden states after the last norm, pooled. Texts are computed together, in a cache of
        their own: they read and leave no state.

        Args:
            texts: a list of texts, or of token ids each.
            pooling: "mean" of all tokens, "cls" (the first) or "last"; None takes the file's
                (`pooling_type`), else the mean. "rank" gives the scores of a head for whole texts,
                float32 [n, labels], of which `classify` and `rerank` make more.
            normalize: make rows of length 1; zero rows stay zero.

        Raises:
            PromptError: no texts, or one is empty, too long, or has a token id out of range.
            ConfigError: no pooling has that name.
            Unsupported: the architecture has no embeddings.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        if self.model.prompt_item:
            raise Unsupported(
                f"{self.model.architecture}: embeddings are those of an encoder alone; convert its "
                "checkpoint as such (T5EncoderModel)"
            )
        chosen = pooling_of(self.source.metadata, pooling)
        rows = embed(self.engine, read_texts(self.prompts, texts), chosen)
        return normalized(rows) if normalize else rows

    @property
    def labels(self) -> list[str]:
        """The labels of the head for whole texts, in order of its scores; none without a head."""
        return list(getattr(self.model.config, "labels", None) or ())

    @property
    def ranks(self) -> bool:
        """Whether it has a head for whole texts, of one label or two: `rerank` works."""
        head = getattr(self.model, "classifier", None)
        return head is not None and head.labels <= 2

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
        return probabilities(self.embed(texts, pooling="rank"))

    @reported
    def rerank(
        self, query: str, documents: Sequence[str], *, normalize: bool = False
    ) -> np.ndarray:
        """How well each document answers a query, float32 [n], in the order of the documents: the
        larger, the better. Query and document are one text of two parts, as the model's tokenizer
        joins them.

        Args:
            normalize: give probabilities from 0 to 1, a sigmoid of the scores.

        Raises:
            Unsupported: the file has no head that ranks, or one of more than two labels. The score
                of a head with two is what the second has more than the first.
            PromptError: no documents, or one is too long with the query.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        if isinstance(documents, str) or not documents:
            raise PromptError("documents is a list of texts, of one at least")
        encode = self.prompts.vocabulary().encode_pair
        pairs = [encode(query, document) for document in documents]
        ids = read_texts(self.prompts, [ids for ids, _ in pairs])
        rows = embed(self.engine, ids, "rank", [np.array(s, np.int32) for _, s in pairs])
        if rows.shape[1] > 2:
            raise Unsupported(
                f"the head has {rows.shape[1]} labels ({', '.join(self.labels)}), and no score of "
                "a document; use classify"
            )
        scores = rows[:, -1] if rows.shape[1] == 1 else rows[:, 1] - rows[:, 0]
        return probabilities(scores[:, None])[:, 0] if normalize else scores

    @reported
    def encode_media(self, kind: str, item: Any, /, **data: Any) -> list[MultimodalEmbedding]:
        """The embeddings of an item, computed: `rows` float32 [rows, width] for each tensor that
        the model's encoder makes of it.

        Args:
            kind: "image", "audio", "video", or another one of the model's `modalities`.
            item: an image as a path, bytes, a data URL or a PIL image; a sound as for `open_audio`,
                a video as for `open_video`; or an array of floats as the reference's processor
                gives it, such as pixels float32 [tiles, 3, height, width].
            data: further inputs that belong to such an array, by the model's names for them.

        Raises:
            Unsupported: this model takes no such items.
            ImageError, AudioError, VideoError: the item cannot be read.
            PromptError: the array does not suit the model, or holds NaN.
        """
        embeddings = self.embeddings(item, kind, **data)
        for one in embeddings:
            one.compute()
        return embeddings

    @reported
    def encode_image(self, image: Any, /, **data: Any) -> list[MultimodalEmbedding]:
        """`encode_media("image", image, …)`."""
        return self.encode_media("image", image, **data)

    @reported
    def embeddings(
        self, item: Any, kind: str = "image", /, **data: Any
    ) -> list[MultimodalEmbedding]:
        """`encode_media`, but computed only when a prompt that holds them is."""
        self._check_open()
        return self.engine.images.encode_media(kind, item, data)

    def close(self) -> None:
        """Frees everything; idempotent. A forked child leaves that to its parent."""
        if self.engine.forked:
            return
        if not self.engine.close(None if self.devices.runner is None else _CLOSE_SECONDS):
            self.devices.close()  # ends the process that computes, and so its step
            self.engine.close()
        self.backend.close()
        self.devices.close()


def described(model: LoadedModel) -> str:
    """Architecture, size, type, devices and context of a model, in one line."""
    by_type: Counter[str] = Counter()
    for info in model.source.tensors.values():
        by_type[info.dtype.name] += info.nbytes
    (main, _), *_ = by_type.most_common(1)
    parameters = sum(info.n_elements for info in model.source.tensors.values())
    where = "closed"
    if not model.backend.closed:
        memory = model.memory
        where = "on " + ", ".join(d.name for d in (*memory.gpus, memory.cpu) if d.size())
    return (
        f"<LoadedModel {model.source.name}: {model.report.architecture}, "
        f"{parameters / 1e6:,.1f} million parameters, {main}, {by_type.total() / 2**20:,.1f} MiB, "
        f"{where}, context {model.context_length:,}>"
    )
