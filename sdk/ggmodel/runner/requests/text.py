"""Text of an answer: tokens become characters, and stop strings end it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer


class AnswerText:
    """The text of tokens, held back where it is incomplete or may begin a stop string.

    Args:
        tokenizer: None gives no text.
        after: the last token of the prompt, None if that is an image.

    Attributes:
        stopped: a stop string came. stop: that string, or None.
    """

    def __init__(self, tokenizer: Tokenizer | None, after: int | None, stops: Iterable[str]):
        self._stream = None if tokenizer is None else tokenizer.stream(after=after)
        self._stop = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        return self._stop.stopped

    @property
    def stop(self) -> str | None:
        return self._stop.found

    def push(self, token: int) -> str:
        """The text that can be handed out after this token."""
        text = "" if self._stream is None else self._stream.push(token)
        return self._stop.push(text) if self._stop.watches else text

    def flush(self) -> str:
        """The rest, at the end of the answer; nothing behind a stop string."""
        if self.stopped or self._stream is None:
            return ""
        rest = self._stop.push(self._stream.flush())
        return rest if self.stopped else rest + self._stop.flush()


class StopStrings:
    """Holds back text that may turn out to be the beginning of a stop string.

    Attributes:
        stopped: one came. found: that one, or None. watches: there are any.
    """

    def __init__(self, stops: Iterable[str]):
        self._stops = [s for s in stops if s]
        self._held = ""
        self.stopped, self.watches = False, bool(self._stops)
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that can be handed out now; `stopped` tells whether a stop string came."""
        if not self.watches:
            return text
        held = self._held + text
        places = [(i, s) for s in self._stops if (i := held.find(s)) >= 0]
        if places:
            first, self.found = min(places, key=lambda place: place[0])
            self.stopped, self._held = True, ""
            return held[:first]
        keep = max(_overlap(held, s) for s in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text still held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
