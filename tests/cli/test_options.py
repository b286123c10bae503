"""Options that commands share."""

from __future__ import annotations

import pytest

from ggmodel.cli.options import overrides, token_ids, workers
from ggmodel.errors import ConfigError


def test_the_first_device_of_a_pattern_counts():
    given = [r"ffn=CPU", r"blk\.1=GPU0", r"ffn=GPU1", r"a=b=CPU"]
    assert overrides(given) == {"ffn": "CPU", r"blk\.1": "GPU0", "a=b": "CPU"}
    assert list(overrides(given)) == ["ffn", r"blk\.1", "a=b"]
    assert overrides(None) == {}


@pytest.mark.parametrize("text", ["", "=", "ffn", "ffn=", "=CPU"])
def test_an_override_names_a_pattern_and_a_device(text: str):
    with pytest.raises(ConfigError, match=f"--override-tensor '{text}': give PATTERN=DEVICE"):
        overrides([text])


def test_token_ids():
    assert token_ids("1,2, 30") == [1, 2, 30]
    for text in ("", "1,", "a"):
        with pytest.raises(ConfigError, match="such as 1,2,3"):
            token_ids(text)


def test_workers_are_separated_by_commas_or_options():
    assert workers(None) is None
    assert workers(["a:1,b:2", "c:3"]) == ["a:1", "b:2", "c:3"]
