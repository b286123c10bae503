"""Every tensor of a file, recomputed from the checkpoint and compared byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ...convert.checkpoint_source import CheckpointSource
from ...convert.imatrix import ImportanceMatrix
from ...convert.quantize import decode, encode
from ...errors import TensorError, Unsupported
from ...gguf_file import DType, TensorInfo, TensorSource
from .bounds import HAVE_BOUNDS, beyond
from .causes import Cause, cause_of
from .report import TensorResult

_PIECE = 1 << 22  # numbers that are compared at a time
# A type whose scales were chosen by importance errs more, if all numbers count alike.
_MORE_ERROR = 4.0
# Programs compute frequencies in another order.
_COMPUTED = 1e-6
IMATRIX = "quantize.imatrix.file"


@dataclass
class _Sums:
    """Sums over the pieces so far."""

    blocks: int = 0
    differing: int = 0
    outside: int = 0  # blocks beyond the error of their type
    squares: float = 0.0  # of the original
    error: float = 0.0  # squares of the file's error
    usual: float = 0.0  # squares of the error of what was recomputed

    @property
    def relative(self) -> float:
        return float(np.sqrt(self.error / self.squares)) if self.squares else 0.0


class Comparison:
    """The tensors of a file beside those of the checkpoint.

    Args:
        original: opened without a type, so that nothing is rounded yet.
        importance: the matrix that the file is said to be made with.
    """

    def __init__(
        self, file: TensorSource, original: CheckpointSource, importance: ImportanceMatrix | None
    ):
        self.file, self.original, self.importance = file, original, importance
        self.weighted = IMATRIX in file.metadata
        # Types that numbers went through before the file's; what fitted last is tried first.
        self._before: list[DType | None] = [None, DType.F16, DType.BF16]

    def results(self, read: Collection[str], progress: Callable[[float], None]) -> Iterator[
        TensorResult
    ]:  # fmt: skip
        """The result of each tensor, in the order of the file; missing ones at last.

        Args:
            read: names of the tensors that the architecture's fields read.
            progress: called with the share of bytes compared.
        """
        total = sum(t.nbytes for t in self.file.tensors.values()) or 1
        done = 0
        for t in self.file.tensors.values():
            yield self._result(t, t.name in read)
            self.file.release(t.name)
            if t.name in self.original.tensors:
                self.original.release(t.name)
            done += t.nbytes
            progress(done / total)
        for name, theirs in self.original.tensors.items():
            if name not in self.file.tensors and not self._is_tied(name):
                yield TensorResult(
                    name, theirs.dtype.name, theirs.shape, "missing", "missing",
                    "the checkpoint has it, the file does not",
                )  # fmt: skip

    def _is_tied(self, name: str) -> bool:
        """Whether it is the output, which a file leaves out if the embedding serves for it."""
        tied = self.original.hf.config.get("tie_word_embeddings", False)
        return name == "output.weight" and bool(tied)

    def _result(self, t: TensorInfo, read: bool) -> TensorResult:
        def result(
            status: str, kind: str = "", note: str = "", sums: _Sums | None = None
        ) -> TensorResult:
            s = sums or _Sums()
            return TensorResult(
                t.name, t.dtype.name, t.shape, status, kind, note,  # type: ignore[arg-type]
                s.relative, s.blocks, s.differing,
            )  # fmt: skip

        theirs = self.original.tensors.get(t.name)
        if theirs is None:
            if read:
                return result("surplus", "surplus", "the model reads it; the checkpoint has none")
            return result("uncompared", "unread", "the checkpoint has none, and no field reads it")
        if _bare(theirs.shape) != _bare(t.shape):
            note = f"the checkpoint's is {list(theirs.shape)}"
            cause = Cause("transposed", note) if _bare(theirs.shape) == _bare(t.shape)[::-1] else (
                Cause("shape", note)
            )  # fmt: skip
            return result("different", cause.kind, cause.note)
        if self.original.keeps_blocks(t.name) and theirs.dtype is t.dtype:
            return self._blocks(t, result)
        if not (t.dtype.is_float or t.dtype.is_quantized):
            return result("uncompared", "integers", "integers are not compared")
        try:
            sums = self._compare(t)
        except Unsupported as error:
            return result("uncompared", "type", str(error))
        except TensorError as error:
            return result("different", "not finite", str(error))
        if not sums.differing or (self.original.computes(t.name) and sums.relative < _COMPUTED):
            return result("equal", sums=sums)
        known = self.importance is not None or not self.weighted
        if not known and not self._is_beyond(t, sums):
            return result("bounded", "not recomputable", "made with an importance matrix", sums)
        cause = cause_of(self.file, self.original, t, Recomputed(self, t), sums.differing,
                         sums.blocks, self._is_beyond(t, sums))  # fmt: skip
        return result("different", cause.kind, cause.note, sums)

    def _blocks(self, t: TensorInfo, result: Callable[..., TensorResult]) -> TensorResult:
        """A tensor whose blocks the checkpoint has."""
        ours = np.frombuffer(self.original.data(t.name), np.uint8)
        theirs = np.frombuffer(self.file.data(t.name), np.uint8)
        wrong = (ours != theirs).reshape(-1, t.dtype.type_size).any(1)
        sums = _Sums(len(wrong), int(wrong.sum()))
        if not sums.differing:
            return result("equal", sums=sums)
        note = f"{sums.differing} of {sums.blocks} blocks are not the checkpoint's"
        return result("different", "edited", note, sums)

    @staticmethod
    def _is_beyond(t: TensorInfo, sums: _Sums) -> bool:
        usual = _MORE_ERROR * sums.usual if t.dtype.is_quantized else 0.0
        return sums.outside > 0 or sums.error > usual + 1e-12 * sums.squares

    def _compare(self, t: TensorInfo) -> _Sums:
        sums = _Sums()
        raw = np.frombuffer(self.file.data(t.name), np.uint8)
        for start, stop, expert in pieces(t):
            x = self.original.rows(t.name, start, stop)
            part = raw[start * t.dtype.row_size(t.shape[0]) :][: x.size * t.dtype.type_size
                                                            // t.dtype.block_size]  # fmt: skip
            self._piece(t, x, part, expert, sums)
        return sums

    def _piece(
        self, t: TensorInfo, x: np.ndarray, part: np.ndarray, expert: int, sums: _Sums
    ) -> None:
        size = t.dtype.type_size
        count = part.size // size
        sums.blocks += count
        ours, before = self.recomputed(t, x, expert, part)
        quantized = t.dtype.is_quantized
        if not np.array_equal(ours, part):
            wrong = (ours != part).reshape(count, size).any(1)
            sums.differing += int(wrong.sum())
            stored = decode(part, t.dtype, x.size).astype(np.float64)
            usual = decode(ours, t.dtype, x.size).astype(np.float64)
            flat = x.reshape(-1)
            with np.errstate(invalid="ignore", over="ignore"):
                sums.error += float(np.square(stored - flat).sum())
                sums.usual += float(np.square(usual - flat).sum())
            if t.dtype in HAVE_BOUNDS:
                at = np.flatnonzero(wrong)
                blocks = part.reshape(count, size)[at].reshape(-1)
                numbers = rounded(x, before).reshape(count, -1)[at]
                sums.outside += int(beyond(blocks, t.dtype, numbers).sum())
        elif quantized:
            error = float(np.square(decode(part, t.dtype, x.size) - x.reshape(-1)).sum(dtype=float))
            sums.error += error
            sums.usual += error
        sums.squares += float(np.square(x).sum(dtype=float))

    def recomputed(
        self, t: TensorInfo, x: np.ndarray, expert: int, part: np.ndarray
    ) -> tuple[np.ndarray, DType | None]:
        """The bytes of a piece, and the type that its numbers went through before: those that
        equal the file's `part`, or else those without a type between."""
        weights = None if self.importance is None else self.importance.of(t.name, t.shape)
        if weights is not None:
            weights = weights[expert : expert + 1]
        first: np.ndarray | None = None
        needs = _needs_importance(t.dtype)
        each = [weights] if weights is None or needs else [weights, None]
        for one in each if t.dtype.is_quantized else [None]:
            if one is None and needs:
                one = np.ones((1, x.shape[1]), np.float32)
            for before in list(self._before):
                ours = encode(rounded(x, before), t.dtype, t.name, one)
                if np.array_equal(ours, part):
                    self._before.remove(before)
                    self._before.insert(0, before)
                    return ours, before
                if first is None or (before is None and one is each[0]):
                    first = ours
        assert first is not None
        return first, None


