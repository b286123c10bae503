"""A loaded model: the methods that users call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...closing import Closing
from ...errors import PromptError
from ...gguf_file import TensorSource
from ...ml import Backend, BackendMemory
from ...model import LoadReport, Model, MultimodalEmbedding
from ...shortage import reported
from ..engine.apart import Apart
from ..engine.engine import Engine
from ..engine.reservation import EncoderMemory
from ..sampling import log_probability
from .answering import Answering
from .embedding import Pooling, embed, normalized, pooling_of, read_texts
from .prompts import Prompt, Prompts

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer
    from ..loading.placement import Devices


_PATIENCE = 0.3  # seconds that closing waits for a step in another process


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
        self.prompts = Prompts(engine, tokenizer, source.name)

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
        return self.engine.worst.encoders

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
        return Apart(self.engine).all_logits(self.prompts.read(prompt))

    @reported
    def score(self, prompt: Prompt) -> np.ndarray:
        """How likely the model takes each token of the prompt but the first, given those before it:
        log-probabilities, float32 [n − 1]. `exp(-score.mean())` is the perplexity.

        Raises:
            PromptError: as for `logits`.
        """
        self._check_open()
        ids = self.prompts.read(prompt)
        if (ids < 0).any():
            raise PromptError("images have no log-probabilities: score a prompt without any")
        scores: list[float] = []

        def take(rows: np.ndarray) -> None:
            for row, token in zip(rows, ids[len(scores) + 1 :].tolist(), strict=False):
                scores.append(log_probability(row, token))

        Apart(self.engine).each_logits(ids, take)
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
                (`pooling_type`), else the mean.
            normalize: make rows of length 1; zero rows stay zero.

        Raises:
            PromptError: no texts, or one is empty, too long, or has a token id out of range.
            ConfigError: no pooling has that name.
            Unsupported: the architecture has no embeddings.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        chosen = pooling_of(self.source.metadata, pooling)
        rows = embed(self.engine, read_texts(self.prompts, texts), chosen)
        return normalized(rows) if normalize else rows

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
        found = self.embeddings(item, kind, **data)
        for one in found:
            one.compute()
        return found

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
        if not self.engine.close(None if self.devices.runner is None else _PATIENCE):
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
