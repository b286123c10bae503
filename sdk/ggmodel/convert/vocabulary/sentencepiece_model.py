"""The file of a SentencePiece model: the few fields of its protocol buffer that a GGUF carries.

Field numbers and defaults are those of sentencepiece_model.proto. A message is a row of fields,
each a number and a value: a variable-length integer, 4 or 8 bytes, or bytes with their length
(a text, or a message again).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...errors import FormatError

UNIGRAM, BPE = 1, 2

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # ModelProto.SentencePiece
_MODEL_TYPE = 3  # TrainerSpec
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4  # NormalizerSpec


@dataclass
class SentencePieceModel:
    """The content of the file.

    Attributes:
        kind: `UNIGRAM`, `BPE`, or one of two other kinds.
        pieces: text of each id.
        scores: score of each id, float32.
        types: type of each id: the numbers of `TokenType`.
        add_dummy_prefix: a space goes in front of a text.
        remove_extra_whitespaces: several spaces become one.
        charsmap: the compiled normalization of characters; empty for none.
    """

    kind: int = UNIGRAM
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    charsmap: bytes = b""


def read_sentencepiece(data: bytes, name: str) -> SentencePieceModel:
    """The model in `data`; `name` is the file's, for errors.

    Raises:
        FormatError: it is no SentencePiece model.
    """
    reader = _Reader(data, name)
    model = SentencePieceModel()
    for number, value in reader.fields(0, len(data)):
        if number == _PIECES:
            _add_piece(model, reader, value)
        elif number == _TRAINER:
            for inner, at in reader.fields(*reader.span(value)):
                if inner == _MODEL_TYPE:
                    model.kind = reader.integer(at)
        elif number == _NORMALIZER:
            for inner, at in reader.fields(*reader.span(value)):
                if inner == _CHARSMAP:
                    start, end = reader.span(at)
                    model.charsmap = data[start:end]
                elif inner == _ADD_DUMMY_PREFIX:
                    model.add_dummy_prefix = bool(reader.integer(at))
                elif inner == _REMOVE_EXTRA_WHITESPACES:
                    model.remove_extra_whitespaces = bool(reader.integer(at))
    if not model.pieces:
        raise reader.wrong(0, "there are no pieces")
    return model


def _add_piece(model: SentencePieceModel, reader: _Reader, value: _Value) -> None:
    text, score, kind = "", 0.0, 1
    start, end = reader.span(value)
    for number, inner in reader.fields(start, end):
        if number == _PIECE:
            text = reader.text(inner)
        elif number == _SCORE:
            score = reader.float(inner)
        elif number == _TYPE:
            kind = reader.integer(inner)
    if not 1 <= kind <= 6:
        raise reader.wrong(start, f"piece {len(model.pieces)} has the unknown type {kind}")
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


@dataclass(frozen=True)
class _Value:
    """A field's value: its wire type, its first byte and the one behind its last."""

    wire: int
    start: int
    end: int


class _Reader:
    def __init__(self, data: bytes, name: str):
        self._data, self._name = data, name

    def wrong(self, at: int, what: str) -> FormatError:
        return FormatError(
            f"{self._name} is no SentencePiece model: byte {at}: {what}; get the file again"
        )

    def fields(self, start: int, end: int) -> Iterator[tuple[int, _Value]]:
        """Number and value of each field between two offsets."""
        at = start
        while at < end:
            key, begin = self._varint(at, end)
            wire = key & 7
            if wire == 0:
                stop = self._varint(begin, end)[1]
            elif wire in (1, 5):
                stop = begin + (8 if wire == 1 else 4)
            elif wire == 2:
                length, begin = self._varint(begin, end)
                stop = begin + length
            else:
                raise self.wrong(at, f"there is no wire type {wire}")
            if stop > end:
                raise self.wrong(at, f"field {key >> 3} goes {stop - end} bytes too far")
            yield key >> 3, _Value(wire, begin, stop)
            at = stop

    def span(self, value: _Value) -> tuple[int, int]:
        return self._of(value, 2).start, value.end

    def text(self, value: _Value) -> str:
        start, end = self.span(value)
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.wrong(start + error.start, "a piece is no UTF-8") from None

    def float(self, value: _Value) -> float:
        return struct.unpack_from("<f", self._data, self._of(value, 5).start)[0]

    def integer(self, value: _Value) -> int:
        return self._varint(self._of(value, 0).start, value.end)[0]

    def _of(self, value: _Value, wire: int) -> _Value:
        if value.wire != wire:
            raise self.wrong(value.start, f"a field has wire type {value.wire}, not {wire}")
        return value

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, seven bits a byte with the lowest first, and the offset behind it."""
        result = 0
        for i, byte in enumerate(self._data[at : min(at + 10, end)]):
            result |= (byte & 127) << 7 * i
            if byte < 128:
                return result, at + i + 1
        raise self.wrong(at, "a number does not end")
