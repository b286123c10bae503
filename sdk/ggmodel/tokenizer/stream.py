"""Decodes tokens one at a time."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class TextStream:
    """Turns ids into text as they come; made by `Tokenizer.stream`.

    The joined results of `push` and `flush` equal `Tokenizer.decode` of all the ids. A character
    whose bytes are spread over several tokens is held back until it is complete.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, strip: bool):
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip = strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Adds one token, and returns the text that is complete now, maybe ""."""
        tokenizer = self._tokenizer
        data, starts_text = tokenizer.bytes_and_start(id)
        if starts_text:
            self._strip = tokenizer.hides_space
        if self._skip_special and tokenizer.is_special(id):
            data = b""
        elif self._strip and not starts_text:
            data = data[1:] if data.startswith(b" ") else data
            self._strip = False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """Ends the text: an incomplete character becomes U+FFFD. The stream can be used again."""
        rest = self._utf8.decode(b"", final=True)
        self._strip = self._tokenizer.hides_space
        return rest
