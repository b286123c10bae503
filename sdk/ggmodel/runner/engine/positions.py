"""The position components of sequences, where a model declares its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import TensorError
from ...model import Input, Model
from ...model.source_code import author_code, file_of, line_of
from .inputs import InputTable

_TEXT = Input(0)  # positions never depend on the id of a token
_ROOM = 256  # rows that a history begins with


class Histories:
    """The components of every position of some sequences, as `Model.positions` gives them.

    A batch continues its sequences from their places, and what was known behind these is
    overwritten. So nothing is to be undone for draft tokens, for steps that failed, or after
    `rewind`.

    Args:
        inputs: knows the images that numbers stand for.
    """

    def __init__(self, model: Model, inputs: InputTable):
        self._model, self._inputs = model, inputs
        self._k = type(model).position_components
        self._rows: dict[int, np.ndarray] = {}  # sequence → int32 [room, k]
        self._file, self._name = file_of(type(model)), f"{type(model).__name__}.positions"

    @classmethod
    def of(cls, model: Model, inputs: InputTable) -> Histories | None:
        """Histories for the sequences of one cache; None if the place in a sequence is its only
        position component."""
        return cls(model, inputs) if model.own_components() else None

    def components(
        self, numbers: np.ndarray, positions: np.ndarray, sequences: np.ndarray
    ) -> np.ndarray:
        """The components of a batch, int32 [k, n], which from now on are known.

        Args:
            numbers: int32 [n], see `InputTable`.
            positions, sequences: int32 [n]; consecutive positions continue a sequence together.

        Raises:
            TensorError: the model returns something else.
        """
        ends = np.flatnonzero((np.diff(sequences) != 0) | (np.diff(positions) != 1)) + 1
        found, begin = [], 0
        for end in (*ends.tolist(), len(numbers)):
            piece = numbers[begin:end].tolist()
            found.append(self._continued(int(sequences[begin]), int(positions[begin]), piece))
            begin = end
        return np.ascontiguousarray(np.concatenate(found).T)

    def _continued(self, sequence: int, start: int, numbers: Sequence[int]) -> np.ndarray:
        """Components int32 [n, k] of inputs that continue a sequence from `start` on."""
        end = start + len(numbers)
        rows = self._room(sequence, end)
        rows[start:end] = self._made(rows[:start], numbers)
        return rows[start:end]

    def _room(self, sequence: int, n: int) -> np.ndarray:
        """The rows of a sequence, at least n of them."""
        rows = self._rows.get(sequence)
        if rows is None or len(rows) < n:
            known = 0 if rows is None else len(rows)
            more = np.zeros((max(n, _ROOM, 2 * known), self._k), np.int32)
            if rows is not None:
                more[:known] = rows
            self._rows[sequence] = rows = more
        return rows

    def _made(self, before: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
        """Components of inputs, int [n, k]. Where they begin or end within an image, the model is
        given the whole of it."""
        inputs, first = self._whole(numbers)
        before = before[: len(before) - first]
        before.flags.writeable = False
        with author_code(self._name, self._file):
            made = np.asarray(self._model.positions(inputs, before))
        if made.shape != (len(inputs), self._k) or made.dtype.kind not in "iu":
            raise TensorError(
                f"{line_of(type(self._model))}: {self._name} returned {list(made.shape)} of "
                f"{made.dtype} for {len(inputs)} inputs; it must return int32 "
                f"[{len(inputs)}, {self._k}]: position_components of each"
            )
        return made[first : first + len(numbers)]

    def _whole(self, numbers: Sequence[int]) -> tuple[list[Input], int]:
        """The inputs of these numbers, with the rows before and behind them of images that begin
        before or end behind them, and the number of rows added before."""
        if min(numbers) >= 0:
            return [_TEXT] * len(numbers), 0
        inputs, first = [], self._inputs.row(numbers[0])
        for i, number in enumerate(numbers):
            entry = self._inputs[number] if number < 0 else None
            if entry is None or entry.embedding is None:
                inputs.append(_TEXT)
                continue
            rest = 0 if entry.whole else len(entry.embedding) - 1
            if entry.row == 0 or i == 0:
                inputs += [Input(entry.token, entry.embedding), *[Input(entry.token)] * rest]
        return inputs, first

    def copy(self, source: int, target: int, n: int) -> None:
        """Gives a sequence the first n positions of another one."""
        if n and source != target:
            self._room(target, n)[:n] = self._rows[source][:n]

    def shifted(
        self, sequence: int, begin: int, end: int, numbers: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The components of the inputs behind `end` once those from `begin` to `end` are forgotten,
        and their differences from those of now; both int32 [n, k].

        Args:
            numbers: the inputs from `end` on.
        """
        rows = self._rows[sequence]
        made = self._made(rows[:begin], numbers) if len(numbers) else rows[:0]
        return made, (made - rows[end : end + len(numbers)]).astype(np.int32)

    def place(self, sequence: int, begin: int, rows: np.ndarray) -> None:
        """Notes components, int32 [n, k], of the positions from `begin` on."""
        self._room(sequence, begin + len(rows))[begin : begin + len(rows)] = rows
