"""The face of a loaded model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError, PromptError, TokenizerError
from ..gguf import TensorSource
from ..ml import Backend, BackendMemory
from ..model import Embedding, Input, LoadReport, Model
from .completion import Completion, Piece
from .embedding import Pooling, embed, normalized, pooling_of
from .engine import Engine
from .generation import Generation
from .request import RequestOptions, split_options
from .reservation import VisionMemory
from .sampling import log_probability

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..tokenizer import Tokenizer
    from .placing import Devices

# Images are whatever `ggmodel.image.open_image` takes, but for strings: these are text.
Prompt = str | Sequence[int] | Sequence[Any]


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

    @property
    def vision_memory(self) -> VisionMemory | None:
        """Bytes that seeing takes; None for models that see nothing."""
        return self.engine.worst.vision

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text, special tokens in it recognised; `add_special` adds those that
        the vocabulary wants around a text, such as a beginning-of-sequence token."""
        return self._vocabulary().encode(text, add_special=add_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self._vocabulary().decode(ids)

    def logits(self, prompt: Prompt) -> np.ndarray:
        """Logits after every input of the prompt, float32 [n, vocabulary].

        The prompt is computed in a cache of its own: it reads and leaves no state. A list of
        `Input` is taken as it is: whoever lays an embedding there also lays what surrounds it.

        Raises:
            PromptError: empty, too long, or a token id out of range.
        """
        self._check_open()
        return self.engine.all_logits(self.engine.check_prompt(self._numbers(prompt)))

    def score(self, prompt: Prompt) -> np.ndarray:
        """How likely the model takes each token of the prompt but the first, given those before it:
        log-probabilities, float32 [n − 1]. `exp(-score.mean())` is the perplexity.

        Raises:
            PromptError: as for `logits`.
        """
        self._check_open()
        ids = self.engine.check_prompt(self._numbers(prompt))
        if (ids[1:] < 0).any():
            raise PromptError("images have no log-probabilities: score a prompt without any")
        scores: list[float] = []
        for rows in self.engine.every_logits(ids):
            for row, token in zip(rows, ids[len(scores) + 1 :].tolist(), strict=False):
                scores.append(log_probability(row, token))
        return np.array(scores, np.float32)

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Continues a prompt.

        Args:
            prompt: text, token ids, or a list that mixes both and images: paths as `Path`, bytes,
                PIL images, preprocessed pixels, embeddings. Text that begins a prompt gets the
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
            messages: dicts with `role` and `content`; see `ChatTemplate.render`. Images are parts
                of a content or stand in `images`; see `ggmodel.chat.take_images`.
            stream: give the answer piece by piece, as `stream` does, rather than as a whole.
            tools: JSON schemas of functions that the model may call.
            template: Jinja text to use instead, or the name of another template of the file.
            variables: further ones of the template, such as {"enable_thinking": False}.
            options: see `RequestOptions`.

        Raises:
            TemplateError: there is no template, it refuses the messages, or it fails.
            PromptError: the messages are not as they should be, or too long.
        """
        prompt = self.chat_prompt(messages, tools=tools, template=template, variables=variables)
        return self.stream(prompt, **options) if stream else self.generate(prompt, **options)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The prompt that `chat` makes of messages: token ids and images."""
        from ..chat import ChatTemplate, take_images

        chosen = ChatTemplate.from_metadata(self.source.metadata, self._vocabulary(), template)
        messages, images = take_images(messages)
        marker = self._marker() if images else ""
        given = {"tools": tools, **(variables or {})}
        parts = chosen.encode_parts(messages, image_marker=marker, **given)
        prompt: list[Any] = list(parts[0])
        for image, ids in zip(images, parts[1:], strict=True):
            prompt += [self._image(image), *ids]
        return prompt

    def length(self, prompt: Prompt) -> int:
        """How many positions of the context a prompt takes."""
        return len(self._numbers(prompt))

    def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """A request that has not begun; for those who want its pieces and its usage."""
        self._check_open()
        own, sampler = split_options(options)
        max_tokens, stop = own.pop("max_tokens", None), own.pop("stop", ())
        if max_tokens is not None and max_tokens < 0:
            raise PromptError(f"max_tokens is {max_tokens}; it must be 0 or more, or None")
        truncate, images = own.pop("truncate", False), own.pop("images", ())
        numbers = self._numbers(self._with_images(prompt, images))
        ids = self.engine.check_prompt(numbers, truncate, own.get("num_keep", 0))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return Generation(
            self.engine, self.tokenizer, ids, sampler, max_tokens=max_tokens, stop=stops, **own
        )

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
            pooling: "mean" of all tokens, "cls" (the first) or "last"; None is what the file says
                (`pooling_type`), else the mean.
            normalize: make rows of length 1; those that are zero stay so.

        Raises:
            PromptError: no texts, or one is empty, too long, or has a token id out of range.
            ConfigError: there is no such pooling.
            Unsupported: the architecture has no embeddings.
            ComputeError: the model's hidden states are not finite.
        """
        self._check_open()
        if isinstance(texts, str):
            raise PromptError("texts is one string; give a list: embed([text])")
        if not len(texts):
            raise PromptError("there are no texts; give at least one")
        chosen = pooling_of(self.source.metadata, pooling)
        ids = []
        for i, text in enumerate(texts):
            try:
                ids.append(self.engine.check_prompt(self._numbers(text)))
                if (ids[-1] < 0).any():
                    raise PromptError("it holds an image; only texts are embedded")
            except PromptError as error:
                raise PromptError(f"text {i}: {error}") from None
        rows = embed(self.engine, ids, chosen)
        return normalized(rows) if normalize else rows

    # images

    def encode_image(self, image: Any, **data: Any) -> list[Embedding]:
        """What the model makes of an image, computed: an embedding, `rows` float32 [rows, width],
        for each tensor of its `encode_multimodal`.

        Args:
            image: a path, bytes, a data URL or a PIL image; or pixels as the reference's processor
                gives them, float32 [tiles, 3, height, width].
            data: what belongs to such pixels, by the name that the model knows it under.

        Raises:
            Unsupported: this model takes no images.
            ImageError: it is none.
        """
        found = self.embeddings(image, **data)
        for one in found:
            one.rows  # noqa: B018 (computes them)
        return found

    def embeddings(self, image: Any, **data: Any) -> list[Embedding]:
        """`encode_image`, but computed only when a prompt that holds them is."""
        self._check_open()
        return self.engine.images.encode(image, data)

    def _marker(self) -> str:
        self.engine.images.need_sight()
        return self.model.image_marker

    def _with_images(self, prompt: Prompt, images: Sequence[Any]) -> Prompt:
        """The prompt with images in the places of the markers, or before it."""
        if not images:
            return prompt
        if not isinstance(prompt, str):
            raise PromptError("images= goes with a text; put them into the list where they belong")
        marker = self._marker()
        texts = prompt.split(marker) if marker and marker in prompt else None
        found = [self.embeddings(image) for image in images]
        if texts is None:
            return [*found, prompt]
        if len(texts) != len(images) + 1:
            raise PromptError(
                f"the prompt holds {marker!r} {len(texts) - 1} times for {len(images)} images"
            )
        parts: list[Any] = [texts[0]]
        for image, text in zip(found, texts[1:], strict=True):
            parts += [image, text]
        return parts

    def _numbers(self, prompt: Prompt) -> list[int] | np.ndarray:
        """The inputs of a prompt as the engine numbers them; without images their token ids."""
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        inputs: list[Any] = []
        for i, part in enumerate(prompt):
            if isinstance(part, str):
                inputs += self.tokenize(part, add_special=i == 0)
            elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
                inputs.append(int(part))
            elif isinstance(part, Input):
                inputs.append(part)
            else:
                if i == 0 and self.tokenizer is not None:
                    inputs += self.tokenize("")
                inputs.append(self._image(part))
        if all(isinstance(one, int) for one in inputs):
            return inputs
        inputs = [Input(one) if isinstance(one, int) else one for one in inputs]
        if any(isinstance(one, list) for one in inputs):
            inputs = self.engine.images.expand(inputs)
        return self.engine.number(inputs)

    def _image(self, part: Any) -> list[Embedding]:
        if isinstance(part, list) and part and all(isinstance(e, Embedding) for e in part):
            return part
        if isinstance(part, (bool, float, complex, list, tuple, dict, set, type(None))):
            raise PromptError(
                "a prompt is text, or a list of texts, token ids and images, not of "
                f"{type(part).__name__}"
            )
        return self.embeddings(part)

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
