"""Transcription of a sound, window by window or by prompt.

Tokens of speech are chosen by the rules of OpenAI's Whisper. A prompt is for models that encode
audio as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..audio import open_audio, resample
from ..errors import ConfigError, PromptError, TokenizerError, Unsupported
from ..model import Input, MultimodalEmbedding, Speech, SpeechPrompt
from ..runner.sampling import Constraint, Sampler, Sampling
from .transcript import Segment, Transcript

if TYPE_CHECKING:
    from ..audio import Audio
    from ..audio.open import Source
    from ..runner import LoadedModel
    from ..tokenizer import Tokenizer

_NEVER = np.float32(-np.inf)


class SpeechSampler(Sampler):
    """Takes the likeliest token that the rules allow, or draws one.

    Times come in pairs, the end of a passage and the beginning of the next, and never go back; an
    answer begins with one. Where all times together are likelier than any token of text, a time
    comes next.

    Args:
        timed: whether times are written.
        temperature, seed: as for `Sampler`.
    """

    def __init__(self, speech: Speech, timed: bool, temperature: float = 0.0, seed: int = -1):
        super().__init__(temperature, top_k=0, top_p=1.0, seed=seed)
        self._speech, self.timed = speech, timed

    def begin(
        self, prompt: Iterable[int] = (), *, constraint: Constraint | None = None
    ) -> Sampling:
        """The state of one answer; its prompt does not matter."""
        return Sampling(self, (), constraint)

    def adjust(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """The scores of tokens that may follow an answer, −∞ for all others."""
        scores, answer = logits.copy(), history
        scores[_known(self._speech.suppressed, logits)] = _NEVER
        if not answer:
            scores[_known(self._speech.never_first, logits)] = _NEVER
        if self.timed:
            self._keep_times(scores, answer)
        return scores

    def _keep_times(self, scores: np.ndarray, answer: Sequence[int]) -> None:
        speech, timed = self._speech, self._speech.timed
        scores[speech.untimed] = _NEVER
        latest = answer[-1] >= timed if answer else False
        before = len(answer) < 2 or answer[-2] >= timed
        if latest and before:
            scores[timed:] = _NEVER
        elif latest:
            scores[: speech.end] = _NEVER
        times = [token for token in answer if token >= timed]
        if times:
            scores[timed : times[-1] + (not (latest and not before))] = _NEVER
        if not answer:
            scores[:timed] = _NEVER
            if speech.latest_first is not None:
                scores[timed + speech.latest_first + 1 :] = _NEVER
        every_time = np.logaddexp.reduce(scores[timed:], dtype=np.float64)
        if every_time > scores[:timed].max(initial=_NEVER):
            scores[:timed] = _NEVER


def _known(tokens: Sequence[int], logits: np.ndarray) -> list[int]:
    return [token for token in tokens if token < len(logits)]


Progress = Callable[[float, float], None]


def by_prompt(
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

    spelled = "" if language is None else speech.language.format(language)
    ids = vocabulary.encode(spelled, add_special=False, parse_special=False)
    return special(speech.before), [*special(speech.after), *ids, *special(speech.last)]


def _special(vocabulary: Tokenizer, text: str) -> int:
    id = vocabulary.id_of_text(text)
    if id is None or not vocabulary.is_special(id):
        raise TokenizerError(
            f"the vocabulary has no special token {text}, by which this model is asked to "
            "transcribe; convert it with the vocabulary of its publisher"
        )
    return id


_LONGEST = 64  # characters of a token


def transcribe(
    model: LoadedModel,
    audio: Source,
    *,
    rate: int | None = None,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    prompt: str | None = None,
    temperature: float = 0.0,
    seed: int = -1,
    progress: Progress | None = None,
) -> Transcript:
    """Writes down what is said in a sound of any length.

    The sound is heard in windows of 30 seconds. With timestamps, and in all sounds longer than one
    window, the next one begins where the last complete passage ended, as in OpenAI's Whisper. No
    passage ends after the sound. A model that is asked by a prompt, such as Voxtral, hears a sound
    as a whole, without timestamps.

    Args:
        audio, rate: as for `ggmodel.audio.open_audio`.
        language: a code or a name, such as "en" or "English"; None recognises it in the first
            window. Models that are asked by a prompt know codes.
        task: "transcribe", the default, or "translate" into English.
        timestamps: tell the beginnings and ends of passages.
        prompt: text that might have been said before, in whose spelling and style the model goes
            on, as transformers' `prompt_ids`: it stands before each window. Its last tokens count,
            up to half of the context.
        temperature, seed: as for `Sampler`; at 0 tokens are the likeliest that Whisper's rules
            allow.
        progress: called with the seconds that are done, and all seconds.

    Raises:
        Unsupported: the model does not transcribe, gives no timestamps, which are wanted or needed,
            or takes no prompt.
        ConfigError: an unknown language or task, or an impossible temperature or seed.
        PromptError: the sound leaves no room in the context.
        AudioError: the sound cannot be read.
        TokenizerError: the model has no vocabulary.
    """
    if isinstance(speech := model.model.speech(), SpeechPrompt):
        check_wishes(task, timestamps, prompt)
        sampler = Sampler(temperature, top_k=0, top_p=1.0, seed=seed)
        return by_prompt(model, speech, open_audio(audio, rate), language, sampler, progress)
    sound = resample(open_audio(audio, rate), speech.rate)
    spectrum = speech.spectrum(sound.samples)
    frames = max(1, round(sound.seconds / speech.frame))
    timed = _times_are_given(model, speech, timestamps or frames > speech.window)
    before = _before(model, speech, prompt) if prompt and prompt.strip() else []
    sampler = SpeechSampler(speech, timed, temperature, seed)
    listener = _Listener(model, speech, spectrum, sound.seconds, before, sampler)
    language, task = listener.choose(language, task)
    segments: list[Segment] = []
    for done, of_window in listener.through(frames, language, task):
        segments += of_window
        if progress is not None:
            progress(min(done * speech.frame, sound.seconds), sound.seconds)
    text = "".join(segment.text for segment in segments)
    return Transcript(text.strip(), language, sound.seconds, tuple(segments))


def _times_are_given(model: LoadedModel, speech: Speech, timed: bool) -> bool:
    """Whether timestamps are wanted; raises Unsupported where the vocabulary has none."""
    if timed and speech.timed >= model.engine.vocabulary:
        raise Unsupported(
            "this model gives no timestamps: leave them out, and give sounds of up to "
            f"{speech.window * speech.frame:g} s"
        )
    return timed


def _before(model: LoadedModel, speech: Speech, prompt: str) -> list[int]:
    """The tokens of text that might have been said before."""
    if speech.previous is None:
        raise Unsupported("this model takes no prompt: its vocabulary has no <|startofprev|>")
    most = max(1, model.context_length // 2 - 1)
    text = " " + prompt.strip()[-most * _LONGEST :]
    ids = model.prompts.vocabulary().encode(text, add_special=False, parse_special=False)
    return [speech.previous, *ids[-most:]]


class _Listener:
    """A model that hears windows of one sound.

    Args:
        spectrum: of the whole sound, float32 [mels, frames].
        seconds: of the sound.
        before: tokens before each answer.
    """

    def __init__(
        self,
        model: LoadedModel,
        speech: Speech,
        spectrum: np.ndarray,
        seconds: float,
        before: list[int],
        sampler: SpeechSampler,
    ):
        self.model, self.speech, self._seconds = model, speech, seconds
        self._spectrum, self._before, self._sampler = spectrum, before, sampler

    def choose(self, language: str | None, task: str | None) -> tuple[str | None, str | None]:
        """The language, recognised where none is named, and the task; None for a model that knows
        but one."""
        speech = self.speech
        named = language or speech.language
        code = None if named is None else speech.code(named)
        if not speech.languages:
            if (language and code != "en") or task not in (None, "transcribe"):
                raise ConfigError(
                    "this model knows one language and transcribes only; leave out language and "
                    "task"
                )
            return None, None
        task = task or speech.task or "transcribe"
        if code is not None and code not in speech.languages:
            names = ", ".join(speech.languages)
            raise ConfigError(f"the language {named!r} is unknown to this model; known: {names}")
        if task not in speech.tasks:
            names = ", ".join(speech.tasks)
            raise ConfigError(f"the task {task!r} is unknown to this model; known: {names}")
        return code or self._recognise(), task

    def _recognise(self) -> str:
        """The likeliest language of the first window."""
        logits = self.model.logits([Input(self.speech.start, self._heard(0))])[-1]
        languages = self.speech.languages
        return max(languages, key=lambda code: logits[languages[code]])

    def through(
        self, frames: int, language: str | None, task: str | None
    ) -> Iterator[tuple[int, list[Segment]]]:
        """The frame at which the next window begins, and the segments of this one."""
        begin = 0
        while begin < frames:
            tokens = self._answer(begin, language, task)
            heard = min(self.speech.window, frames - begin)
            segments, went = self._cut(tokens, begin, heard)
            begin += went if went > 0 else heard
            yield begin, segments

    def _heard(self, begin: int) -> MultimodalEmbedding:
        """The window from a frame on."""
        window = self._spectrum[:, begin : begin + self.speech.window]
        window = np.pad(window, [(0, 0), (0, self.speech.window - window.shape[1])])
        (sound,) = self.model.embeddings(window, "audio")
        assert isinstance(sound, MultimodalEmbedding)
        return sound

    def _answer(self, begin: int, language: str | None, task: str | None) -> list[int]:
        speech = self.speech
        options = [] if language is None else [speech.languages[language]]
        options += [] if task is None else [speech.tasks[task]]
        options += [] if self._sampler.timed else [speech.untimed]
        first, *rest = [*self._before, speech.start, *options]
        prompt: list[Any] = [Input(first, self._heard(begin)), *rest]
        room = self.model.context_length - len(prompt)
        return list(self.model.generate(prompt, sampler=self._sampler, max_tokens=room).tokens)

    def _cut(self, tokens: list[int], begin: int, heard: int) -> tuple[list[Segment], int]:
        """The segments of an answer, and the frames of the window that it is done with."""
        timed = [token >= self.speech.timed for token in tokens]
        ends = [i + 1 for i in range(len(tokens) - 1) if timed[i] and timed[i + 1]]
        if not ends:
            times = [token for token, is_time in zip(tokens, timed, strict=True) if is_time]
            end = self._frame(times[-1]) if times and times[-1] > self.speech.timed else heard
            return [self._segment(tokens, begin, begin + end)], heard
        finished = timed[-2:] == [False, True]  # silence up to the end of the window
        if finished:
            ends.append(len(tokens))
        segments, last = [], 0
        for end in ends:
            first, latest = (self._frame(tokens[i]) for i in (last, end - 1))
            segments.append(self._segment(tokens[last:end], begin + first, begin + latest))
            last = end
        return segments, heard if finished else self._frame(tokens[last - 1])

    def _frame(self, token: int) -> int:
        """The frame of a time; 0 of a token of text."""
        return max(0, token - self.speech.timed) * self.speech.step

    def _segment(self, tokens: Sequence[int], start: int, end: int) -> Segment:
        words = [token for token in tokens if token < self.speech.end]
        text = self.model.detokenize(words) if words else ""
        begins, ends = (
            min(round(at * self.speech.frame, 3), self._seconds) for at in (start, max(start, end))
        )
        return Segment(begins, ends, text, tuple(tokens))
