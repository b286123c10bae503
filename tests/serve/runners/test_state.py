"""A runner tells how its model declares replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.chat.replies import reply_format
from ggmodel.chat.template import REPLIES_KEY
from ggmodel.serve.runners.state import state_of

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
DECLARED = {"start_anchor": "A", "fields": {"content": {"close": "B"}}}


@pytest.mark.parametrize(
    ("text", "declared"), [(json.dumps(DECLARED), DECLARED), ("{", None), ("[]", None), (7, None)]
)
def test_a_declaration_is_told(
    text: object, declared: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ggmodel.load(STORIES) as model:
        assert state_of(model).response_template is None
        metadata = {**model.source.metadata, REPLIES_KEY: text}
        monkeypatch.setattr(model.source, "metadata", metadata)
        state = state_of(model)
        assert state.response_template == declared
        assert reply_format(state.template, state.response_template).parse("Hello B").content
        monkeypatch.undo()


def test_the_advice_of_a_file_on_sampling_is_told(vary: Any) -> None:
    with ggmodel.open_gguf(STORIES) as source:
        told = []
        for metadata in ({}, {"general.sampling.temp": 0.25}):
            with ggmodel.load(vary(source, metadata=metadata)) as model:
                told.append(state_of(model).sampling)
    assert told[0]["top_k"] == 40
    assert told[1] == {**told[0], "temperature": 0.25}
