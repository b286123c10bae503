"""The verdict of a soak, and a few of its cases."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.fuzz import soak
from tests.fuzz.mixed import Mixed
from tests.fuzz.parent import Children, Result


def told(samples: list[list[float]]) -> tuple[bool, str]:
    result = Result(Mixed, 1)
    result.samples = [samples]
    text = io.StringIO()
    return soak.tell(Console(file=text), result), text.getvalue()


def course(grows: float = 0.0, files: float = 0.0, threads: float = 0.0) -> list[list[float]]:
    """An hour, a sample a minute; growth is an hour's, after a beginning that is steep anyway."""
    return [
        [
            60 * m,
            (100 + min(m, 10) * 5 + grows * m / 60) * 2**20,
            8 + int(files * m / 60),
            9 + m % 3 + int(threads * m / 60),
        ]
        for m in range(61)
    ]


def test_an_hour_that_grows_is_told():
    flat, text = told(course())
    assert flat
    assert "0.0 MiB an hour" in text
    flat, text = told(course(grows=12))
    assert not flat
    assert "resident memory: +12.0 MiB an hour" in text
    assert not told(course(files=10))[0]
    assert not told(course(threads=10))[0]


def test_the_slope_is_that_of_the_last_two_thirds():
    assert soak.slope(course(grows=6)) == pytest.approx(6)


@pytest.mark.slow
def test_requests_of_all_kinds_are_answered():
    result = Children(Mixed, seed=2, cases=16).run()
    assert not result.findings, "\n\n".join(f.title + f.text for f in result.findings.values())
    assert result.counts["requests"] > 16
