"""Replicas of a model, with stand-ins for Ray's handles: which requests go to another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from ggmodel.errors import Busy, ConfigError, DeviceLost, PromptError, Unsupported
from ggmodel.serve.models.catalogue import Catalogue
from ggmodel.serve.replicas import Plan
from ggmodel.serve.replicas import models as replica_models
from ggmodel.serve.replicas.cluster import _fitting
from ggmodel.serve.replicas.models import ReplicaLost, Replicas, ReplicatedModels
from ggmodel.serve.requests import (
    Failure,
    Finished,
    Request,
    Started,
    State,
    TokenEvent,
    Tokenize,
    Tokens,
)
from ggmodel.serve.runners.protocol import Result, pack

BEGUN, ENDED = Started([1]), Finished("stop", 1, 2)
STATE = State("ggmodel", "p", "llama", [], [], 512, 512, 2, 9, 9, 9, 9, "F16")
CRASH = Failure("DeviceLost", "the process ended by SIGSEGV")


class Gone(Exception):
    """Ray's error for a replica that was lost."""


class Reply:
    """The answer of a handle: bytes, an error, or nothing for ever (None)."""

    def __init__(self, parts: list[Any]):
        self._parts, self.cancelled = iter(parts), False
        self._failed: Exception | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._failed is not None:  # as Ray's replies do
            raise self._failed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            if isinstance(part, Exception):
                self._failed = part
                raise part
            if part is None:
                await asyncio.Event().wait()
            return pack(part)
        raise StopAsyncIteration

    def __await__(self) -> Any:
        return self.__anext__().__await__()


class Handle:
    """Answers each request with the next of these replies."""

    def __init__(self, *replies: list[Any]):
        self._waiting = [Reply(parts) for parts in replies]
        self.given: list[Reply] = []

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, *_: Any) -> Reply:
        self.given.append(self._waiting.pop(0))
        return self.given[-1]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_models, "_PAUSE", 0.0)


def replicas(handle: Any, lack: Callable[[], str] = str, count: int = 3) -> Replicas:
    def is_lost(error: BaseException) -> bool:
        return isinstance(error, Gone)

    return Replicas("m", handle, count, is_lost=is_lost, lack=lack, timeout=0.01)


