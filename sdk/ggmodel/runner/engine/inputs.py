"""The multimodal store: images are encoded once, in graphs of their own, for any number of batches.

In prompts, and in what a slot remembers, tokens are their ids. An input that is more than its token
is a negative number, the same wherever the same row of the same image stands: so common prefixes
are found by comparing numbers.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...errors import PromptError, TensorError, Unsupported
from ...ml import Backend, Context, DType, Tensor
from ...model import Input, Model, Multimodal, MultimodalEmbedding, Pixels, Span
from ...model.multimodal import IMAGE_BATCH
from ...model.source_code import author_code, file_of, line_of

_KEPT = 256 << 20  # bytes of images that are remembered although no prompt at hand has them


Guard = Callable[[], AbstractContextManager[None]]


class Encoded:
    """One image: its graph is recorded when the image is first seen, and computed when a row of
    its embeddings is first needed.

    Args:
        guard: around computing.

    Attributes:
        embeddings: one for each tensor that the model made of it.
        ctx: the recorded graph, until it has been computed.
    """

    def __init__(self, model: Model, backend: Backend, pixels: Pixels, digest: bytes, guard: Guard):
        self._guard = guard
        self.ctx: Context | None = backend.new_context().set_batch_size(IMAGE_BATCH)
        cls = type(model)
        with self.ctx.trace(), author_code(f"{cls.__name__}.encode_multimodal", file_of(cls)):
            made = model.encode_multimodal(self.ctx, pixels)
        self._tensors = [m.tensor for m in _checked(model, made)]
        self.ctx.forward(*self._tensors)
        self._rows: list[np.ndarray] = []
        self.embeddings = [self._embedding(i, m, digest) for i, m in enumerate(made)]

    def _embedding(self, i: int, made: Multimodal, digest: bytes) -> MultimodalEmbedding:
        width = made.tensor.dim(0)
        shape = (made.tensor.n_elements // width, width)
        key = hashlib.blake2b(digest + b"%d" % i, digest_size=16).digest()
        return MultimodalEmbedding(lambda: self._row(i), made.data, made.used, shape=shape, key=key)

    def _row(self, i: int) -> np.ndarray:
        with self._guard():
            if self.ctx is not None and not self._rows:  # unless Ctrl-C came as it was closed
                self.ctx.compute(*self._tensors)
                self._rows = [t.floats().reshape(-1, t.dim(0)) for t in self._tensors]
                self.close()
        return self._rows[i]

    def close(self) -> None:
        """Frees the graph; idempotent."""
        if self.ctx is not None:
            self.ctx.close()
        self.ctx, self._tensors = None, []

    @property
    def size(self) -> int:
        """Bytes that its rows take once they are computed."""
        return sum(4 * len(one) * one.width for one in self.embeddings)

    @property
    def nbytes(self) -> int:
        """Bytes of system memory that its rows take now."""
        return sum(rows.nbytes for rows in self._rows)


def _checked(model: Model, made: Any) -> list[Multimodal]:
    for m in made if isinstance(made, list) and made else [made]:
        tensor = m.tensor if isinstance(m, Multimodal) else None
        if not isinstance(tensor, Tensor) or tensor.dtype is not DType.F32 or tensor.op is None:
            shown = tensor.describe() if isinstance(tensor, Tensor) else repr(m)
            raise TensorError(
                f"{line_of(type(model))}: {type(model).__name__}.encode_multimodal must return a "
                f"list of Multimodal(tensor, …), each computed, F32 [width, rows]; not {shown}"
            )
    return made


class MultimodalStore:
    """The images of a model's prompts, by what they show.

    Args:
        guard: around computing one; nobody else computes within.
    """

    def __init__(self, model: Model, backend: Backend, guard: Guard):
        self.model, self.backend, self._guard = model, backend, guard
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[bytes, Encoded] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()

    def encode(
        self, image: Any, data: Mapping[str, Any] | None = None
    ) -> list[MultimodalEmbedding]:
        """The embeddings of an image, not computed yet; the same ones for the same image.

        Args:
            image: whatever `open_image` takes, or pixels: float32 [tiles, 3, height, width].
            data: what belongs to these pixels.

        Raises:
            Unsupported: this model takes no images.
            ImageError: it is none.
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
        return Encoded(self.model, self.backend, pixels, digest, self._guard)

    def _preprocessed(self, image: Any) -> Pixels:
        cls = type(self.model)
        with author_code(f"{cls.__name__}.preprocess", file_of(cls)):
            return self.model.preprocess(image)

    def expand(self, items: Sequence[Input | list[MultimodalEmbedding]]) -> list[Input]:
        """The inputs of a prompt, with all that surrounds and fills its images.

        Args:
            items: inputs, and each image as its embeddings.

        Raises:
            TensorError: the model returned something else.
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
        """An image that needs as much memory as any, not computed; for reserving."""
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


@dataclass(frozen=True)
class Place:
    """An input that is more than its token.

    Attributes:
        row: of the embedding, which this input stands for; all of them where `whole`.
        index, size: where in its group it stands, and how many inputs that has.
    """

    token: int
    embedding: MultimodalEmbedding | None
    row: int
    whole: bool
    index: int
    size: int


def _check(i: int, one: Input) -> None:
    counts = (one.token, one.same_batch)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in counts):
        raise PromptError(f"input {i}: token and same_batch are integers, not {counts}")
    if not 0 <= one.token < 1 << 31 or one.same_batch < 0:
        raise PromptError(f"input {i}: token {one.token}, same_batch {one.same_batch}")
    if one.multimodal is not None and not isinstance(one.multimodal, MultimodalEmbedding):
        kind = type(one.multimodal).__name__
        raise PromptError(
            f"input {i}: multimodal is a MultimodalEmbedding, not {kind}; see encode_image"
        )


class Places:
    """Numbers of the inputs that are more than their token.

    Args:
        whole: embeddings belong to one input and go to a cache, rather than a row to an input.
        together: the rows of an embedding are one group.
    """

    def __init__(self, whole: bool, together: bool):
        self.whole, self.together = whole, together
        self._numbers: dict[Any, int] = {}
        self._places: dict[int, Place] = {}
        self._next = -1

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __getitem__(self, number: int) -> Place:
        return self._places[number]

    def number(self, inputs: Sequence[Input]) -> list[int]:
        """Each input as a number: its token, or a negative one.

        Raises:
            PromptError: what is no input, an embedding without as many inputs as it has rows, or
                a group beyond the end.
        """
        for i, one in enumerate(inputs):
            _check(i, one)
        rows = self._rows(inputs)
        numbers: list[int] = []
        for i, (begin, end) in enumerate(self._groups(inputs, rows)):
            embedding, row = rows.get(i, (None, 0))
            if embedding is None and end - begin == 1:
                numbers.append(inputs[i].token)
                continue
            place = Place(inputs[i].token, embedding, row, self.whole, i - begin, end - begin)
            what = (embedding.key, embedding.used) if embedding else place.token
            token = place.token if self.whole else None
            content = (what, token, row, place.index, place.size)
            if content not in self._numbers:
                self._numbers[content] = self._next
                self._places[self._next] = place
                self._next -= 1
            numbers.append(self._numbers[content])
        return numbers

    def _rows(self, inputs: Sequence[Input]) -> dict[int, tuple[MultimodalEmbedding, int]]:
        """By input the embedding and the row that fill it."""
        rows: dict[int, tuple[MultimodalEmbedding, int]] = {}
        for i, one in enumerate(inputs):
            if one.multimodal is None:
                continue
            n = 1 if self.whole else len(one.multimodal)
            if i in rows or i + n > len(inputs):
                what = "another one's rows" if i in rows else "the end of the prompt"
                raise PromptError(
                    f"the embedding at input {i} has {n} rows and runs into {what}; put {n - 1} "
                    "more placeholders behind its first"
                )
            rows |= {i + row: (one.multimodal, row) for row in range(n)}
        return rows

    def _groups(
        self, inputs: Sequence[Input], rows: Mapping[int, tuple[MultimodalEmbedding, int]]
    ) -> list[tuple[int, int]]:
        """By input the extent of its group; groups that overlap are one."""
        ends: list[tuple[int, int]] = []
        begin = end = 0
        for i, one in enumerate(inputs):
            if i >= end:
                begin, end = i, i + 1
            last = i + one.same_batch
            if self.together and i in rows and rows[i][1] == 0 and not self.whole:
                last = max(last, i + len(rows[i][0]) - 1)
            if last >= len(inputs):
                raise PromptError(
                    f"input {i} must share a batch with the {one.same_batch} that follow it, and "
                    f"only {len(inputs) - i - 1} do"
                )
            end = max(end, last + 1)
            ends.append((begin, end))
        whole = dict(ends)  # of a group the last extent seen is the full one
        return [(begin, whole[begin]) for begin, _ in ends]

    def before(self, numbers: Sequence[int], n: int) -> int:
        """The largest m ≤ n such that no group is split between inputs m − 1 and m."""
        if 0 < n < len(numbers) and numbers[n] < 0:
            return n - self._places[numbers[n]].index
        return n

    def after(self, numbers: Sequence[int], n: int) -> int:
        """The smallest m ≥ n such that no group is split between inputs m − 1 and m."""
        begin = self.before(numbers, n)
        return n if begin == n else begin + self._places[numbers[n]].size

    def largest_group(self, numbers: Iterable[int]) -> int:
        """How many inputs must be computed together; 1 without groups."""
        return max((self._places[n].size for n in numbers if n < 0), default=1)

    def whole_rows(self, numbers: Sequence[int]) -> int:
        """Rows of the images that belong to one of these inputs each; 0 where none do."""
        if not self.whole:
            return 0
        found = (self._places[n].embedding for n in numbers if n < 0)
        return sum(len(e) if e.used is None else e.used for e in found if e is not None)

    def resolve(
        self, numbers: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, tuple[Span, ...]]:
        """Tokens int32 [n], groups (see `Step.groups`) and the embeddings of a batch.

        Args:
            numbers: int32 [n]. positions: int32 [n], those of a sequence one after the other.
        """
        at = np.flatnonzero(numbers < 0)
        if not len(at):
            return numbers, None, ()
        tokens, groups, spans = numbers.copy(), np.zeros(len(numbers), np.int32), []
        for i in at.tolist():
            place = self._places[int(numbers[i])]
            tokens[i] = place.token
            if place.embedding is None:
                continue
            if place.whole:
                used = place.embedding.used
                n = len(place.embedding) if used is None else used
                spans.append(Span(i, place.embedding, 0, n))
                continue
            tokens[i] = 0  # laid over; the placeholder need not be in the vocabulary
            if self.together:
                groups[i] = positions[i] - place.row + 1
            last = spans[-1] if spans else None
            if (
                last is not None
                and last.embedding is place.embedding
                and (last.index + last.count, last.first + last.count) == (i, place.row)
            ):
                spans[-1] = Span(last.index, last.embedding, last.first, last.count + 1)
            else:
                spans.append(Span(i, place.embedding, place.row, 1))
        return tokens, groups if groups.any() else None, tuple(spans)

    def forget(self, in_use: Iterable[Sequence[int]]) -> None:
        """Drops what no prompt has any more."""
        alive = {n for numbers in in_use for n in numbers if n < 0}
        self._places = {n: p for n, p in self._places.items() if n in alive}
        self._numbers = {c: n for c, n in self._numbers.items() if n in alive}
