"""Images of prompts: each is encoded once, in a graph of its own, for any number of batches."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...errors import PromptError, TensorError, Unsupported
from ...ml import Backend, Context, DType, Tensor
from ...model import Input, Model, Multimodal, MultimodalEmbedding, Pixels
from ...model.multimodal import IMAGE_BATCH
from ...model.source_code import author_code, file_of, line_of

_KEPT = 256 << 20  # bytes of encoded images that are kept without a prompt that has them

# Calls something in the engine's thread.
InThread = Callable[[Callable[[], None]], None]


def _here(work: Callable[[], None]) -> None:
    work()


class Encoded:
    """One image. Its graph is recorded when the image is first seen, and computed when a row of its
    embeddings is first needed.

    Attributes:
        embeddings: one for each tensor of `encode_multimodal`.
        ctx: the recorded graph, until it has been computed.
    """

    def __init__(
        self, model: Model, backend: Backend, pixels: Pixels, digest: bytes, in_thread: InThread
    ):
        self._in_thread = in_thread
        self.ctx: Context | None = backend.new_context().set_batch_size(IMAGE_BATCH)
        cls = type(model)
        with self.ctx.trace(), author_code(f"{cls.__name__}.encode_multimodal", file_of(cls)):
            made = need_parts(model, model.encode_multimodal(self.ctx, pixels))
        self._tensors = [m.tensor for m in made if m.tensor is not None]
        self.ctx.forward(*self._tensors)
        self._rows: list[np.ndarray] = []
        numbers = count()
        self.embeddings = [
            MultimodalEmbedding(None, m.data)
            if m.tensor is None
            else self._embedding(next(numbers), m.tensor, m, digest)
            for m in made
        ]

    def _embedding(
        self, i: int, tensor: Tensor, made: Multimodal, digest: bytes
    ) -> MultimodalEmbedding:
        width = tensor.dim(0)
        shape = (tensor.n_elements // width, width)
        key = hashlib.blake2b(digest + b"%d" % i, digest_size=16).digest()
        return MultimodalEmbedding(lambda: self._row(i), made.data, made.used, shape=shape, key=key)

    def _row(self, i: int) -> np.ndarray:
        if not self._rows:
            self._in_thread(self._compute)
        return self._rows[i]

    def _compute(self) -> None:
        if self.ctx is not None:
            self.ctx.compute(*self._tensors)
            self._rows = [t.floats().reshape(-1, t.dim(0)) for t in self._tensors]
            self.close()
            self._in_thread = _here  # computed rows need no engine

    def close(self) -> None:
        """Frees the graph; idempotent."""
        if self.ctx is not None:
            self.ctx.close()
        self.ctx, self._tensors = None, []

    @property
    def size(self) -> int:
        """Bytes of its rows once they are computed."""
        return sum(4 * len(one) * one.width for one in self.embeddings)

    @property
    def nbytes(self) -> int:
        """Bytes of system memory that its rows take now."""
        return sum(rows.nbytes for rows in self._rows)


def need_parts(model: Model, made: Any) -> list[Multimodal]:
    """Raises `TensorError` unless this is what `encode_multimodal` is to return."""
    if not isinstance(made, list):
        shown = type(made).__name__
    elif not made:
        shown = "an empty list"
    elif wrong := [m for m in made if not _is_part(m)]:
        tensor = wrong[0].tensor if isinstance(wrong[0], Multimodal) else None
        shown = tensor.describe() if isinstance(tensor, Tensor) else f"{wrong[0]!r:.200}"
    else:
        return made
    raise TensorError(
        f"{line_of(type(model))}: {type(model).__name__}.encode_multimodal must return a list of "
        "Multimodal(tensor, …), each computed, F32 [width, rows], or Multimodal(data=…); "
        f"not {shown}"
    )


def _is_part(part: object) -> bool:
    if not isinstance(part, Multimodal):
        return False
    tensor = part.tensor
    return tensor is None or (
        isinstance(tensor, Tensor) and tensor.dtype is DType.F32 and tensor.op is not None
    )


class MultimodalStore:
    """The images of a model's prompts, by content.

    Args:
        in_thread: calls a function in the engine's thread, and waits for it.
    """

    def __init__(self, model: Model, backend: Backend, in_thread: InThread):
        self.model, self.backend, self._in_thread = model, backend, in_thread
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[bytes, Encoded] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()

    def encode(
        self, image: Any, data: Mapping[str, Any] | None = None
    ) -> list[MultimodalEmbedding]:
        """The embeddings of an image, not computed yet; the same ones for the same image.

        Args:
            image: an argument of `open_image`, or pixels float32 [tiles, 3, height, width].
            data: the data that belongs to these pixels.

        Raises:
            Unsupported: this model takes no images.
            ImageError: the image cannot be opened.
            PromptError: pixels of another shape.
        """
        self.need_sight()
        pixels = None
        if isinstance(image, np.ndarray):
            pixels = _pixels(image, data or {})
            digest = _digest(pixels)
        else:
            from ...image import content_hash, open_image

            image = open_image(image)
            digest = content_hash(image).encode()
        with self._lock:
            found = self._known.get(digest)
            if found is None:
                pixels = self._preprocessed(image) if pixels is None else pixels
                found = self._known[digest] = self._encoded(pixels, digest)
            self._kept[digest] = found
            self._kept.move_to_end(digest)
            while len(self._kept) > 1 and sum(e.size for e in self._kept.values()) > _KEPT:
                self._kept.popitem(last=False)
            return found.embeddings

    def _encoded(self, pixels: Pixels, digest: bytes) -> Encoded:
        return Encoded(self.model, self.backend, pixels, digest, self._in_thread)

    def _preprocessed(self, image: Any) -> Pixels:
        cls = type(self.model)
        with author_code(f"{cls.__name__}.preprocess", file_of(cls)):
            return self.model.preprocess(image)

    def expand(self, items: Sequence[Input | list[MultimodalEmbedding]]) -> list[Input]:
        """The inputs of a prompt, with the inputs that images become.

        Args:
            items: inputs, and each image as its embeddings.

        Raises:
            TensorError: `post_tokenize` returned something else.
        """
        cls = type(self.model)
        with author_code(f"{cls.__name__}.post_tokenize", file_of(cls)):
            inputs = self.model.post_tokenize(list(items))
        if not isinstance(inputs, list) or not all(isinstance(i, Input) for i in inputs):
            raise TensorError(
                f"{line_of(cls)}: {cls.__name__}.post_tokenize must return a list of Input"
            )
        return inputs

    def need_sight(self) -> None:
        """Raises Unsupported where the model takes no images."""
        if not self.model.sees:
            raise Unsupported(
                f"this {type(self.model).architecture} model takes no images: the file holds no "
                "vision tensors; where they lie in a file of their own, give it with mmproj= "
                "(--mmproj)"
            )

    def largest(self) -> Encoded:
        """An image that needs the most memory, not computed; for reserving."""
        from PIL import Image

        grey = Image.new("RGB", self.model.largest_image, (128, 128, 128))
        return self._encoded(self._preprocessed(grey), b"largest")

    @property
    def nbytes(self) -> int:
        """Bytes of system memory that encoded images take."""
        with self._lock:
            return sum(encoded.nbytes for encoded in self._known.values())


def _pixels(values: np.ndarray, data: Mapping[str, Any]) -> Pixels:
    if values.ndim != 4 or values.shape[1] != 3 or values.dtype.kind != "f" or not values.size:
        raise PromptError(
            f"an array {list(values.shape)} of {values.dtype} is no image; preprocessed pixels are "
            "float32 [tiles, 3, height, width], and an opened picture is a PIL image"
        )
    return Pixels(np.ascontiguousarray(values, np.float32), data)


def _digest(pixels: Pixels) -> bytes:
    digest = hashlib.blake2b()
    for name, value in (("", pixels.values), *sorted(pixels.data.items())):
        array = np.asarray(value)
        content = repr(value).encode() if array.dtype == object else array.tobytes()
        digest.update(repr((name, array.shape, array.dtype.str, len(content))).encode() + content)
    return digest.digest()
