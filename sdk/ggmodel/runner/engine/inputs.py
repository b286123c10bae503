"""Inputs as numbers, and the positions of their sequences.

Token ids are themselves; inputs that are more than a token are negative numbers. The same row of
the same image has the same number wherever it stands, so common prefixes are found by comparing
numbers. The table belongs to the engine's thread.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...errors import PromptError, TensorError
from ...model import Input, Model, MultimodalEmbedding, Span
from ...model.source_code import author_code, file_of, line_of


@dataclass(frozen=True)
class Entry:
    """An input that is more than its token.

    Attributes:
        embedding: the rows it stands for, or None.
        row: which of them; 0 where `whole`, when it stands for all.
        index, size: its index in its group, and the group's size.
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
    if one.multimodal is not None and not len(one.multimodal):
        raise PromptError(
            f"input {i}: this embedding has no rows, only data for post_tokenize; leave it out"
        )


class InputTable:
    """Numbers inputs, and knows what a number stands for.

    Args:
        whole: an embedding belongs to one input and goes to a cache, rather than a row to an input.
        together: the rows of an embedding are one group.

    Attributes:
        widths: numbers in a row of the model's own embeddings, and in each of its parts; empty for
            any. Rows of other widths would end the batch for all users.
    """

    def __init__(self, whole: bool, together: bool):
        self.whole, self.together = whole, together
        self.widths: set[tuple[int, ...]] = set()
        self._numbers: dict[Any, int] = {}
        self._entries: dict[int, Entry] = {}
        self._next = -1
        self._prompts: list[weakref.ref[np.ndarray]] = []

    def __getitem__(self, number: int) -> Entry:
        return self._entries[number]

    def number(self, inputs: Sequence[Input]) -> list[int]:
        """Each input as a number: its token, or a negative one.

        Raises:
            PromptError: a wrong input, an embedding with fewer inputs than rows, or a group beyond
                the end.
        """
        for i, one in enumerate(inputs):
            _check(i, one)
            if one.multimodal is not None:
                self._check_widths(i, one.multimodal)
        rows = self._rows(inputs)
        numbers: list[int] = []
        for i, (begin, end) in enumerate(self._groups(inputs, rows)):
            embedding, row = rows.get(i, (None, 0))
            if embedding is None and end - begin == 1:
                numbers.append(inputs[i].token)
                continue
            entry = Entry(inputs[i].token, embedding, row, self.whole, i - begin, end - begin)
            what = (embedding.key, embedding.used) if embedding else entry.token
            token = entry.token if self.whole else None
            alone = embedding if embedding and embedding.alone else None
            content = (what, token, row, entry.index, entry.size, alone)
            if content not in self._numbers:
                self._numbers[content] = self._next
                self._entries[self._next] = entry
                self._next -= 1
            numbers.append(self._numbers[content])
        return numbers

    def digest(self, number: int) -> bytes:
        """16 bytes, in all processes the same for an input of the same content."""
        entry = self._entries[number]
        what = (entry.embedding.key, entry.embedding.used) if entry.embedding else entry.token
        token = entry.token if self.whole else None
        content = repr((what, token, entry.row, entry.index, entry.size))
        return hashlib.blake2b(content.encode(), digest_size=16).digest()

    def _check_widths(self, i: int, embedding: MultimodalEmbedding) -> None:
        widths = embedding.width, *embedding.widths
        allowed = self.widths | {(width,) for width, *_ in self.widths}
        if allowed and widths not in allowed:
            listed = " or ".join(map(str, sorted(allowed)))
            raise PromptError(
                f"input {i}: this multimodal embedding has rows and parts of {widths} numbers; the "
                f"model's have {listed}"
            )

    def _rows(self, inputs: Sequence[Input]) -> dict[int, tuple[MultimodalEmbedding, int]]:
        """By input: the embedding and the row that fill it."""
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
        """By input: the extent of its group. Overlapping groups are one."""
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
        whole = dict(ends)  # the last extent of a group is the full one
        return [(begin, whole[begin]) for begin, _ in ends]

    def before(self, numbers: Sequence[int], n: int) -> int:
        """The largest m ≤ n such that no group is split between inputs m − 1 and m."""
        if 0 < n < len(numbers) and numbers[n] < 0:
            return n - self._entries[numbers[n]].index
        return n

    def after(self, numbers: Sequence[int], n: int) -> int:
        """The smallest m ≥ n such that no group is split between inputs m − 1 and m."""
        begin = self.before(numbers, n)
        return n if begin == n else begin + self._entries[numbers[n]].size

    def row(self, number: int) -> int:
        """How many rows of its image are before this input; 0 if it is no row."""
        entry = self._entries[number] if number < 0 else None
        return 0 if entry is None or entry.embedding is None else entry.row

    def before_image(self, numbers: Sequence[int], n: int) -> int:
        """`before`, but no image is split either."""
        while (m := self.before(numbers, n)) > 0 and m < len(numbers):
            n = m - self.row(numbers[m])
            if n == m:
                break
        return m

    def after_image(self, numbers: Sequence[int], n: int) -> int:
        """`after`, but no image is split either."""
        while (m := self.after(numbers, n)) < len(numbers) and m > 0:
            row = self.row(numbers[m])
            if not row:
                break
            embedding = self._entries[numbers[m]].embedding
            assert embedding is not None
            n = m - row + len(embedding)
        return m

    def largest_group(self, numbers: Iterable[int]) -> int:
        """How many inputs must be computed together; 1 without groups."""
        return max((self._entries[n].size for n in numbers if n < 0), default=1)

    def whole_rows(self, numbers: Sequence[int]) -> int:
        """Rows of the images that belong to one of these inputs each; 0 where none do."""
        if not self.whole:
            return 0
        embeddings = (self._entries[n].embedding for n in numbers if n < 0)
        return sum(len(e) if e.used is None else e.used for e in embeddings if e is not None)

    def tokens(self, numbers: Sequence[int], kind: str) -> int:
        """The tokens of a prompt: those that became items of this kind, else its inputs."""
        embeddings = (self._entries[n].embedding for n in numbers if n < 0)
        read = sum(len(e) for e in embeddings if e is not None and e.kind == kind)
        return read or len(numbers)

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
            entry = self._entries[int(numbers[i])]
            tokens[i] = entry.token
            if entry.embedding is None:
                continue
            if entry.whole:
                used = entry.embedding.used
                n = len(entry.embedding) if used is None else used
                spans.append(Span(i, entry.embedding, 0, n))
                continue
            tokens[i] = 0  # laid over; the placeholder need not be in the vocabulary
            if self.together:
                groups[i] = positions[i] - entry.row + 1
            last = spans[-1] if spans else None
            if (
                last is not None
                and last.embedding is entry.embedding
                and (last.index + last.count, last.first + last.count) == (i, entry.row)
            ):
                spans[-1] = Span(last.index, last.embedding, last.first, last.count + 1)
            else:
                spans.append(Span(i, entry.embedding, entry.row, 1))
        return tokens, groups if groups.any() else None, tuple(spans)

    def keep(self, numbers: np.ndarray) -> np.ndarray:
        """The same numbers int32 [n]; the table knows them as long as this array lives."""
        self._prompts.append(weakref.ref(numbers))
        return numbers

    def forget(self, slots: Iterable[Sequence[int]]) -> None:
        """Drops the entries that neither a kept prompt nor one of these slots has."""
        prompts = [prompt for prompt in (ref() for ref in self._prompts) if prompt is not None]
        self._prompts = [weakref.ref(prompt) for prompt in prompts]
        alive = {n for numbers in chain((p.tolist() for p in prompts), slots) for n in numbers}
        self._entries = {n: e for n, e in self._entries.items() if n in alive}
        self._numbers = {c: n for c, n in self._numbers.items() if n in alive}


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
        rows, begin = [], 0
        for end in (*ends.tolist(), len(numbers)):
            piece = numbers[begin:end].tolist()
            rows.append(self._continued(int(sequences[begin]), int(positions[begin]), piece))
            begin = end
        return np.ascontiguousarray(np.concatenate(rows).T)

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
            filled = 0 if rows is None else len(rows)
            more = np.zeros((max(n, _ROOM, 2 * filled), self._k), np.int32)
            if rows is not None:
                more[:filled] = rows
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

    def known(self, sequence: int, n: int) -> np.ndarray:
        """The components of the first n positions of a sequence, int32 [n, k]; a copy."""
        return self._room(sequence, n)[:n].copy()

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
