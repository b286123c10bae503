"""Images on their way into a text: pixels, the rows of the vision graph, inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import PromptError
from ..ml import Tensor

IMAGE_BATCH = 512  # tokens that the graph of an image counts as, for batch sizes


@dataclass(frozen=True, eq=False)
class Pixels:
    """An image as `Model.encode_multimodal` takes it.

    Attributes:
        values: float32 [tiles, 3, height, width], as the reference's processor gives them.
        data: further results of `Model.preprocess`, such as the arrangement of the tiles.
    """

    values: np.ndarray
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Multimodal:
    """One tensor of an encoded object, not computed yet, or data alone.

    Attributes:
        tensor: F32 [width, rows]; None for data that `Model.post_tokenize` reads, without rows.
        data: passed on to `Model.post_tokenize`.
        used: number of rows, from the first on, that may be attended to; None is all.
    """

    tensor: Tensor | None = None
    data: Any = None
    used: int | None = None


class MultimodalEmbedding:
    """Rows that stand for an image, or a part of one, in a text.

    Args:
        rows: float32 [rows, width], or a function that computes them on first use; None for data
            alone, which `Model.post_tokenize` reads and no input holds.
        shape: of the rows, for a function.
        key: identifies the content; equal keys mean equal rows. None hashes the rows.

    Attributes:
        data, used: see `Multimodal`.
    """

    def __init__(
        self,
        rows: np.ndarray | Callable[[], np.ndarray] | None,
        data: Any = None,
        used: int | None = None,
        *,
        shape: tuple[int, int] | None = None,
        key: bytes | None = None,
    ):
        self.data, self.used = data, used
        if rows is None:
            rows, shape, key = (lambda: np.zeros((0, 0), np.float32)), (0, 0), b""
        if callable(rows):
            assert shape is not None and key is not None
            self._compute, self.shape = rows, shape
        else:
            try:
                array = np.ascontiguousarray(rows, np.float32)
            except (TypeError, ValueError) as error:
                raise PromptError(f"rows are float32 [rows, width]: {error}") from None
            if array.ndim != 2 or not array.size:
                raise PromptError(f"rows of shape {list(array.shape)}; [rows, width] is needed")
            self._compute, self.shape = lambda: array, array.shape
        self._rows: np.ndarray | None = None
        self._key = key

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.shape[1]

    # functools.cached_property locks all instances while one waits, before Python 3.12.

    def compute(self) -> np.ndarray:
        """The rows, float32 [rows, width]; computed by the first call."""
        if self._rows is None:
            self._rows = self._compute()
        return self._rows

    @property
    def rows(self) -> np.ndarray:
        """`compute()`."""
        return self.compute()

    @property
    def key(self) -> bytes:
        """Equal for equal content."""
        if self._key is None:
            self._key = hashlib.blake2b(self.rows.tobytes(), digest_size=16).digest()
        return self._key

    def __repr__(self) -> str:
        return f"MultimodalEmbedding({len(self)} rows of {self.width})"


@dataclass(frozen=True, eq=False)
class Input:
    """One position of a prompt.

    Attributes:
        token: its id, meaningless where a row of an embedding fills the position.
        multimodal: an embedding that begins here. Its rows fill this input and the next ones, or
            go to the cache of encoded objects where the model has one.
        same_batch: number of following inputs that must be computed together with this one.
    """

    token: int
    multimodal: MultimodalEmbedding | None = None
    same_batch: int = 0


@dataclass(frozen=True, eq=False)
class Span:
    """Rows of an embedding in a batch.

    Attributes:
        index: the input in the batch of the first row.
        embedding: the object whose rows they are.
        first, count: the range of rows.
    """

    index: int
    embedding: MultimodalEmbedding
    first: int
    count: int

    @property
    def rows(self) -> np.ndarray:
        """float32 [count, width]."""
        return self.embedding.rows[self.first : self.first + self.count]
