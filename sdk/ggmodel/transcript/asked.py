"""Transcription by prompt, with models that encode audio as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PromptError, TokenizerError, Unsupported
from ..model import SpeechPrompt
from .transcript import Segment, Transcript

if TYPE_CHECKING:
    from ..audio import Audio
    from ..runner import LoadedModel
    from ..runner.sampling import Sampler
    from ..tokenizer import Tokenizer

Progress = Callable[[float, float], None]


def asked(
    model: LoadedModel,
    speech: SpeechPrompt,
    sound: Audio,
    language: str | None,
    sampler: Sampler,
    progress: Progress | None = None,
) -> Transcript:
    """Writes down a sound; its answer may fill the context.

    Args:
        language: its code; None leaves it to the model.
        progress: called with no seconds for each token, with all of them at the end.

    Raises:
        ConfigError: the language is no code.
        TokenizerError: the vocabulary lacks a token of the prompt.
        AudioError: the sound does not fit the context.
        PromptError: it leaves no room for an answer.
    """
    code = None if language is None else _code(language)
    vocabulary = model.prompts.vocabulary()
    before, after = _around(vocabulary, speech, code)
    heard = model.model.modalities()["audio"].inputs(model.embeddings(sound, "audio"))
    prompt: list[Any] = [*before, *heard, *after]
    room = model.context_length - model.length(prompt)
    if room < 1:
        raise PromptError(
            f"the sound of {sound.seconds:,.1f} s fills the context of {model.context_length:,} "
            "tokens; give a longer context_length, or a shorter sound"
        )
    with model.stream(prompt, sampler=sampler, max_tokens=room) as stream:
        pieces = []
        for piece in stream:
            pieces.append(piece)
            if progress is not None:
                progress(0.0, sound.seconds)
    answer = stream.completion(pieces)
    if progress is not None:
        progress(sound.seconds, sound.seconds)
    text = vocabulary.decode(answer.tokens, skip_special=True).strip()
    segment = Segment(0.0, sound.seconds, text, tuple(answer.tokens))
    return Transcript(text, code, sound.seconds, (segment,))


def check_wishes(task: str | None, timestamps: bool, prompt: str | None) -> None:
    """Refuses what no such model does.

    Raises:
        Unsupported: times, or text that was said before.
        ConfigError: another task than transcribing.
    """
    if timestamps:
        raise Unsupported(
            "this model gives no timestamps: ask for text or JSON without them, not for subtitles"
        )
    if prompt and prompt.strip():
        raise Unsupported("this model takes no prompt: leave it out")
    if task not in (None, "transcribe"):
        raise ConfigError("this model transcribes only: leave out the task, or translation")


def _code(language: str) -> str:
    code = language.strip().lower()
    if not re.fullmatch("[a-z]{2}", code):
        raise ConfigError(
            f"the language {language!r:.80} is unknown to this model; give its code of two letters "
            "(ISO 639-1), such as en"
        )
    return code


def _around(
    vocabulary: Tokenizer, speech: SpeechPrompt, language: str | None
) -> tuple[list[int], list[int]]:
    """The tokens before and behind a sound."""

    def special(texts: Sequence[str]) -> list[int]:
        return [_special(vocabulary, text) for text in texts]

    said = "" if language is None else speech.language.format(language)
    told = vocabulary.encode(said, add_special=False, parse_special=False)
    return special(speech.before), [*special(speech.after), *told, *special(speech.last)]


def _special(vocabulary: Tokenizer, text: str) -> int:
    id = vocabulary.id_of_text(text)
    if id is None or not vocabulary.is_special(id):
        raise TokenizerError(
            f"the vocabulary has no special token {text}, by which this model is asked to "
            "transcribe; convert it with the vocabulary of its publisher"
        )
    return id
