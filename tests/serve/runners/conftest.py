"""A runner's process that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.serve.runners.engines import GgmodelRunner
from tests.serve.loops import Loop, new_loop

ASSETS = Path(__file__).resolve().parents[3] / "examples" / "assets"
STORIES = str(ASSETS / "stories.gguf")


# Keys and values in F32: what others ask beside it then changes no number that shows.
OPTIONS: Any = {"parallel": 8, "gpu_layers": 0, "kv_type": "f32"}


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with new_loop() as loop:
        yield loop


@pytest.fixture(scope="module")
def runner(loop: Loop) -> Iterator[GgmodelRunner]:
    """The storyteller, with eight sequences."""
    started = loop.run(GgmodelRunner.start(STORIES, OPTIONS))
    yield started
    loop.run(started.close())


@pytest.fixture(scope="module")
def model() -> Iterator[ggmodel.LoadedModel]:
    """The same in this process."""
    with ggmodel.load(STORIES, **OPTIONS) as model:
        yield model
