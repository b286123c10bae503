"""Ctrl-C wherever a caller may be: nobody is kept waiting, and others get the right answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import Error
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.runner.requests.completion import Piece
from tests.golden.files import load_golden

# Python says so where it comes in what nobody can interrupt, such as a generator that is given up.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

OURS = str(Path(ggmodel.__file__).parent)
PROMPTS = ([1, 2, 3, 1, 2], [4, 5, 6, 4, 5])
TOKENS = 12
Pieces = Generator[Piece, None, None]
GREEDY: dict[str, Any] = {"temperature": 0}
ROUNDING = 1e-5  # batches of one and of two, and keys in other cells; a cell too many makes 0.06
SEEDED = {"temperature": 1.0, "top_k": 0, "seed": 5}


class CtrlC:
    """KeyboardInterrupt in ggmodel's code where a function begins or one in C has returned, which
    is where Python looks for signals; the nth time that happens.

    Attributes:
        left: how many times are to come; 0 once it has been raised.
    """

    def __init__(self, n: int):
        self.left = n

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    def during(self, work: Callable[[], object]) -> bool:
        """Whether it came."""
        with suppress(KeyboardInterrupt):
            sys.setprofile(self)
            try:
                work()
            finally:
                sys.setprofile(None)
        return self.left == 0


class Finishing:
    """Takes what still comes of a stream, in another thread."""

    def __init__(self, stream: Pieces):
        self._got: list[Any] = []
        self._error: Error | None = None
        self._thread = threading.Thread(target=self._take, args=[stream], daemon=True)
        self._thread.start()

    def _take(self, stream: Pieces) -> None:
        try:
            self._got.extend(piece.logprob for piece in stream)
        except Error as error:
            self._error = error

    def wait(self) -> list[float]:
        """The log-probabilities."""
        self._thread.join(20)
        assert not self._thread.is_alive(), "nobody goes on"
        assert self._error is None
        return self._got


def finish(stream: Pieces) -> list[float]:
    return Finishing(stream).wait()


def stream(model: LoadedModel, prompt: list[int], **options: Any) -> Pieces:
    return model.stream(prompt, max_tokens=TOKENS, logprobs=True, **(GREEDY | options))


def need_idle(model: LoadedModel, n: int) -> None:
    model.engine.call(lambda: None)  # after what was posted before
    assert not model.engine.sequences.working, n
    assert not model.engine.scheduler.waiting, n


def chunked() -> MemorySource:
    """A llama 4, some of whose layers see chunks: several caches."""
    golden = load_golden("llama4", "interleaved")
    return from_hf(find("llama4"), golden.config, golden.weights())


@pytest.mark.parametrize(
    ("before", "options", "kind"),
    [
        (0, GREEDY, "llama"),
        (4, GREEDY, "llama"),
        (4, SEEDED, "llama"),
        (4, {"prompt_lookup": True}, "llama"),
        (3, GREEDY, "llama4"),
    ],
)
def test_another_request_gets_what_it_would_have(
    source: MemorySource, before: int, options: dict[str, Any], kind: str
):
    source = source if kind == "llama" else chunked()
    with ggmodel.load(source, kv_type="f32", context_length=64, parallel=2) as model:
        want = [finish(stream(model, prompt, **options)) for prompt in PROMPTS]
        n, came = 0, True
        while came:
            n += 1
            first, second = (stream(model, p, **options) for p in PROMPTS)
            got = [next(second).logprob]
            for _ in range(before):
                next(first)
                got.append(next(second).logprob)
            came = CtrlC(n).during(lambda first=first: next(first))  # type: ignore[misc]
            first.close()
            assert got + finish(second) == pytest.approx(want[1], abs=ROUNDING), n
            need_idle(model, n)
            again = finish(stream(model, PROMPTS[0], **options))
            assert again == pytest.approx(want[0], abs=ROUNDING), n
        assert n > 8


def test_a_thread_that_waits_goes_on(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=64, parallel=2) as model:
        want = finish(stream(model, PROMPTS[1]))
        came = 0
        for n in range(1, 90):
            first, second = (stream(model, p) for p in PROMPTS)
            second_one = Finishing(second)
            came += CtrlC(n).during(lambda first=first: list(first))  # type: ignore[misc]
            first.close()
            assert second_one.wait() == pytest.approx(want, abs=ROUNDING), n
            need_idle(model, n)
        assert came > 30


@pytest.mark.slow
def test_a_whole_answer(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=64) as model:
        want = model.generate(PROMPTS[0], max_tokens=TOKENS, temperature=0).tokens
        n, came = 0, True
        while came:
            n += 1
            came = CtrlC(n).during(lambda: model.generate(PROMPTS[0], max_tokens=50))
            need_idle(model, n)
            again = model.generate(PROMPTS[0], max_tokens=TOKENS, temperature=0)
            assert again.tokens == want, n
        assert n > 20


@pytest.mark.slow
@pytest.mark.parametrize("what", ["embed", "logits"])
def test_what_is_computed_apart(source: MemorySource, what: str):
    with ggmodel.load(source, kv_type="f32", context_length=64, parallel=2) as model:
        work: Callable[[], Any] = {
            "embed": lambda: model.embed(list(PROMPTS)),
            "logits": lambda: model.logits(PROMPTS[0]),
        }[what]
        want, text = work(), finish(stream(model, PROMPTS[1]))
        n, came = 0, True
        while came:
            n += 1
            came = CtrlC(n).during(work)
            assert finish(stream(model, PROMPTS[1])) == pytest.approx(text, abs=ROUNDING), n
            np.testing.assert_allclose(work(), want, atol=ROUNDING)
        assert n > 8


def test_closing(source: MemorySource):
    n, came = 0, True
    while came:
        n += 3
        model = ggmodel.load(source, kv_type="f32", context_length=64)
        unfinished = stream(model, PROMPTS[0])
        next(unfinished)
        came = CtrlC(n).during(model.close)
        model.close()
        with pytest.raises(Error, match="closed"):
            list(unfinished)
    assert n > 9
