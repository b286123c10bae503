"""A loaded model: the methods that users call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigError, PromptError, Unsupported
from ...gguf_file import TensorSource
from ...ml import Backend, BackendMemory
from ...model import LoadReport, Model, MultimodalEmbedding
from ...resources import Closing, reported
from ...storage import atomic_write
from ..engine.engine import Engine
from ..engine.memory_plan import EncoderMemory
from ..engine.scoring import Scoring
from ..loading.adapters import AdapterPaths
from ..sampling import log_probability
from .adapters import Adapters
from .chatting import Chatting
from .embedding import Embedding
from .prompts import Prompt, Prompts
from .slot_states import SlotStates

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer
    from ..loading.preparation import Devices

_CLOSE_SECONDS = 0.3  # seconds that closing waits for a step in another process


class LoadedModel(Chatting, Embedding, Closing):
    """A model ready to run; made by `ggmodel.load`, a context manager.

    Attributes:
        model: the architecture with its tensors.
        report: which tensor filled which field.
        tokenizer: None if the file has no vocabulary.
        draft: the draft model, which this one closes; None without.
        adapters: LoRA and DoRA adapters, by name; see `Adapters`.
        slots: the states of its slots as bytes; see `save_state`.
    """

    draft: LoadedModel | None = None

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
        self.adapters = Adapters(engine, source)
        self.slots = SlotStates(engine, source)

    def __repr__(self) -> str:
        return f"<LoadedModel {self.source.name}: {', '.join(_facts(self).values())}>"

    def _repr_html_(self) -> str:
        """The model as notebooks show it."""
        from html import escape  # slow

        rows = {"model": self.source.name, **_facts(self)}
        cells = (
            f'<tr><th style="text-align: left">{name}</th><td>{escape(text)}</td></tr>'
            for name, text in rows.items()
        )
        return f"<table>{''.join(cells)}</table>"

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
    def logits(self, prompt: Prompt, *, adapters: AdapterPaths = None) -> np.ndarray:
        """Logits after every input of the prompt, float32 [n, vocabulary].

        The prompt is computed in a cache of its own: it reads and leaves no state. A list of
        `Input` is taken as it is: placeholders around an embedding are up to the caller.

        Args:
            adapters: see `RequestOptions`.

        Raises:
            PromptError: empty, too long, or a token id out of range.
        """
        self._check_open()
        chosen, probe = Scoring(self.engine, self.adapters.chosen(adapters)), self.probe()
        return chosen.all_logits(self.prompts.read(prompt, probe=probe), probe)

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

        Scoring(self.engine).each_logits(ids, take, probe=self.probe())
        return np.array(scores, np.float32)

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
        return self.engine.images.encode_media(kind, item, data, self.probe())

    @reported
    def save_state(self, path: str | Path, *, slot: int | None = None) -> int:
        """Writes what a slot holds, its tokens with keys, values and states of all layers, to a
        file for `load_state`. Prefixes on disk (`prefix_store`) need no such calls.

        Args:
            slot: its number, from 0 to `parallel` − 1; None is the one used last.

        Returns:
            The number of its tokens.

        Raises:
            ConfigError: there is no such slot. Busy: it serves a request.
            Unsupported: it holds nothing, or what cannot be saved: pictures and other items, a
                context that was shifted, results of adapters and patches, values without flash
                attention.
            WriteError: the file cannot be written.
        """
        self._check_open()
        count, data = self.slots.save(slot)
        with atomic_write(path) as file:
            file.writelines(data)
        return count

    @reported
    def load_state(self, path: str | Path, *, slot: int | None = None) -> int:
        """Has a slot hold what `save_state` wrote, with the same bits: prompts that begin with its
        tokens go on from there.

        Args:
            slot: its number; None is the one used last.

        Returns:
            The number of its tokens.

        Raises:
            ConfigError: the file cannot be read, or is of another model, `kv_type` or a longer
                context; there is no such slot. Busy: it serves a request.
            FormatError: the file is damaged, or no state.
            KvCacheFull: the state does not fit.
        """
        self._check_open()
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read the state {path}: {error.strerror}") from error
        return self.slots.load(data, slot, str(path))

    @reported
    def erase_state(self, *, slot: int | None = None) -> int:
        """Has a slot forget all that it holds.

        Args:
            slot: its number; None is the one used last.

        Returns:
            The number of its tokens.

        Raises:
            ConfigError: there is no such slot. Busy: it serves a request.
        """
        self._check_open()
        return self.slots.erase(slot)

    def close(self) -> None:
        """Frees everything; idempotent. A forked child leaves that to its parent."""
        if self.engine.forked:
            return
        if not self.engine.close(None if self.devices.runner is None else _CLOSE_SECONDS):
            self.devices.close()  # ends the process that computes, and so its step
            self.engine.close()
        self.backend.close()
        self.devices.close()
        if self.draft is not None:
            self.draft.close()


def _facts(model: LoadedModel) -> dict[str, str]:
    """Architecture, size, type, devices and context of a model."""
    by_type: Counter[str] = Counter()
    for info in model.source.tensors.values():
        by_type[info.dtype.name] += info.nbytes
    (main, _), *_ = by_type.most_common(1)
    parameters = sum(info.n_elements for info in model.source.tensors.values())
    where = "closed"
    if not model.backend.closed:
        memory = model.memory
        where = "on " + ", ".join(d.name for d in (*memory.gpus, memory.cpu) if d.size())
    return {
        "architecture": model.report.architecture,
        "size": f"{parameters / 1e6:,.1f} million parameters",
        "type": main,
        "memory of the weights": f"{by_type.total() / 2**20:,.1f} MiB",
        "devices": where,
        "context": f"context {model.context_length:,}",
    }
