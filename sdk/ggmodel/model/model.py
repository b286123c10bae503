"""The base class of architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ConfigError, PromptError, TensorError, TokenizerError, Unsupported
from ..image import grey, open_image, within_memory
from ..ml import Context, DType, Tensor
from ..ml.graph import in_scope
from .batch import Batch
from .cache import CacheSpec
from .config import Config
from .module import Module
from .multimodal import (
    REFERENCE_INPUTS,
    Input,
    Modality,
    Multimodal,
    MultimodalEmbedding,
    Numbers,
    Pixels,
    Prepared,
    Shape,
    Speech,
    SpeechPrompt,
)
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
        pairs: a text architecture → the type of projector beside it; see `register`.
        pair_tokens: tokens that the vocabulary of such a text has; another text of the same
            architecture is none of this model.
        read_tokenizer: gives the file's tokenizer; see `tokenizer`.
        position_components: k of `positions`.
        bidirectional_images: the rows of an image see each other in both directions; they are
            always computed together.
        prompt_item: the kind of item that the tokens of a prompt become, for an encoder to read; ""
            for models that go on with them.
        clip: extra `clip.*` metadata for llama.cpp's mmproj file: key without "clip." → value, a
            function of the hyperparameters, or None for nothing. None: no such file is written.
    """

    ignore: ClassVar[tuple[str, ...]] = ()
    ignore_hf: ClassVar[tuple[str, ...]] = ()
    architecture: ClassVar[str] = ""
    hf_architectures: ClassVar[tuple[str, ...]] = ()
    pairs: ClassVar[Mapping[str, str]] = {}
    pair_tokens: ClassVar[tuple[str, ...]] = ()

    config: Any
    read_tokenizer: Callable[[], Any] = staticmethod(lambda: None)

    prompt_item: ClassVar[str] = ""
    position_components: ClassVar[int] = 1
    bidirectional_images: bool = False
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

    @classmethod
    def text_of(cls, hf: Mapping[str, Any]) -> str:
        """The architecture of the text's file where the projector has one of its own: that of
        `pairs` which `text_config.model_type` names, or the only one.

        Args:
            hf: the config.json.

        Raises:
            Unsupported: there are several, and the config names none of them.
        """
        if not cls.pairs:
            return cls.architecture
        kind = str((hf.get("text_config") or {}).get("model_type", "")).replace("_", "")
        if kind in cls.pairs:
            return kind
        if len(cls.pairs) == 1 and not kind:
            return next(iter(cls.pairs))
        raise Unsupported(
            f"text_config.model_type {kind!r:.80}: as two files {cls.architecture} has a text of "
            f"{' or '.join(map(repr, cls.pairs))}; convert it into one file, without --mmproj"
        )

    @property
    def tokenizer(self) -> Any:
        """The `Tokenizer` of the file, None without a vocabulary. It is built on first use: all
        methods but the constructor may use it, also while the largest graphs are reserved."""
        return self.read_tokenizer()

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self.read_tokenizer = lambda: tokenizer

    def caches(self) -> Sequence[CacheSpec | tuple[CacheSpec, ...]]:
        """The memory of each layer: a list with one declaration a layer, or a tuple of several, as
        of a decoder that attends to itself and to an encoder."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} declares no caches")

    def left_out(self) -> str:
        """The warning of `load` about results that differ from transformers', with a remedy; "" for
        none."""
        return ""

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

    def classify(self, ctx: Context, pooled: Tensor) -> Tensor:
        """Scores F32 [labels, texts] by the head for whole texts, from pooled hidden states
        F32 [width, texts]; those of labels before a softmax or a sigmoid."""
        raise Unsupported(
            f"{self.architecture}: the file has no head that classifies or ranks texts; embed them "
            "and compare the rows"
        )

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Logits F32 [vocabulary, outputs] of the rows `batch.outputs`, with the config's
        `logit_scale` if it has one."""
        head = getattr(self, "head", None)
        if head is not None and type(self).hidden is not Model.hidden:
            logits, scale = head(self.states(ctx, batch)), getattr(self.config, "logit_scale", 1.0)
            return logits if scale == 1 else logits.scale(scale)
        lacking = "no logits, only embeddings: use embed" if self.only_embeds else "no forward"
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has {lacking}")

    def positions(self, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        """The position components of inputs, int32 [n, k]: by default the place in the sequence, k
        times. `batch.positions` has them, and the rope of a layer rotates by them.

        They may depend on embeddings, `Input.multimodal` and its `data`, and on `before`, never on
        the ids of tokens: positions are known before the tokens are. The inputs of an image are
        given whole. When positions are forgotten in the middle of a sequence, the later ones are
        asked for again.

        Args:
            inputs: they follow each other.
            before: int32 [m, k], the components of all inputs before them; m is 0 at the beginning.
        """
        places = np.arange(len(before), len(before) + len(inputs), dtype=np.int32)
        return np.repeat(places[:, None], self.position_components, axis=1)

    @classmethod
    def own_components(cls) -> int:
        """`position_components` of a model that declares positions of its own, else 0."""
        own = cls.positions is not Model.positions or cls.position_components != 1
        return cls.position_components if own else 0

    # what a prompt may hold besides text

    def modalities(self) -> Mapping[str, Modality]:
        """The kinds of items that a prompt may hold besides text, such as "image", "audio" and
        "video"; those of `VisionModel` and `nn.AudioModel`, unless a model writes it."""
        return {}

    def speech(self) -> Speech | SpeechPrompt:
        """How it writes down speech, or is asked to; a model that `ggmodel.transcribe` can use
        declares it."""
        hint = ", or ask this one for the text (ggmodel run --audio)"
        raise Unsupported(
            f"a model of the architecture {type(self).architecture} does not transcribe; give a "
            f"Whisper or a Voxtral{hint if 'audio' in self.modalities() else ''}"
        )

    @classmethod
    def takes_items(cls) -> bool:
        """Whether the architecture declares any kind of items besides text."""
        return cls.modalities is not Model.modalities

    def reference_item(
        self, kind: str, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]
    ) -> Prepared:
        """The item that a reference was given, as its `Modality` encodes it; for comparing with it.
        By default the array of `REFERENCE_INPUTS` without its batch of one, and of a spectrum the
        frames that its mask names.

        Args:
            inputs: keywords of the reference's forward, such as "input_features".
            data: that of the modality's `prepare` for the same item.
        """
        values = next(inputs[name] for name in REFERENCE_INPUTS[kind] if name in inputs)
        mask, shape = inputs.get("input_features_mask"), self.modalities()[kind].shape
        values = values if mask is None else values[0][mask[0].astype(bool)]
        if shape is not None and len(shape) < values.ndim:
            values = values.reshape(values.shape[-len(shape) :])
        return Prepared(np.ascontiguousarray(values, np.float32), data)

    def post_tokenize(
        self, inputs: list[Input | list[MultimodalEmbedding]]
    ) -> Sequence[Input | str]:
        """The inputs of a prompt, each item replaced by the `inputs` of its modality. A `str` among
        them is tokenised as one string with the texts beside it."""
        kinds = self.modalities()
        each = (kinds[x[0].kind].inputs(x) if isinstance(x, list) else [x] for x in inputs)
        return [one for expanded in each for one in expanded]

    def token_id(self, text: str, *, default: int | None = None) -> int:
        """The id of the token that stands for exactly this text, such as "<|image|>" or "\n".

        Args:
            default: the id if the vocabulary has no such token, or the file no vocabulary.

        Raises:
            TokenizerError: there is none, and no default.
        """
        token = None if self.tokenizer is None else self.tokenizer.id_of_text(text)
        token = default if token is None else token
        if token is None:
            raise TokenizerError(
                f"{type(self).__name__}: no token of the vocabulary stands for {text!r:.80}; "
                "token_id(…, default=ID) names the id to take then"
            )
        return token

    def __call__(self, ctx: Context, batch: Batch) -> Tensor:
        return self._run("forward", batch.outputs.dim(0), ctx, batch)

    def states(self, ctx: Context, batch: Batch) -> Tensor:
        """`hidden`, its result checked; recorded once a batch."""
        if batch.states is None:
            rows = batch.size if batch.whole else batch.outputs.dim(0)
            states = self._run("hidden", rows, ctx, batch)
            batch.states = states.rows(batch.outputs) if batch.whole else states
        return batch.states

    def embeddings(self, ctx: Context, pooled: Tensor) -> Tensor:
        """`project`, its result checked."""
        return self._run("project", pooled.dim(1), ctx, pooled)

    def class_scores(self, ctx: Context, pooled: Tensor) -> Tensor:
        """`classify`, its result checked."""
        return self._run("classify", pooled.dim(1), ctx, pooled)

    @property
    def projects(self) -> bool:
        """Whether layers of its own follow the pooled rows."""
        return type(self).project is not Model.project

    @property
    def only_embeds(self) -> bool:
        """Whether it has hidden states but no logits."""
        cls, head = type(self), getattr(self, "head", None)
        return cls.hidden is not Model.hidden and cls.forward is Model.forward and head is None

    def _run(self, method: str, rows: int, *args: Any) -> Tensor:
        name = f"{type(self).__name__}.{method}"
        with author_code(name, file_of(type(self))):
            result = in_scope(self.scope, getattr(self, method), args, {})
        if not isinstance(result, Tensor):
            fault = f"{type(result).__name__}; it must return a tensor"
        elif result.dtype is not DType.F32 or not (result.op or any(x is result for x in args)):
            fault = f"{result.describe()}; it must be F32 and computed"
        elif (n := result.n_elements // result.dim(0)) != rows:
            advice = "take x.rows(batch.outputs) before the last residual is added"
            fault = f"{n} rows where {rows} were wanted; {advice}"
        else:
            return result
        raise TensorError(f"{line_of(type(self))}: {name} returned {fault}")

    def validate(self) -> None:
        """Called when all fields are filled, before weights are read. Raises to refuse a file."""

    def post_load(self) -> None:
        """Called when the weights are in place."""


class VisionModel(Model):
    """A model that takes images; a subclass writes the methods without a body.

    Attributes:
        image_marker: the text that stands for an image in chat templates.
        image_data: the data beside an image's prepared values; see `Modality.data`.
    """

    image_marker: ClassVar[str] = ""
    image_data: ClassVar[Mapping[str, Numbers] | None] = None

    def modalities(self) -> Mapping[str, Modality]:
        """The modalities of the other bases, and "image" where it has vision."""
        if not self.has_vision:
            return super().modalities()
        images = Modality(
            marker=self.image_marker,
            open=open_image,
            prepare=within_memory(self.preprocess),
            encode=self.encode_multimodal,
            inputs=self.image_inputs,
            largest=lambda: grey(self.largest_image),
            shape=self.image_shape,
            data=self.image_data,
        )
        return {"image": images, **super().modalities()}

    @property
    def has_vision(self) -> bool:
        """Whether it takes images: by default whether the file fills the fields `vision` and
        `projector`."""
        return all(getattr(self, name, None) is not None for name in ("vision", "projector"))

    @property
    def image_shape(self) -> Shape:
        """The shape of an image's prepared values: `Modality.shape`."""
        return ("tiles", 3, "height", "width")

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

    def reference_item(
        self, kind: str, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]
    ) -> Prepared:
        if kind == "image":
            return self.reference_pixels(inputs, data)
        return super().reference_item(kind, inputs, data)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """Records the graph that encodes an image, in a context of its own."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no encode_multimodal")

    def image_inputs(self, image: list[MultimodalEmbedding]) -> Sequence[Input | str]:
        """The inputs of one image: placeholders for its rows, and the tokens or text around them.

        Args:
            image: an embedding for each tensor of `encode_multimodal`.
        """
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no image_inputs")


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
