"""The vocabulary of RWKV: from left to right the longest token, of bytes that need be no text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..errors import TokenizerError
from ..resources import need_room
from .vocabulary import LONGEST, TokenType, Vocabulary

_ESCAPED = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
_BEGIN = 3  # bytes that the lengths of longer tokens are looked up by
_A_TOKEN = 256  # bytes, about


def unescaped(text: str) -> bytes:
    r"""The bytes of a token, which files spell as Python does: "\xe2\x96", "\n", "\\"."""
    if "\\" not in text:
        return text.encode("utf-8", "surrogatepass")
    return _ESCAPED.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2]),
        text.encode("utf-8", "surrogatepass"),
    )


class TrieEncoder:
    """Encodes texts by a vocabulary of the model "rwkv". Bytes without a token become the unknown
    one, or nothing if there is none.

    Attributes:
        ids: bytes of a token of text → its id.

    Raises:
        TokenizerError: a token has more bytes than `LONGEST`: texts would take their time.
    """

    def __init__(self, vocab: Vocabulary):
        need_room(_A_TOKEN * len(vocab.tokens), "a vocabulary")
        normal = vocab.of_type([TokenType.NORMAL])
        self.ids = {unescaped(text): id for text, id in normal.items()}
        self._unknown = vocab.token_id("unknown")
        lengths: dict[bytes, set[int]] = {}
        for token in self.ids:
            if len(token) > LONGEST:
                raise TokenizerError(
                    f"token {self.ids[token]} has {len(token):,} bytes, RWKV's have {LONGEST} at "
                    "most; get the file again"
                )
            lengths.setdefault(token[:_BEGIN], set()).add(len(token))
        self._lengths = {begin: sorted(each, reverse=True) for begin, each in lengths.items()}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [[id for id, *_ in self._cut(text.encode())] for text in texts]

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """The ids of a text, each with its place in characters: (id, start, end). Tokens that share
        a character have it in the places of all."""
        at = [i for i, char in enumerate(text) for _ in char.encode()]
        return [(id, at[start], at[end - 1] + 1) for id, start, end in self._cut(text.encode())]

    def _cut(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        ids, lengths, start = self.ids, self._lengths, 0
        while start < len(data):
            token = data[start : start + 1]
            for n in (*lengths.get(data[start : start + _BEGIN], ()), 2):
                if (longer := data[start : start + n]) in ids:
                    token = longer
                    break
            id, end = ids.get(token, self._unknown), start + len(token)
            if id is not None:
                yield id, start, end
            start = end