def events(handle: Handle, **more: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [event async for event in replicas(handle, **more).generate(Request("a"))]

    return asyncio.run(asyncio.wait_for(collect(), 10))


def test_events_come_in_parts_of_several():
    handle = Handle([[BEGUN], [TokenEvent("a"), TokenEvent("b")], [ENDED]])
    assert events(handle) == [BEGUN, TokenEvent("a"), TokenEvent("b"), ENDED]
    assert [one.cancelled for one in handle.given] == [False]


@pytest.mark.parametrize("first", [[Gone()], [[BEGUN], Gone()], [[BEGUN, CRASH]], [[BEGUN]]])
def test_a_request_without_a_token_goes_to_another_replica(first: list[Any]):
    handle = Handle(first, [[BEGUN, TokenEvent("a"), ENDED]])
    assert events(handle) == [BEGUN, TokenEvent("a"), ENDED]


@pytest.mark.parametrize("end", [[Gone()], [[CRASH]]])
def test_an_answer_that_has_begun_ends_with_an_error(end: list[Any]):
    handle = Handle([[BEGUN, TokenEvent("a")], *end], [[BEGUN, ENDED]])
    with pytest.raises(DeviceLost, match=r"was lost|SIGSEGV"):
        events(handle)
    assert len(handle.given) == 1


def test_a_request_may_lose_five_replicas():
    handle = Handle(*[[Gone()] for _ in range(9)])
    with pytest.raises(ReplicaLost, match="ask again"):
        events(handle)
    assert len(handle.given) == 5


def test_a_request_may_end_two_processes():
    handle = Handle(*[[[CRASH]] for _ in range(9)])
    with pytest.raises(DeviceLost, match="SIGSEGV"):
        events(handle)
    assert len(handle.given) == 2


def test_other_errors_are_told_at_once():
    handle = Handle([[BEGUN, Failure("PromptError", "no")]], [])
    with pytest.raises(PromptError, match=r"^no$"):
        events(handle)
    assert len(handle.given) == 1


def test_a_defect_is_no_loss():
    with pytest.raises(ZeroDivisionError):
        events(Handle([ZeroDivisionError()]))


def test_without_any_replica_a_request_does_not_wait_for_ever():
    with pytest.raises(DeviceLost, match="no replica of m can answer: all are gone"):
        events(Handle([None], [None]), lack=lambda: "all are gone")


def test_closing_an_answer_cancels_it():
    handle = Handle([[BEGUN], [TokenEvent("a")], None])
    asker = replicas(handle)

    async def leave() -> None:
        async with aclosing(asker.generate(Request("a"))) as answer:
            assert await anext(answer) == BEGUN
            assert asker._open == 1

    asyncio.run(leave())
    assert handle.given[0].cancelled
    assert asker._open == 0


def test_questions_with_one_answer_go_to_another_replica_too():
    tokens = Tokens([7], [b"x"])
    handle = Handle([Gone()], [Result(0, failure=CRASH)], [Result(0, pack(tokens))])
    found = asyncio.run(replicas(handle).tokenize(Tokenize("a")))
    assert found == tokens
    failed = replicas(Handle([Result(0, failure=Failure("PromptError", "no"))]))
    with pytest.raises(PromptError):
        asyncio.run(failed.tokenize(Tokenize("a")))


def models(queue: int = 9) -> ReplicatedModels:
    runner = replicas(Handle([STATE]), count=3)
    catalogue = Catalogue({"m": __file__}, stores=False, any_name=True)
    return ReplicatedModels(catalogue, {"m": runner}, {"parallel": 2}, queue)


def test_models_have_the_sequences_of_all_replicas():
    async def look() -> Any:
        found = models()
        async with found.use("another", keep_alive=0.0, context_length=512) as runner:
            assert runner.state.parallel == 6
        return (await found.listed())[0]

    listed = asyncio.run(look())
    assert listed.name == "m"
    assert msgspec.structs.replace(listed.state, parallel=2) == STATE


def test_models_refuse_what_replicas_cannot_do():
    async def use(found: ReplicatedModels, **options: Any) -> None:
        async with found.use("m", **options), found.use("m", **options):
            pass

    with pytest.raises(ConfigError, match=r"1,000 is more than the 512"):
        asyncio.run(use(models(), context_length=1000))
    with pytest.raises(ConfigError, match="kv_type cannot be changed"):
        asyncio.run(use(models(), kv_type="f32"))
    with pytest.raises(Busy, match="1 requests wait"):
        asyncio.run(use(models(queue=1)))
    with pytest.raises(Unsupported, match="stay loaded"):
        asyncio.run(models().unload("m"))


def test_a_model_that_says_nothing_holds_up_no_other():
    own = {"silent": replicas(Handle([None])), "m": replicas(Handle([STATE]))}
    catalogue = Catalogue(dict.fromkeys(own, __file__), stores=False)
    found = ReplicatedModels(catalogue, own, {}, 9)

    async def use(name: str) -> str:
        async with found.use(name) as runner:
            return runner.name

    async def both() -> str:
        waiting = asyncio.ensure_future(use("silent"))
        await asyncio.sleep(0.05)
        try:
            return await asyncio.wait_for(use("m"), 5)
        finally:
            waiting.cancel()

    assert asyncio.run(both()) == "m"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"named": {}}, "name the models"),
        ({"replicas": 0}, "--ray is 0"),
        ({"cpus": 0.0}, "--ray-cpus is 0"),
        ({"cpus": float("nan")}, "--ray-cpus is nan"),
        ({"gpus": -1.0}, "--ray-gpus is -1"),
        ({"engine": "none"}, "no engine 'none'"),
        ({"options": {"rpc": ["a:1"]}}, "--rpc"),
    ],
)
def test_impossible_plans_are_refused(wrong: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Plan(**{"named": {"m": "m.gguf"}, "replicas": 1, **wrong}).check()


def test_room_is_counted_by_what_lacks_most():
    machine = {"CPU": 8.0, "GPU": 2.0}
    assert _fitting(machine, 1.0, 0.0) == 8
    assert _fitting(machine, 0.1, 0.0) == 80
    assert _fitting(machine, 1.0, 0.5) == 4
    assert _fitting({"CPU": 8.0}, 1.0, 1.0) == 0
