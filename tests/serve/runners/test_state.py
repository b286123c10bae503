"""A runner tells how its model declares replies, and which context it has."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.chat.replies import reply_format
from ggmodel.chat.template import REPLIES_KEY
from ggmodel.serve.runners.client import Needs
from ggmodel.serve.runners.engines import GgmodelRunner
from ggmodel.serve.runners.state import state_of
from tests.serve.loops import Loop

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


@pytest.mark.parametrize(("taken", "length"), [(0, 100_000), (1 << 60, 4096), (None, 4096)])
def test_a_model_that_is_served_gets_the_context_that_memory_holds(
    loop: Loop,
    vary: Any,
    write_gguf: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    taken: int | None,
    length: int,
) -> None:
    with ggmodel.open_gguf(STORIES) as source:
        long = vary(source, metadata={"llama.context_length": 100_000})
        path = write_gguf(tmp_path / "long.gguf", long)
    asked: list[int] = []

    async def admit(needs: Needs) -> bool:
        asked.append(needs.cpu)
        return len(asked) == 2

    async def context() -> int:
        runner = await GgmodelRunner.start(
            str(path), {"gpu_layers": 0}, name="long", admit=admit, taken=taken
        )
        await runner.close()
        return runner.state.context_length

    with caplog.at_level(logging.WARNING, "ggmodel.serve"):
        assert loop.run(context()) == length
    assert asked == [asked[0]] * 2
    said = [one.message for one in caplog.records if "--context-length sets it" in one.message]
    assert len(said) == (taken == 1 << 60)
    assert all(
        one.startswith("long: context 4,096 of 100,000 tokens, what 0.0 GiB") for one in said
    )
