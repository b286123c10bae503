"""The way through a sound, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..audio import open_audio, resample
from ..errors import ConfigError, Unsupported
from ..model import Input, MultimodalEmbedding, Speech, SpeechPrompt
from ..runner.sampling import Sampler
from .asked import Progress, asked, check_wishes
from .rules import SpeechSampler
from .transcript import Segment, Transcript

if TYPE_CHECKING:
    from ..audio.open import Source
    from ..runner import LoadedModel

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
        return asked(model, speech, open_audio(audio, rate), language, sampler, progress)
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


def _times_are_given(model: LoadedModel, speech: Speech, wanted: bool) -> bool:
    """Whether timestamps are wanted; raises Unsupported where the vocabulary has none."""
    if wanted and speech.timed >= model.engine.vocabulary:
        raise Unsupported(
            "this model gives no timestamps: leave them out, and give sounds of up to "
            f"{speech.window * speech.frame:g} s"
        )
    return wanted


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
            known = ", ".join(speech.languages)
            raise ConfigError(f"the language {named!r} is unknown to this model; known: {known}")
        if task not in speech.tasks:
            known = ", ".join(speech.tasks)
            raise ConfigError(f"the task {task!r} is unknown to this model; known: {known}")
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
        told = [] if language is None else [speech.languages[language]]
        told += [] if task is None else [speech.tasks[task]]
        told += [] if self._sampler.timed else [speech.untimed]
        first, *rest = [*self._before, speech.start, *told]
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
        found, last = [], 0
        for end in ends:
            first, latest = (self._frame(tokens[i]) for i in (last, end - 1))
            found.append(self._segment(tokens[last:end], begin + first, begin + latest))
            last = end
        return found, heard if finished else self._frame(tokens[last - 1])

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
