"""The comparison of texts by the fuzzer of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fuzz.fuzzer import Wrong
from tests.fuzz.requests import Requests

# Tokens 42 and 46 have the same logits behind these but for 3e-7.
PROMPT = [42, 58, 29, 54, 21, 47, 34, 26, 60, 22, 45, 52, 61, 29, 18, 57]
PROMPT += [18, 34, 44, 60, 23, 48, 17, 2, 19, 51, 55, 22, 28, 52]
ALONE = [11, 47, 62, 60, 35, 42]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Requests]:
    found = Requests(tmp_path_factory.mktemp("requests"))
    found.open()
    yield found
    found.close()


def request(**options: Any) -> dict[str, Any]:
    options = {"temperature": 0.7, "seed": 1, "context_shift": False} | options
    return {"prompt": PROMPT, "options": options, "length": len(ALONE), "cut": False}


def test_a_draw_between_equal_tokens_is_a_tie(fuzzer: Requests):
    fuzzer._compare(0, request(), ALONE)
    assert fuzzer.counts["ties"] == 0
    fuzzer._compare(0, request(), [*ALONE[:-1], 46])
    assert fuzzer.counts["ties"] == 1


@pytest.mark.parametrize("got", [[*ALONE[:-1], 47], [12, *ALONE[1:]], ALONE[:-1]])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"repeat_penalty": 1.3}])
def test_other_texts_are_wrong(fuzzer: Requests, got: list[int], options: dict[str, Any]):
    with pytest.raises(Wrong, match="a text that differs"):
        fuzzer._compare(0, request(**options), got)
