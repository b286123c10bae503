"""The face of a loaded model."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import GraphError, PromptError, TokenizerError, Unsupported
from ..gguf import TensorSource
from ..ml import Backend, BackendMemory
from ..model import LoadReport, Model
from .completion import Completion, Piece
from .engine import Engine
from .generation import Generation
from .sampling import Sampler

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer
    from .placing import Devices

Prompt = str | Sequence[int] | Sequence[str | int]


class LoadedModel:
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

    @property
    def context_length(self) -> int:
        """Positions a sequence may have."""
        return self.engine.context_length

    @property
    def memory(self) -> BackendMemory:
        """Bytes by layer and purpose."""
        return self.backend.backend_memory()

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text, special tokens in it recognised; `add_special` adds those that
        the vocabulary wants around a text, such as a beginning-of-sequence token."""
        return self._vocabulary().encode(text, add_special=add_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self._vocabulary().decode(ids)

    def logits(self, prompt: Prompt) -> np.ndarray:
        """Logits after every token of the prompt, float32 [n, vocabulary].

        The prompt is computed in a cache of its own: it reads and leaves no state.

        Raises:
            PromptError: empty, too long, or a token id out of range.
        """
        self._check_open()
        return self.engine.all_logits(self.engine.check_prompt(self._ids(prompt)))

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.9,
        min_p: float = 0.0,
        seed: int = -1,
        stop: str | Sequence[str] = (),
        logprobs: bool = False,
    ) -> Completion:
        """Continues a prompt.

        Args:
            prompt: text, token ids, or a list that mixes both. Text that begins a prompt gets the
                special tokens its vocabulary asks for.
            max_tokens: None goes on until the model ends or the context is full.
            temperature, top_k, top_p, min_p, seed: see `Sampler`.
            stop: strings that end the text; they are not part of it.
            logprobs: note each token's log-probability.

        Raises:
            PromptError: the prompt is empty, too long, or has an id out of range.
            ComputeError: the model's logits are NaN.
        """
        sampler = Sampler(temperature, top_k, top_p, min_p, seed)
        return self.request(prompt, sampler, max_tokens, stop, logprobs).run()

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.9,
        min_p: float = 0.0,
        seed: int = -1,
        stop: str | Sequence[str] = (),
        logprobs: bool = False,
    ) -> Generator[Piece, None, None]:
        """Like `generate`, a piece a token; closing the iterator cancels the request."""
        sampler = Sampler(temperature, top_k, top_p, min_p, seed)
        return self.request(prompt, sampler, max_tokens, stop, logprobs).pieces()

    def request(
        self,
        prompt: Prompt,
        sampler: Sampler,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: bool = False,
    ) -> Generation:
        """A request that has not begun; for those who want its pieces and its usage."""
        self._check_open()
        if max_tokens is not None and max_tokens < 0:
            raise PromptError(f"max_tokens is {max_tokens}; it must be 0 or more, or None")
        ids = self.engine.check_prompt(self._ids(prompt))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return Generation(
            self.engine,
            self.tokenizer,
            ids,
            sampler,
            max_tokens=max_tokens,
            stop=stops,
            logprobs=logprobs,
        )

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        ids: list[int] = []
        for i, part in enumerate(prompt):
            if isinstance(part, str):
                ids += self.tokenize(part, add_special=i == 0)
            elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
                ids.append(int(part))
            else:
                raise Unsupported(
                    f"a prompt holds strings and token ids, not {type(part).__name__}; "
                    "images come with the models that see"
                )
        return ids

    def _vocabulary(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(
                f"{self.source.name} holds no vocabulary (tokenizer.ggml.*): give token ids"
            )
        return self.tokenizer

    def _check_open(self) -> None:
        if self.backend.closed:
            raise GraphError("this model is closed; load it again")

    def close(self) -> None:
        """Frees everything; idempotent."""
        self.engine.close()
        self.backend.close()
        self.devices.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
