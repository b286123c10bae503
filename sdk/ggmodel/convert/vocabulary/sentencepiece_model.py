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
from ...tokenizer.vocabulary import check_count

UNIGRAM, BPE = 1, 2

_VARINT, _BYTES, _FLOAT = 0, 2, 5  # wire types
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
        TokenizerError: it has more pieces than the limit `vocabulary_tokens`.
    """
    reader = _Reader(data, name)
    model = SentencePieceModel()
    wanted = {_PIECES: _BYTES, _TRAINER: _BYTES, _NORMALIZER: _BYTES}
    for number, start, end in reader.fields(0, len(data), wanted):
        if number == _PIECES:
            _add_piece(model, reader, start, end)
        elif number == _TRAINER:
            for _, at, stop in reader.fields(start, end, {_MODEL_TYPE: _VARINT}):
                model.kind = reader.varint(at, stop)[0]
        else:
            _read_normalizer(model, reader, start, end)
    if not model.pieces:
        raise reader.wrong(0, "there are no pieces")
    return model


def _read_normalizer(model: SentencePieceModel, reader: _Reader, start: int, end: int) -> None:
    flags = {_ADD_DUMMY_PREFIX: _VARINT, _REMOVE_EXTRA_WHITESPACES: _VARINT}
    for number, at, stop in reader.fields(start, end, {_CHARSMAP: _BYTES, **flags}):
        if number == _CHARSMAP:
            model.charsmap = reader.data[at:stop]
        elif number == _ADD_DUMMY_PREFIX:
            model.add_dummy_prefix = bool(reader.varint(at, stop)[0])
        else:
            model.remove_extra_whitespaces = bool(reader.varint(at, stop)[0])


def _add_piece(model: SentencePieceModel, reader: _Reader, start: int, end: int) -> None:
    text, score, kind = "", 0.0, 1
    wanted = {_PIECE: _BYTES, _SCORE: _FLOAT, _TYPE: _VARINT}
    for number, at, stop in reader.fields(start, end, wanted):
        if number == _PIECE:
            try:
                text = reader.data[at:stop].decode()
            except UnicodeDecodeError as error:
                raise reader.wrong(at + error.start, "a piece is no UTF-8") from None
        elif number == _SCORE:
            score = struct.unpack_from("<f", reader.data, at)[0]
        else:
            kind = reader.varint(at, stop)[0]
    if not 1 <= kind <= 6:
        raise reader.wrong(start, f"piece {len(model.pieces)} has the unknown type {kind}")
    check_count(reader.name, len(model.pieces) + 1)
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


class _Reader:
    def __init__(self, data: bytes, name: str):
        self.data, self.name = data, name

    def wrong(self, at: int, what: str) -> FormatError:
        return FormatError(
            f"{self.name} is no SentencePiece model: byte {at}: {what}; get the file again"
        )

    def fields(
        self, start: int, end: int, wanted: dict[int, int]
    ) -> Iterator[tuple[int, int, int]]:
        """Number, first byte and the byte behind the last of each wanted field between two offsets.

        Args:
            wanted: the wire types of fields by their numbers; others are left out.
        """
        at = start
        while at < end:
            key, begin = self.varint(at, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                stop = self.varint(begin, end)[1]
            elif wire in (1, _FLOAT):
                stop = begin + (8 if wire == 1 else 4)
            elif wire == _BYTES:
                length, begin = self.varint(begin, end)
                stop = begin + length
            else:
                raise self.wrong(at, f"there is no wire type {wire}")
            if stop > end:
                raise self.wrong(at, f"field {number} goes {stop - end} bytes too far")
            if wanted.get(number, wire) != wire:
                raise self.wrong(begin, f"a field has wire type {wire}, not {wanted[number]}")
            if number in wanted:
                yield number, begin, stop
            at = stop

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, seven bits a byte with the lowest first, and the offset behind it."""
        result = 0
        for i, byte in enumerate(self.data[at : min(at + 10, end)]):
            result |= (byte & 127) << 7 * i
            if byte < 128:
                return result, at + i + 1
        raise self.wrong(at, "a number does not end")
