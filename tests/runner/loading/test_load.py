"""Loading: the tokenizer is built while weights are copied, and either may fail or come first."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import Cancelled, Error, TokenizerError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, new_backend
from ggmodel.ml.ggml import transfer
from ggmodel.runner.loading.preparation import Preparation
from ggmodel.runner.options import Options
from ggmodel.tokenizer import Tokenizer

MODELS = Path(__file__).parents[1] / "models"
OPTIONS: dict[str, Any] = {"kv_type": "f32", "context_length": 64, "batch_size": 8}


@pytest.fixture
def speaking(vary: Any, source: MemorySource, vocabulary: dict[str, Any]) -> MemorySource:
    """The tiny model with a vocabulary."""
    return vary(source, metadata=vocabulary)


def threads() -> set[str]:
    return {t.name.partition("_")[0] for t in threading.enumerate()}


@pytest.mark.parametrize("first", ["the weights", "the tokenizer"])
def test_either_may_be_ready_first(
    speaking: MemorySource, monkeypatch: pytest.MonkeyPatch, first: str
):
    done = threading.Event()
    order: list[str] = []
    read, load = Preparation.read_vocabulary, Backend.load

    def read_vocabulary(self: Preparation) -> None:
        if first == "the weights":
            assert done.wait(10)
        read(self)
        order.append("the tokenizer")
        done.set()

    def load_weights(self: Backend, *args: Any) -> None:
        if first == "the tokenizer":
            assert done.wait(10)
        load(self, *args)
        order.append("the weights")
        done.set()

    monkeypatch.setattr(Preparation, "read_vocabulary", read_vocabulary)
    monkeypatch.setattr(Backend, "load", load_weights)
    with ggmodel.load(speaking, **OPTIONS) as model:
        assert order[0] == first and len(order) == 2
        assert model.model.tokenizer is model.tokenizer
        expected = Tokenizer.from_metadata(speaking.metadata).encode("abc the")
        assert model.tokenize("abc the") == expected
        assert model.generate("abc", max_tokens=2, temperature=0.0).usage.completion_tokens == 2
    assert "ggmodel-vocabulary" not in threads()


@pytest.fixture
def spelling(vary: Any, speaking: MemorySource) -> MemorySource:
    """A model that asks its tokenizer in `forward`."""
    keys = {
        key.replace("llama.", "speller."): value
        for key, value in speaking.metadata.items()
        if key.startswith("llama.")
    }
    return vary(speaking, metadata={"general.architecture": "speller", **keys})


def test_the_tokenizer_is_there_while_graphs_are_reserved(spelling: MemorySource):
    with Preparation(spelling, Options(models=MODELS, **OPTIONS)) as steps:
        steps.take_steps()
        tokenizer = Tokenizer.from_metadata(spelling.metadata)
        ids = tokenizer.encode("the", add_special=False)
        model: Any = steps.model
        (space,) = tokenizer.encode(" ", add_special=False)
        assert model.asked and set(model.asked) == {(space, tuple(ids))}
        steps.read_vocabulary()
        assert steps.model.tokenizer is steps.tokenizer
    with ggmodel.load(spelling, models=MODELS, **OPTIONS) as model:
        assert model.model.tokenizer is model.tokenizer
        assert model.generate("the", max_tokens=2, temperature=0).usage.completion_tokens == 2


def test_an_error_of_a_tokenizer_that_a_model_asks_is_raised(vary: Any, spelling: MemorySource):
    broken = vary(spelling, metadata={"tokenizer.ggml.pre": "gpt-7"})
    with pytest.raises(TokenizerError, match="gpt-7"):
        ggmodel.load(broken, models=MODELS, **OPTIONS)
    dumb = vary(spelling, metadata={"tokenizer.ggml.model": None})
    with pytest.raises(Error, match=r"speller\.py:\d+ in forward.*AttributeError"):
        ggmodel.load(dumb, models=MODELS, **OPTIONS)


def test_an_error_of_the_tokenizer_is_raised(vary: Any, speaking: MemorySource):
    broken = vary(speaking, metadata={"tokenizer.ggml.pre": "gpt-7"})
    with pytest.raises(TokenizerError, match="gpt-7"):
        ggmodel.load(broken, **OPTIONS)
    assert not threads() & {"ggmodel-vocabulary", "ggmodel-load"}


def test_a_broken_vocabulary_ends_the_copying_of_weights(
    speaking: MemorySource, monkeypatch: pytest.MonkeyPatch
):
    failed = threading.Event()
    cancelled: list[bool] = []

    def fail(self: Preparation) -> None:
        failed.set()
        raise TokenizerError("no such vocabulary")

    def load_weights(self: Backend, progress: Any, cancel: Any) -> None:
        assert failed.wait(10)
        while not cancel():
            pass
        cancelled.append(True)
        load(self, progress, cancel)

    load = Backend.load
    monkeypatch.setattr(Preparation, "read_vocabulary", fail)
    monkeypatch.setattr(Backend, "load", load_weights)
    with pytest.raises(TokenizerError, match="no such vocabulary"):
        ggmodel.load(speaking, **OPTIONS)
    assert cancelled == [True]


def test_whoever_watches_the_progress_can_cancel(speaking: MemorySource):
    def progress(share: float) -> None:
        raise Cancelled("not wanted any more")

    with pytest.raises(Cancelled, match="not wanted any more"):
        ggmodel.load(speaking, **OPTIONS, progress=progress)
    assert not threads() & {"ggmodel-vocabulary", "ggmodel-load"}


@pytest.mark.parametrize("error", [Error("the disk is gone"), KeyboardInterrupt()])
def test_when_the_weights_fail_nothing_goes_on(
    speaking: MemorySource, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    def load_weights(self: Backend, *_: Any) -> None:
        raise error

    monkeypatch.setattr(Backend, "load", load_weights)
    with pytest.raises(type(error)):
        ggmodel.load(speaking, **OPTIONS)
    assert "ggmodel-vocabulary" not in threads()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading any file ahead would take minutes."""
    monkeypatch.setattr(transfer, "_PIECE", 8)
    monkeypatch.setattr(transfer, "populate", lambda _: time.sleep(0.05))


