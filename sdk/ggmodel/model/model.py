"""The base class of architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ConfigError, PromptError, TensorError, TokenizerError, Unsupported
from ..ml import Context, DType, Tensor
from ..ml.graph import in_scope
from .batch import Batch
from .cache import CacheSpec
from .config import Config
from .module import Module
from .multimodal import Input, Multimodal, MultimodalEmbedding, Pixels
from .source_code import author_code, file_of, line_of, type_hints

if TYPE_CHECKING:
    from PIL.Image import Image


class Model(Module):
    """An architecture: annotate `config` with its `Config` class, declare its tensors, write
    `caches` and `hidden`, and register it. Its logits are the field `head` applied to the hidden
    states, or the result of its own `forward`; without either it gives embeddings only.

    Attributes:
        ignore: patterns of tensors that a file may have and the model does not need.
        ignore_hf: the same for a Hugging Face checkpoint, in its names.
        architecture: the name it is registered under.
        read_tokenizer: gives the file's tokenizer; see `tokenizer`.
        bidirectional_images: the rows of an image see each other in both directions; they are
            always computed together.
        image_marker: the text that stands for an image in chat templates.
        clip: extra `clip.*` metadata for llama.cpp's mmproj file: key without "clip." → value, a
            function of the hyperparameters, or None for nothing. None: no such file is written.
    """

    ignore: ClassVar[tuple[str, ...]] = ()
    ignore_hf: ClassVar[tuple[str, ...]] = ()
    architecture: ClassVar[str] = ""
    hf_architectures: ClassVar[tuple[str, ...]] = ()

    config: Any
    read_tokenizer: Callable[[], Any] = staticmethod(lambda: None)

    bidirectional_images: ClassVar[bool] = False
    image_marker: ClassVar[str] = ""
    clip: ClassVar[dict[str, Any] | None] = None

    @classmethod
    def stored_as(cls, hf: Mapping[str, Any], program: str | None = None) -> str:
        """The architecture under which a checkpoint is loaded and written: another one where that
        computes the same, and more programs know it.

        Args:
            hf: the config.json.
            program: "llama.cpp" if that is to run the file, even if it computes something else.
        """
        return cls.architecture

    @property
    def tokenizer(self) -> Any:
        """The `Tokenizer` of the file, None without a vocabulary. It is built on first use: all
        methods but the constructor may use it, also while the largest graphs are reserved."""
        return self.read_tokenizer()

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self.read_tokenizer = lambda: tokenizer

    def caches(self) -> Sequence[CacheSpec]:
        """The memory of each layer: a list with one declaration a layer."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} declares no caches")

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        """Hidden states F32 [width, outputs] of the rows `batch.outputs`, after the last norm."""
        raise Unsupported(
            f"{line_of(type(self))}: {type(self).__name__} has no embeddings: it defines no "
            "hidden(ctx, batch)"
        )

    def project(self, ctx: Context, pooled: Tensor) -> Tensor:
        """Embeddings F32 [.., texts] from pooled hidden states F32 [width, texts]; only for models
        without logits."""
        return pooled

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Logits F32 [vocabulary, outputs] of the rows `batch.outputs`."""
        head = getattr(self, "head", None)
        if head is not None and type(self).hidden is not Model.hidden:
            return head(self.states(ctx, batch))
        lacking = "no logits, only embeddings: use embed" if self.only_embeds else "no forward"
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has {lacking}")

    # images

    @property
    def sees(self) -> bool:
        """Whether it takes images: by default whether the file fills the fields `vision` and
        `projector`."""
        return all(getattr(self, name, None) is not None for name in ("vision", "projector"))

    @property
    def largest_image(self) -> tuple[int, int]:
        """Width and height, in pixels, of an image that needs the most memory."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no largest_image")

    def preprocess(self, image: Image) -> Pixels:
        """The pixels of an opened image (RGB or RGBA), as the vision graph takes them."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no preprocess")

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """The pixels that a reference was given, as `encode_multimodal` takes them; for comparing
        with it. Written where the reference's are no `pixel_values` [.., 3, height, width].

        Args:
            inputs: keywords of the reference's forward, such as "pixel_values".
            data: that of `preprocess` for the same image.
        """
        shape = inputs["pixel_values"].shape
        if len(shape) < 3 or shape[-3] != 3:
            raise PromptError(
                f"the reference's pixels are {list(shape)}, not [.., 3, height, width]: write "
                f"{type(self).__name__}.reference_pixels, {line_of(type(self))}"
            )
        values = np.ascontiguousarray(inputs["pixel_values"], np.float32)
        return Pixels(values.reshape(-1, *shape[-3:]), data)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """Records the graph that encodes an image, in a context of its own."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no encode_multimodal")

    def post_tokenize(self, inputs: list[Input | list[MultimodalEmbedding]]) -> list[Input]:
        """The inputs of a prompt, each image replaced by its `image_inputs`."""
        each = (self.image_inputs(x) if isinstance(x, list) else [x] for x in inputs)
        return [one for expanded in each for one in expanded]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        """The inputs of one image: placeholders for its rows, and the tokens around them.

        Args:
            image: an embedding for each tensor of `encode_multimodal`.
        """
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no image_inputs")

    def token_id(self, text: str, *, default: int | None = None) -> int:
        """The id of the token that stands for exactly this text, such as "<|image|>" or "\n".

        Args:
            default: the id if the vocabulary has no such token, or the file no vocabulary.

        Raises:
            TokenizerError: there is none, and no default.
        """
        found = None if self.tokenizer is None else self.tokenizer.id_of_text(text)
        found = default if found is None else found
        if found is None:
            raise TokenizerError(
                f"{type(self).__name__}: no token of the vocabulary stands for {text!r:.80}; "
                "token_id(…, default=ID) names the id to take then"
            )
        return found

    def __call__(self, ctx: Context, batch: Batch) -> Tensor:
        return self._run("forward", batch.outputs.dim(0), ctx, batch)

    def states(self, ctx: Context, batch: Batch) -> Tensor:
        """`hidden`, its result checked; recorded once a batch."""
        if batch.states is None:
            batch.states = self._run("hidden", batch.outputs.dim(0), ctx, batch)
        return batch.states

    def embeddings(self, ctx: Context, pooled: Tensor) -> Tensor:
        """`project`, its result checked."""
        projects = type(self).project is not Model.project
        return self._run("project", pooled.dim(1), ctx, pooled) if projects else pooled

    @property
    def only_embeds(self) -> bool:
        """Whether it has hidden states but no logits."""
        cls, head = type(self), getattr(self, "head", None)
        return cls.hidden is not Model.hidden and cls.forward is Model.forward and head is None

    def _run(self, method: str, wanted: int, *args: Any) -> Tensor:
        name = f"{type(self).__name__}.{method}"
        with author_code(name, file_of(type(self))):
            result = in_scope(self.scope, getattr(self, method), args, {})
        if not isinstance(result, Tensor):
            raise TensorError(
                f"{line_of(type(self))}: {name} returned {type(result).__name__}; it must return "
                "a tensor"
            )
        unchanged = any(result is given for given in args)
        if result.dtype is not DType.F32 or (result.op is None and not unchanged):
            raise TensorError(
                f"{line_of(type(self))}: {name} returned {result.describe()}; it must be F32 and "
                "computed"
            )
        rows = result.n_elements // result.dim(0)
        if rows != wanted:
            raise TensorError(
                f"{line_of(type(self))}: {name} returned {rows} rows where {wanted} were wanted; "
                "take x.rows(batch.outputs) before the last residual is added"
            )
        return result

    def validate(self) -> None:
        """Called when all fields are filled, before weights are read. Raises to refuse a file."""

    def post_load(self) -> None:
        """Called when the weights are in place."""


def config_class(model: type[Model]) -> type[Config]:
    """The class that a model's `config` is annotated with.

    Raises:
        ConfigError: there is none; names the line.
    """
    hint = type_hints(model).get("config")
    if isinstance(hint, type) and issubclass(hint, Config):
        return hint
    raise ConfigError(
        f"{line_of(model)}: {model.__name__} must annotate its hyperparameters: "
        "`config: SomeConfig`"
    )
