"""The rules of times, one by one, and transcripts in other formats."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.model import Speech
from ggmodel.transcript import Segment, as_srt, as_text
from ggmodel.transcript.transcribe import SpeechSampler

# Tokens 0 to 5 are text, 6 ends, 7 starts, 8 is "no times", 10 to 19 are times.
SPEECH = Speech(
    start=7, end=6, languages={}, tasks={}, untimed=8, timed=10, step=2, window=20, frame=0.01,
    rate=16_000, spectrum=lambda samples: samples[None], suppressed=(0, 99), never_first=(1, 6),
    latest_first=3,
)  # fmt: skip
FLAT = np.zeros(20, np.float32)
LOUD = np.where(np.arange(20) < 10, np.float32(9), FLAT)  # text is likelier than all times together


def allowed(answer: list[int], logits: np.ndarray = LOUD, timed: bool = True) -> set[int]:
    before = logits.copy()
    scores = SpeechSampler(SPEECH, timed).adjust(logits, answer)
    np.testing.assert_array_equal(logits, before)
    return set(np.flatnonzero(np.isfinite(scores)).tolist())


def test_an_answer_begins_with_an_early_time():
    assert allowed([]) == {10, 11, 12, 13}


def test_text_follows_a_first_time():
    assert allowed([12]) == {1, 2, 3, 4, 5, 6, 7, 9}


def test_times_do_not_go_back():
    assert allowed([12, 3]) == {1, 2, 3, 4, 5, 6, 7, 9, *range(13, 20)}


def test_a_second_time_or_the_end_follows_the_end_of_a_passage():
    assert allowed([12, 3, 15]) == {6, 7, 9, *range(15, 20)}


def test_text_follows_a_pair():
    assert allowed([12, 3, 15, 15]) == {1, 2, 3, 4, 5, 6, 7, 9}


def test_a_time_comes_where_all_times_are_likelier_than_any_text():
    assert allowed([12, 3], FLAT) == set(range(13, 20))


def test_without_times_only_suppressed_tokens_are_ruled_out():
    assert allowed([], timed=False) == set(range(20)) - {0, 1, 6}
    assert allowed([3], timed=False) == set(range(20)) - {0}


def test_the_prompt_is_no_part_of_the_answer():
    sampling = SpeechSampler(SPEECH, True).begin([7, 12, 3])
    assert sampling.sample(LOUD) in range(10, 14)


def test_a_draw_takes_the_likeliest():
    logits = FLAT.copy()
    logits[[0, 4]] = 30, 20
    assert SpeechSampler(SPEECH, False).begin().sample(logits) == 4


SEGMENTS = [Segment(0.0, 1.5, " One\n\ntwo"), Segment(3599.9996, 3661.25, " three ")]


def test_subtitles():
    assert as_srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne two\n\n2\n01:00:00,000 --> 01:01:01,250\nthree\n"
    )


def test_text_with_times():
    assert as_text(SEGMENTS).splitlines()[0] == "[00:00:00,000 --> 00:00:01,500] One two"


@pytest.mark.parametrize("segments", [[], [Segment(0, 1, "")]])
def test_silence(segments):
    assert as_srt(segments).count("\n") == (4 if segments else 0) - bool(segments)
