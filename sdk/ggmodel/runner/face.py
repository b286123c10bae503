"""The face of a loaded model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError, PromptError, TokenizerError, Unsupported
from ..gguf import TensorSource
from ..ml import Backend, BackendMemory
from ..model import LoadReport, Model
from .completion import Completion, Piece
from .engine import Engine
from .generation import Generation
from .request import RequestOptions, split_options
from .sampling import log_probability

if TYPE_CHECKING:
    from typing_extensions import Unpack

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

    def score(self, prompt: Prompt) -> np.ndarray:
        """How likely the model takes each token of the prompt but the first, given those before it:
        log-probabilities, float32 [n − 1]. `exp(-score.mean())` is the perplexity.

        Raises:
            PromptError: as for `logits`.
        """
        self._check_open()
        ids = self.engine.check_prompt(self._ids(prompt))
        scores: list[float] = []
        for rows in self.engine.every_logits(ids):
            for row, token in zip(rows, ids[len(scores) + 1 :].tolist(), strict=False):
                scores.append(log_probability(row, token))
        return np.array(scores, np.float32)

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Continues a prompt.

        Args:
            prompt: text, token ids, or a list that mixes both. Text that begins a prompt gets the
                special tokens its vocabulary asks for.
            options: see `RequestOptions`.

        Raises:
            PromptError: the prompt is empty, too long, or has an id out of range.
            ConfigError: an option that there is not, or a value outside of its range.
            ComputeError: the model's logits are NaN, or nothing obeys the grammar.
            Busy: all sequences are in use by streams of this very thread.
        """
        return self.request(prompt, **options).run()

    def stream(
        self, prompt: Prompt, **options: Unpack[RequestOptions]
    ) -> Generator[Piece, None, None]:
        """Like `generate`, a piece a token; closing the iterator cancels the request.

        Many threads may have streams at once: their tokens are computed together, as many sequences
        at a time as the model was loaded with (`parallel`); others wait.
        """
        return self.request(prompt, **options).pieces()

    def astream(
        self, prompt: Prompt, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[Piece, None]:
        """`stream` for coroutines."""
        return self.request(prompt, **options).apieces()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion | Generator[Piece, None, None]:
        """Answers messages, through the chat template of the file.

        Args:
            messages: dicts with `role` and `content`; see `ChatTemplate.render`.
            stream: give the answer piece by piece, as `stream` does, rather than as a whole.
            tools: JSON schemas of functions that the model may call.
            template: Jinja text to use instead, or the name of another template of the file.
            variables: further ones of the template, such as {"enable_thinking": False}.
            options: see `RequestOptions`.

        Raises:
            TemplateError: there is no template, it refuses the messages, or it fails.
            PromptError: the messages are not as they should be, or too long.
        """
        from ..chat import ChatTemplate

        chosen = ChatTemplate.from_metadata(self.source.metadata, self._vocabulary(), template)
        prompt = chosen.encode(messages, tools=tools, **(variables or {}))
        return self.stream(prompt, **options) if stream else self.generate(prompt, **options)

    def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """A request that has not begun; for those who want its pieces and its usage."""
        self._check_open()
        own, sampler = split_options(options)
        max_tokens, stop = own.pop("max_tokens", None), own.pop("stop", ())
        if max_tokens is not None and max_tokens < 0:
            raise PromptError(f"max_tokens is {max_tokens}; it must be 0 or more, or None")
        ids = self.engine.check_prompt(self._ids(prompt))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return Generation(
            self.engine, self.tokenizer, ids, sampler, max_tokens=max_tokens, stop=stops, **own
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