class Recomputed:
    """The pieces of a tensor again, for its difference to be named."""

    def __init__(self, comparison: Comparison, t: TensorInfo):
        self._comparison, self.t = comparison, t
        self.raw = np.frombuffer(comparison.file.data(t.name), np.uint8)

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(the bytes as recomputed, the bytes of the file) of each piece."""
        row = self.t.dtype.row_size(self.t.shape[0])
        for start, stop, expert in pieces(self.t):
            x = self._comparison.original.rows(self.t.name, start, stop)
            part = self.raw[start * row : stop * row]
            yield self._comparison.recomputed(self.t, x, expert, part)[0], part


def rounded(x: np.ndarray, dtype: DType | None) -> np.ndarray:
    """Numbers as they come out of a file of this type; float32."""
    if dtype is None:
        return x
    return decode(encode(x, dtype), dtype, x.size).reshape(x.shape)


def pieces(t: TensorInfo) -> Iterator[tuple[int, int, int]]:
    """(first row, row behind the last, matrix) of pieces that fit into memory; none has rows of
    two matrices."""
    rows, matrices = (*t.shape[1:2], 1)[0], prod(t.shape[2:])
    step = max(1, _PIECE // t.shape[0])
    for matrix in range(matrices):
        for start in range(0, rows, step):
            at = matrix * rows + start
            yield at, matrix * rows + min(rows, start + step), matrix


def _needs_importance(dtype: DType) -> bool:
    from ...native import lib

    return bool(lib.ggml_quantize_requires_imatrix(int(dtype)))


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without trailing ones, which files leave out."""
    dims = list(shape)
    while len(dims) > 1 and dims[-1] == 1:
        dims.pop()
    return tuple(dims)
