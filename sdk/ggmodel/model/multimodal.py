"""Images, sounds and videos on their way into a text, and the prompts of transcription."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PromptError
from ..ml import Context, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Kind → keywords of transformers' forward that hold an item's array; a model has one of them.
REFERENCE_INPUTS = {
    "image": ("pixel_values",),
    "audio": ("input_features", "input_values"),
    "video": ("pixel_values_videos", "pixel_values"),
}
Shape = tuple[int | str, ...]  # with names for dimensions of any size
IMAGE_BATCH = 512  # tokens that the graph of an image counts as, for batch sizes


@dataclass(frozen=True, eq=False)
class Prepared:
    """An item of a prompt as its encoder takes it: pixels, a spectrogram, frames.

    Attributes:
        values: float32 of any shape, such as [tiles, 3, height, width], as the reference's
            processor gives them.
        data: further results of the preparation, such as the arrangement of the tiles.
    """

    values: np.ndarray
    data: Mapping[str, Any] = field(default_factory=dict)


Pixels = Prepared  # those of an image


@dataclass(frozen=True)
class Numbers:
    """Numbers that `Prepared.data` holds under a name; see `Modality.data`.

    Attributes:
        dtype: int or float.
        shape: their sizes, a name for any number; () is a single one.
        least, most: the smallest and the largest that are taken; None for any.
        ascending: none is smaller than the one before it along the first dim.
    """

    dtype: type[int] | type[float]
    shape: Shape = ()
    least: int | None = None
    most: int | None = None
    ascending: bool = False

    def read(self, value: Any) -> Any:
        """The numbers as an int, a float, or tuples of these. Dims of 1 before the shape, such as
        the batch of a reference's processor, are dropped.

        Raises:
            PromptError: they are something else; the message says what to give.
        """
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError):  # lists of several lengths, `__array__`
            array = np.array(None)
        while array.ndim > len(self.shape) and len(array) == 1:
            array = array.reshape(array.shape[1:])  # an object stays in an array
        kinds = "iu" if self.dtype is int else "iuf"
        fits = array.dtype.kind in kinds and array.size and _fits(array.shape, self.shape)
        if fits and self._within(array):
            return _tuples((array if self.dtype is int else array.astype(float)).tolist())
        raise PromptError(f"{value!r:.60}; give {self._description()}")

    def _within(self, array: np.ndarray) -> bool:
        least = -np.inf if self.least is None else self.least
        most = np.inf if self.most is None else self.most
        fine = np.isfinite(array) & (array >= least) & (array <= most)
        return bool(fine.all()) and not (self.ascending and (array[1:] < array[:-1]).any())

    def _description(self) -> str:
        whole = "whole " if self.dtype is int else ""
        ends = (("least", self.least), ("most", self.most))
        within = " and ".join(f"at {name} {end:,}" for name, end in ends if end is not None)
        within = f" of {within}" if within else ""
        if not self.shape:
            return f"a {whole}number{within}"
        order = ", none before the last" if self.ascending else ""
        return f"{whole}numbers [{', '.join(map(str, self.shape))}]{within}{order}"


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class Multimodal:
    """One tensor of an encoded item, not computed yet, or data alone.

    Attributes:
        tensor: F32 [width, rows]; None for data that `Model.post_tokenize` reads, without rows.
        data: passed on to `Model.post_tokenize`. A mapping with "token" says that its rows stand
            for that token of the reference's prompts, not for a placeholder.
        used: number of rows, from the first on, that may be attended to; None is all.
        parts: further tensors F32 [any width, rows] of the same rows; `Batch.add(x, part)` lays
            them into the layers that want them.
    """

    tensor: Tensor | None = None
    data: Any = None
    used: int | None = None
    parts: Sequence[Tensor] = ()


class MultimodalEmbedding:
    """Rows that stand for an item, or a part of one, in a text.

    Args:
        rows: float32 [rows, width], or a function that computes them on first use; None for data
            alone, which `Model.post_tokenize` reads and no input holds.
        shape: of the rows, for a function.
        key: identifies the content; equal keys mean equal rows. None hashes the rows.
        parts: float32 [rows, any width] each, or a function that computes them.
        widths: of the parts, for a function.

    Attributes:
        data, used: see `Multimodal`.
        kind: that of the item, such as "image"; see `Model.modalities`.
        widths: numbers in a row of each part.
        alone: no other one of equal content stands for it, since its rows are captured when they
            are computed.
    """

    def __init__(
        self,
        rows: np.ndarray | Callable[[], np.ndarray] | None,
        data: Any = None,
        used: int | None = None,
        *,
        kind: str = "image",
        shape: tuple[int, int] | None = None,
        key: bytes | None = None,
        parts: Sequence[np.ndarray] | Callable[[], Sequence[np.ndarray]] = (),
        widths: tuple[int, ...] = (),
    ):
        self.data, self.used, self.kind, self.alone = data, used, kind, False
        if rows is None:
            rows, shape, key = (lambda: np.zeros((0, 0), np.float32)), (0, 0), b""
        if callable(rows):
            assert shape is not None and key is not None
            self._compute, self.shape = rows, shape
        else:
            array = _rows_of(rows)
            self._compute, self.shape = lambda: array, array.shape
        if callable(parts):
            self._compute_parts, self.widths = parts, widths
        else:
            arrays = [_rows_of(part) for part in parts]
            if any(len(part) != len(self) for part in arrays):
                counts = [len(part) for part in arrays]
                raise PromptError(f"parts of {counts} rows for {len(self)} rows; give as many each")
            self._compute_parts = lambda: arrays
            self.widths = tuple(part.shape[1] for part in arrays)
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
    def parts(self) -> Sequence[np.ndarray]:
        """Further arrays float32 [rows, any width]; see `Multimodal`."""
        return self._compute_parts()

    @property
    def key(self) -> bytes:
        """Equal for equal content."""
        if self._key is None:
            digest = hashlib.blake2b(self.rows.tobytes(), digest_size=16)
            digest.update(repr(self.data).encode())  # positions may follow from it
            for part in self.parts:
                digest.update(repr(part.shape).encode() + part.tobytes())
            self._key = digest.digest()
        return self._key

    def inputs(self, token: int, together: bool = False) -> list[Input]:
        """The inputs that its rows fill, each with this token.

        Args:
            together: they are computed in one batch.
        """
        rest = [Input(token)] * (len(self) - 1)
        return [Input(token, self, same_batch=len(rest) if together else 0), *rest]

    def token(self, placeholder: int) -> int:
        """The token that a row stands for in the reference's prompts; see `Multimodal`."""
        return (self.data if isinstance(self.data, Mapping) else {}).get("token", placeholder)

    def __repr__(self) -> str:
        return f"MultimodalEmbedding({len(self)} rows of {self.width})"


