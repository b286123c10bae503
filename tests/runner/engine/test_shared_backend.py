"""A model's own backend, used by others while the model generates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import GraphError
from ggmodel.ml import DType
from ggmodel.runner import LoadedModel
from tests.conftest import ROOT

STORIES = ROOT / "examples" / "assets" / "stories.gguf"
DEADLINE = 60.0  # seconds, against a hang


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, threads=1, context_length=256) as model:
        yield model


def test_graphs_of_others_do_not_get_into_a_generation(model: LoadedModel):
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
    wanted = model.generate("Once upon a time", **options)
    done, wrong = threading.Event(), list[Any]()

    def compute() -> None:
        while not done.is_set():
            with model.backend.new_context() as ctx:
                x = np.full((50, 64), 3.0, np.float32)
                y = ctx.input().from_floats(x).scale(2.0)
                ctx.compute(y)
                if not (y.numpy() == 6).all():
                    wrong.append(y.numpy())

    others = [threading.Thread(target=compute, daemon=True) for _ in range(2)]
    for thread in others:
        thread.start()
    try:
        for _ in range(3):
            assert model.generate("Once upon a time", **options) == wanted
    finally:
        done.set()
    for thread in others:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert not wrong


@pytest.mark.parametrize("prior", [True, False])
def test_a_feed_cannot_wait_for_its_own_model(model: LoadedModel, prior: bool):
    errors: list[str] = []

    def fill(step: Any) -> np.ndarray:
        uses = (
            lambda: model.generate("Once", max_tokens=1),
            lambda: model.logits("Once"),
            lambda: model.memory,
            model.close,
        )
        for use in uses:
            try:
                use()
            except GraphError as error:
                errors.append(str(error))
        return np.ones(4)

    def compute() -> None:
        with model.backend.new_context() as ctx:
            y = ctx.feed(fill, DType.F32, 4).scale(2.0)
            ctx.compute(y)
            assert y.numpy().tolist() == [2] * 4

    if prior:
        assert model.generate("Once", max_tokens=1)  # its thread runs
    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert len(errors) == 4 and all("that very backend" in error for error in errors)
    assert model.generate("Once", max_tokens=1)


def test_requests_are_taken_in_while_others_wait_for_a_computation(model: LoadedModel):
    begun, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    def fill(step: Any) -> np.ndarray:
        begun.set()
        assert go_on.wait(DEADLINE)
        return np.ones(4)

    def compute() -> None:
        with model.backend.new_context() as ctx:
            ctx.compute(ctx.feed(fill, DType.F32, 4).scale(2.0))

    def start(work: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    threads = [start(compute)]
    try:
        assert begun.wait(DEADLINE)
        threads.append(start(lambda: found.append(model.memory.size())))
        time.sleep(0.2)  # now it waits
        asking = start(lambda: model.engine._send(lambda: None))
        asking.join(DEADLINE / 6)
        assert not asking.is_alive() and not found
    finally:
        go_on.set()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert found[0] > 0
