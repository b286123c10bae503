"""The prompts and timestamp tokens of models that transcribe speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