@pytest.fixture
def file(write_gguf: Any, speaking: MemorySource, tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", speaking)


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("step", ["fit", "trace", "reserve", "finish"])
@pytest.mark.parametrize("error", [Error("no more"), KeyboardInterrupt()])
def test_reading_ahead_ends_with_a_load_that_fails(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
):
    def fail(self: Preparation) -> None:
        raise error

    monkeypatch.setattr(Backend, "load", lambda *_: None)  # which would end it
    monkeypatch.setattr(Preparation, step, fail)
    with pytest.raises(type(error)):
        ggmodel.load(file, **OPTIONS)
    assert "ggmodel-read-ahead" not in threads()


@pytest.mark.usefixtures("slow_disk")
def test_reading_ahead_ends_with_its_backend(file: Path):
    backend = new_backend(file)
    assert "ggmodel-read-ahead" in threads()
    backend.close()
    assert "ggmodel-read-ahead" not in threads()


def test_a_dry_run_reads_nothing_ahead(file: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    monkeypatch.setattr(transfer, "populate", lambda piece: read.append(piece.nbytes))
    with new_backend(file, BackendParams(alloc_memory=False)) as backend:
        backend._read_ahead._thread.join(10)  # type: ignore[attr-defined]
    assert read == []


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(speaking: MemorySource, vary: Any, enabled: bool):
    broken = vary(speaking, metadata={"tokenizer.ggml.pre": "gpt-7"})
    try:
        gc.enable() if enabled else gc.disable()
        ggmodel.load(speaking, **OPTIONS).close()
        assert gc.isenabled() == enabled
        with pytest.raises(TokenizerError):
            ggmodel.load(broken, **OPTIONS)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
