"""The rules by which tokens of speech are chosen, those of OpenAI's Whisper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..model import Speech
from ..runner.sampling import Sampler, Sampling
from ..runner.sampling.sampler import Constraint

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
        if _log_sum(scores[timed:]) > scores[:timed].max(initial=_NEVER):
            scores[:timed] = _NEVER


def _known(tokens: Sequence[int], logits: np.ndarray) -> list[int]:
    return [token for token in tokens if token < len(logits)]


def _log_sum(scores: np.ndarray) -> float:
    """ln Σ exp, −∞ of none."""
    most = float(scores.max(initial=_NEVER))
    if most == -np.inf:
        return most
    return most + float(np.log(np.exp(scores.astype(np.float64) - most).sum()))