def _rows_of(values: Any) -> np.ndarray:
    try:
        array = np.ascontiguousarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise PromptError(f"rows are float32 [rows, width]: {error}") from None
    if array.ndim != 2 or not array.size:
        raise PromptError(f"rows of shape {list(array.shape)}; [rows, width] is needed")
    return array


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

    def part(self, index: int) -> np.ndarray | None:
        """Part `index` of these rows, float32 [count, any width]; None where they have none."""
        if index >= len(self.embedding.widths):
            return None
        return self.embedding.parts[index][self.first : self.first + self.count]


@dataclass(frozen=True, eq=False)
class Modality:
    """A kind of item that a prompt may hold besides text: how it gets from a file into inputs.

    Attributes:
        marker: the text that stands for an item in prompts and chat templates; "" for none: items
            precede the text.
        open: makes an item of whatever a user gives, such as a path or bytes; raises an `Error`
            that names it and the limit that it exceeds. `ggmodel.image.open_image` opens pictures.
        prepare: an opened item as the encoder takes it.
        encode: records the graph that encodes an item, in a context of its own.
        inputs: the inputs of an item, given an embedding for each `Multimodal` of `encode`:
            placeholders for its rows, and what stands around them. A `str` is tokenised as one
            string with the texts beside it.
        largest: makes an item that needs the most memory, opened or prepared already.
        shape: sizes of the values that `encode` takes, a name for any number. Arrays that a user
            gives are held against it.
        apart: parts along the first dim of the values do not depend on each other: the graph of one
            is run for each, and takes the memory of one. `encode` takes any number of them. Data
            have an entry for each part.
        data: the names that `Prepared.data` may have, each with its numbers. Data that a user gives
            beside an array are held against it, and reach `encode` as it says; None leaves them to
            `encode`.
    """

    marker: str
    open: Callable[[Any], Any]
    prepare: Callable[[Any], Prepared]
    encode: Callable[[Context, Prepared], list[Multimodal]]
    inputs: Callable[[list[MultimodalEmbedding]], Sequence[Input | str]]
    largest: Callable[[], Any]
    shape: Shape | None = None
    apart: bool = False
    data: Mapping[str, Numbers] | None = None

    def pieces(self, item: Prepared) -> list[Prepared]:
        """The parts of an item, each with a graph run of its own.

        Raises:
            PromptError: data have more or fewer entries than the item has parts.
        """
        if not self.apart:
            return [item]
        each = [slice(i, i + 1) for i in range(len(item.values))]
        for name, value in item.data.items():
            if len(value) != len(each):
                raise PromptError(
                    f"{name} are {list(value)!r:.60} for {len(each)} parts; give one for each"
                )
        data = [{name: value[at] for name, value in item.data.items()} for at in each]
        return [Prepared(item.values[at], one) for at, one in zip(each, data, strict=True)]

    def check(self, kind: str, values: np.ndarray) -> None:
        """Raises PromptError for a prepared array of another shape, or one without numbers, or with
        numbers that are not finite; and for no array.

        Args:
            kind: of the item, in messages.
        """
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
            shown = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
            raise PromptError(f"the values of this {kind} are {shown}; give an array of float32")
        item = f"this {kind} is an array {list(values.shape)}"
        if self.shape is not None and not _fits(values.shape, self.shape):
            raise PromptError(f"{item}; this model takes [{', '.join(map(str, self.shape))}]")
        if not values.size:
            raise PromptError(f"{item}: it holds no numbers")
        if not np.isfinite(values).all():
            at = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
            raise PromptError(f"{item} that holds {values[tuple(at)]} at {at}; give finite numbers")

    def read_data(self, kind: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data that a user gives beside a prepared array, as `data` declares them.

        Args:
            kind: of the item, in messages.

        Raises:
            PromptError: a name that is not declared, or other numbers.
        """
        if not isinstance(given, Mapping):
            raise PromptError(
                f"the data of this {kind} are {type(given).__name__}; give a dict of names"
            )
        if self.data is None:
            return given
        data = {}
        for name, value in given.items():
            if name not in self.data:
                names = " and ".join(self.data) or "none"
                raise PromptError(
                    f"this {kind} has data named {name!r:.60}; this model takes {names}"
                )
            try:
                data[name] = self.data[name].read(value)
            except PromptError as error:
                raise PromptError(f"this {kind}: its {name} is {error}") from None
        return data


def _fits(shape: tuple[int, ...], declared: Shape) -> bool:
    return len(shape) == len(declared) and all(
        isinstance(n, str) or n == m for n, m in zip(declared, shape, strict=True)
    )


@dataclass(frozen=True)
class Speech:
    """The tokens and timestamps of a model that transcribes speech.

    Its answer begins with `start`, whose input has the sound, then a language, a task and, for text
    alone, `untimed`. Tokens from `timed` on stand for times, `step` apart; those below `end` are
    text.

    Attributes:
        start, end: the tokens that begin and end an answer.
        languages: code → token; empty for a model of one language, which is told neither language
            nor task.
        tasks: "transcribe", "translate" → token.
        untimed: the token after which no times are written.
        timed: the token of 0 s.
        step: frames between the times of two tokens.
        window: frames that are heard at once.
        frame: seconds from one frame to the next.
        rate: samples a second.
        spectrum: makes the spectrum float32 [mels, frames] of a sound of any length at this rate.
        suppressed: tokens that are never chosen.
        never_first: tokens that an answer does not begin with.
        latest_first: the most steps before the first time; None is no bound.
        language, task: the usual ones, if the file says so; a language by any spelling of `code`.
        names: other names of languages, in small letters → code.
        previous: the token before text that was said before; None for a model that is told none.
    """

    start: int
    end: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    untimed: int
    timed: int
    step: int
    window: int
    frame: float
    rate: int
    spectrum: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    suppressed: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    latest_first: int | None = None
    language: str | None = None
    task: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    previous: int | None = None

    def code(self, language: str) -> str:
        """The code of a language that is given as "hi", "<|hi|>", or by a name, such as "Hindi"."""
        plain = language.strip().lower().removeprefix("<|").removesuffix("|>")
        return self.names.get(plain, plain)


@dataclass(frozen=True)
class SpeechPrompt:
    """The prompt that asks a model for the words of a sound, which is laid into it as a whole.

    The answer is text up to the end of a turn, without timestamps.

    Attributes:
        before: special tokens before the sound, by their texts.
        after: special tokens behind it.
        language: text that follows where the language is known, with "{}" for its code.
        last: special tokens at the end.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    language: str
    last: tuple[str, ...]
