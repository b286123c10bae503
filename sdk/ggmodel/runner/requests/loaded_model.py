"""The face of a loaded model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import GraphError, PromptError, Unsupported
from ...gguf_file import TensorSource
from ...ml import Backend, BackendMemory
from ...model import LoadReport, Model, MultimodalEmbedding
from ..engine.engine import Engine
from ..engine.reservation import VisionMemory
from ..sampling import log_probability
from .completion import Completion, Piece
from .embedding import Pooling, embed, normalized, pooling_of
from .generation import Generation
from .options import RequestOptions, split_options
from .prompts import Prompt, Prompts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...tokenizer import Tokenizer
    from ..loading.placement import Devices


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
        self.prompts = Prompts(engine, tokenizer, source.name)

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
        return self.prompts.vocabulary().encode(text, add_special=add_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self.prompts.vocabulary().decode(ids)

    def logits(self, prompt: Prompt) -> np.ndarray:
        """Logits after every input of the prompt, float32 [n, vocabulary].

        The prompt is computed in a cache of its own: it reads and leaves no state. A list of
        `Input` is taken as it is: whoever lays an embedding there also lays what surrounds it.

        Raises:
            PromptError: empty, too long, or a token id out of range.
        """
        self._check_open()
        return self.engine.apart.all_logits(self.prompts.read(prompt))

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

        self.engine.apart.each_logits(ids, take)
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
        from ...chat import ChatTemplate, take_images

        chosen = ChatTemplate.from_metadata(
            self.source.metadata, self.prompts.vocabulary(), template
        )
        messages, images = take_images(messages)
        marker = self.prompts.marker() if images else ""
        given = {"tools": tools, **(variables or {})}
        parts = chosen.encode_parts(messages, image_marker=marker, **given)
        return self.prompts.between(parts, images)

    def length(self, prompt: Prompt) -> int:
        """How many positions of the context a prompt takes."""
        return len(self.prompts.numbers(prompt))

    def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """A request that has not begun; for those who want its pieces and its usage."""
        self._check_open()
        own, sampler = split_options(options)
        if self.model.only_embeds:
            raise Unsupported("this model generates nothing, it only embeds: use embed")
        max_tokens, stop = own.pop("max_tokens", None), own.pop("stop", ())
        truncate, images = own.pop("truncate", False), own.pop("images", ())
        prompt = self.prompts.with_images(prompt, images)
        ids = self.prompts.read(prompt, truncate, own.get("num_keep", 0))
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
        if not isinstance(texts, Iterable):
            raise PromptError(f"texts is a list of texts, not {type(texts).__name__}")
        texts = list(texts)
        if not texts:
            raise PromptError("there are no texts; give at least one")
        chosen = pooling_of(self.source.metadata, pooling)
        ids = []
        for i, text in enumerate(texts):
            try:
                ids.append(self.prompts.read(text))
                if (ids[-1] < 0).any():
                    raise PromptError("it holds an image; only texts are embedded")
            except PromptError as error:
                raise PromptError(f"text {i}: {error}") from None
        rows = embed(self.engine, ids, chosen)
        return normalized(rows) if normalize else rows

    # images

    def encode_image(self, image: Any, **data: Any) -> list[MultimodalEmbedding]:
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
            one.compute()
        return found

    def embeddings(self, image: Any, **data: Any) -> list[MultimodalEmbedding]:
        """`encode_image`, but computed only when a prompt that holds them is."""
        self._check_open()
        return self.engine.images.encode(image, data)

    def _check_open(self) -> None:
        self.engine.check_process()
        if self.backend.closed:
            raise GraphError("this model is closed; load it again")

    def close(self) -> None:
        """Frees everything; idempotent. A forked child leaves that to its parent."""
        if self.engine.forked:
            return
        self.engine.close()
        self.backend.close()
        self.devices.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
