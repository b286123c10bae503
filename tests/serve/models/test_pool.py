"""The pool of models: with runners that are made up, and with real ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ggmodel.errors import (
    Busy,
    Cancelled,
    ConfigError,
    DeviceLost,
    FormatError,
    LoadError,
    ModelNotFound,
    OutOfMemory,
)
from ggmodel.serve.api.ollama.schemas import moment
from ggmodel.serve.models import ModelPool
from ggmodel.serve.models import catalogue as catalogue_module
from ggmodel.serve.models.catalogue import Catalogue, Target
from ggmodel.serve.requests import State, TokenEvent
from ggmodel.serve.runners.client import Admit, Needs
from ggmodel.serve.runners.engines import Engines, GgmodelRunner
from tests.names.stores import digest, put_hub, put_ollama
from tests.serve.loops import Loop, new_loop
from tests.serve.runners.asking import answered, generate, text_of
from tests.serve.runners.conftest import ASSETS, STORIES


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with new_loop() as loop:
        yield loop


class MadeUp:
    """A runner without a process."""

    def __init__(self, name: str, options: Mapping[str, Any], needs: Needs):
        self.name, self.options, self.needs = name, options, needs
        self.ended = self.closed = self.silent = False

    @property
    def state(self) -> State:
        length = self.options.get("context_length", 32)
        return State("ggmodel", self.name, "", [], [], length, 128, 1, 1, 1, 1, 1, "")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.ended = self.closed = True


class MadeUpEngines:
    """Starts made-up runners, which need 10 bytes each and as many as their name's digit more.

    Attributes:
        started: in order. gate: starts wait for it. error: what the next ones fail with.
    """

    def __init__(self, free: int = 1000):
        self.free, self.started = free, list[MadeUp]()
        self.gate, self.error = asyncio.Event(), None
        self.error: Exception | None
        self.gate.set()

    def check(self, target: Target, options: Mapping[str, Any]) -> None:
        pass

    async def start(
        self, target: Any, options: Mapping[str, Any], admit: Admit, **_: Any
    ) -> MadeUp:
        needs = Needs(10 + int(target.key[-1]), self.free, 0)
        while not await admit(needs):
            await asyncio.sleep(0)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.started.append(MadeUp(target.key, options, needs))
        return self.started[-1]

    @property
    def loaded(self) -> list[str]:
        return [one.name for one in self.started if not one.closed]


NAMES = {f"m{i}": f"/models/m{i}.gguf" for i in range(4)}
Made = tuple[ModelPool, MadeUpEngines]


def pool_of(**options: Any) -> Made:
    pool, engines = ModelPool(NAMES, stores=False, **options), MadeUpEngines()
    pool._engines = engines  # type: ignore[assignment]
    # Names are looked up in a thread; known ones are not.
    known = {name: Target(name, path, None) for name, path in NAMES.items()}
    pool._catalogue._targets = {name: (time.monotonic(), one) for name, one in known.items()}
    return pool, engines


async def use(pool: ModelPool, name: str | None, **options: Any) -> MadeUp:
    async with pool.use(name, **options) as runner:
        assert isinstance(runner, MadeUp) and not runner.ended
        return runner


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_one_load_for_many(loop: Loop):
    async def work() -> None:
        pool, engines = pool_of()
        runners = await asyncio.gather(*(use(pool, "m1") for _ in range(10)))
        assert len(engines.started) == 1 and {*runners} == {engines.started[0]}
        await pool.close()
        assert engines.loaded == []
        with pytest.raises(Cancelled):
            await use(pool, "m1")

    loop.run(work())


def test_names(loop: Loop):
    async def work() -> None:
        pool, _ = pool_of()
        assert (await use(pool, None)).name == "m0"
        for wrong in ("m9", "", "/models/m0.gguf", STORIES, "../m0"):
            with pytest.raises(ModelNotFound, match="named at start: m0, m1"):
                await use(pool, wrong)
        with pytest.raises(ModelNotFound, match="give one"):
            await use(ModelPool([], stores=False), None)
        with pytest.raises(ModelNotFound):
            await use(ModelPool([], stores=True), STORIES)

    loop.run(work())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stores of this machine with a model of Ollama and one of the hub; the former's manifest."""
    for variable in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    put_hub(tmp_path / "hf" / "hub", "org/repo", {"m.gguf": b"a"})
    return put_ollama(tmp_path / "ollama", "library/tiny:latest", ("model", b"b"))


def test_the_tag_latest_may_be_there_or_not(store: Path):
    catalogue = Catalogue({"own": __file__, "old:latest": __file__}, stores=True)
    for name, key, source in (
        ("own", "own", __file__),
        ("own:latest", "own", __file__),
        ("Own:Latest", "own", __file__),
        ("old", "old:latest", __file__),
        ("tiny", "tiny:latest", "tiny"),
        ("tiny:latest", "tiny:latest", "tiny:latest"),
        ("org/repo:latest", "org/repo", "org/repo"),
        ("org/repo/m.gguf:latest", "org/repo/m.gguf", "org/repo/m.gguf"),
    ):
        target = catalogue.look(name)
        assert (target.key, target.source) == (key, source)
    for name in ("own:7b", "other:latest", ":latest"):
        with pytest.raises(ModelNotFound):
            catalogue.look(name)
    assert Catalogue({"tiny": __file__}, stores=True).look("tiny:latest").key == "tiny"


def test_of_names_that_differ_in_capitals_the_exact_one_is_meant():
    catalogue = Catalogue({"M": __file__, "m": __file__}, stores=False)
    for name, key in (("M", "M"), ("m", "m"), ("M:latest", "M"), ("m:latest", "m")):
        assert catalogue.look(name).key == key


def test_not_all_spellings_of_a_name_are_remembered(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ggmodel.serve.models.catalogue._SPELLINGS", 3)
    catalogue = Catalogue({"abc": __file__}, stores=False)

    async def work() -> None:
        for name in ("abc", "Abc", "aBc", "abC", "ABC", "abc"):
            assert (await catalogue.target(name)).key == "abc"
            assert name in catalogue._targets

    loop.run(work())
    assert len(catalogue._targets) == 3


def test_every_model_has_a_digest_that_changes_with_it(store: Path, tmp_path: Path):
    file, folder = tmp_path / "m.gguf", tmp_path / "folder"
    file.write_bytes(b"abc")
    folder.mkdir()
    catalogue = Catalogue({"m": str(file), "f": str(folder), "far": "org/far"}, stores=True)

    def digests() -> dict[str, str]:
        return {one.name: one.digest for one in catalogue.listed()}

    before = digests()
    assert before.keys() == {"m", "f", "far", "tiny:latest", "org/repo/m.gguf"}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in before.values())
    assert len({*before.values()}) == 5 and digests() == before
    assert before["tiny:latest"] == digest(store.read_bytes())  # as Ollama's own list has it
    assert before["org/repo/m.gguf"] == digest(b"a")
    file.write_bytes(b"abcd")
    assert {name for name, one in digests().items() if one != before[name]} == {"m"}


def test_any_name_means_the_first_model(loop: Loop):
    async def work() -> None:
        pool = ModelPool(NAMES, stores=False, any_name=True)
        pool._engines = MadeUpEngines()  # type: ignore[assignment]
        for name in ("gpt-4o", "m0", "", None):
            assert (await use(pool, name)).name == "m0"
        assert (await use(pool, "m1")).name == "m1"
        assert set(pool._catalogue._targets) == {"m0", "m1"}  # strangers' names fill no memory
        with pytest.raises(ModelNotFound, match="up to 4,096 characters"):
            await use(pool, "a" * 4097)
        with pytest.raises(ModelNotFound, match="give one"):
            await use(ModelPool([], stores=False, any_name=True), None)
        with pytest.raises(ModelNotFound, match="none"):
            await use(ModelPool([], stores=False, any_name=True), "m0")

    loop.run(work())


def test_who_looks_for_a_runner_waits_while_it_starts(loop: Loop):
    async def work() -> None:
        pool, engines = pool_of()
        assert await pool.loaded("m1") is None
        engines.gate.clear()
        used, looked = (asyncio.ensure_future(one) for one in (use(pool, "m1"), look(pool)))
        await settled()
        assert not looked.done()
        engines.gate.set()
        assert await looked is await used is engines.started[0]
        engines.gate.clear()
        engines.error = LoadError("made up")
        failing = asyncio.ensure_future(use(pool, "m2"))
        await settled()
        engines.gate.set()
        assert await pool.loaded("m2") is None
        with pytest.raises(LoadError):
            await failing
        await pool.close()

    async def look(pool: ModelPool) -> Any:
        await settled()
        return await pool.loaded("m1")

    loop.run(work())


def test_a_caller_that_gives_up_does_not_end_the_load(loop: Loop):
    async def work() -> None:
        pool, engines = pool_of(keep_alive=0)
        engines.gate.clear()
        first, second = (asyncio.ensure_future(use(pool, "m1")) for _ in range(2))
        await settled()
        first.cancel()
        await settled()
        engines.gate.set()
        assert (await second).name == "m1" and len(engines.started) == 1
        third = asyncio.ensure_future(use(pool, "m2"))
        await settled()
        third.cancel()
        while len(engines.loaded) or pool._tasks:  # nobody wants either any more
            await asyncio.sleep(0.001)
        await pool.close()

    loop.run(work())


def test_conditions(loop: Loop):
    async def work() -> None:
        pool, engines = pool_of()
        assert pool.conditions() == dict.fromkeys(NAMES, "unloaded")
        engines.gate.clear()
        waiting = asyncio.ensure_future(use(pool, "m1"))
        await settled()
        assert pool.conditions() == dict.fromkeys(NAMES, "unloaded") | {"m1": "loading"}
        engines.gate.set()
        runner = await waiting
        assert pool.conditions()["m1"] == "ready"
        runner.silent = True
        assert pool.conditions()["m1"] == "silent"
        runner.ended = True
        assert pool.conditions()["m1"] == "failed"
        await use(pool, "m1")
        assert pool.conditions()["m1"] == "ready"
        engines.error = FormatError("no model")
        with pytest.raises(LoadError):
            await use(pool, "m2")
        assert pool.conditions()["m2"] == "failed"
        await pool.unload("m1")
        assert pool.conditions()["m1"] == "unloaded"
        await pool.close()

    loop.run(work())


def test_closing_ends_a_load(loop: Loop):
    async def work() -> None:
        pool, engines = pool_of()
        engines.gate.clear()
        waiting = asyncio.ensure_future(use(pool, "m1"))
        await settled()
        await pool.close()
        with pytest.raises(Cancelled, match="server ends"):
            await waiting
        assert not engines.started

    loop.run(work())


def test_a_load_that_the_end_cancels_is_no_error_in_the_log(
    loop: Loop, caplog: pytest.LogCaptureFixture
):
    async def start(target: Target, options: Any, admit: Admit, **_: Any) -> MadeUp:
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            raise Cancelled(f"the server unloads {target.key}") from None

    async def work() -> None:
        pool, engines = pool_of()
        engines.start = start  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(use(pool, "m1"))
        await settled()
        await pool.close()
        with pytest.raises(Cancelled):
            await waiting

    loop.run(work())
    assert "cannot load" not in caplog.text


class TestKeepAlive:
    def test_not_at_all(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=0)
            async with pool.use("m1") as first, pool.use("m1") as second:
                assert first is second
            while engines.loaded:
                await asyncio.sleep(0.001)
            assert await use(pool, "m1") is not first

        loop.run(work())

    def test_for_a_while(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=0.05)
            await use(pool, "m1")
            (listed, *_) = [one for one in await pool.listed() if one.name == "m1"]
            assert listed.expires is not None and listed.state is not None
            while engines.loaded:
                await asyncio.sleep(0.001)

        loop.run(work())

    def test_for_ever_as_the_latest_request_wants(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=0)
            await use(pool, "m1", keep_alive=-1)
            await settled()
            assert engines.loaded == ["m1"]
            (listed, *_) = [one for one in await pool.listed() if one.name == "m1"]
            assert listed.expires is None
            await use(pool, "m1")
            while engines.loaded:
                await asyncio.sleep(0.001)

        loop.run(work())

    def test_a_look_is_no_use(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=0)
            assert await pool.loaded("m1") is None and not engines.loaded
            async with pool.use("m1", keep_alive=-1) as runner:
                pass
            assert await pool.loaded("m1") is runner
            await settled()
            assert engines.loaded == ["m1"]
            await pool.unload("m1")
            assert await pool.loaded("m1") is None

        loop.run(work())

    def test_no_longer_than_a_calendar_has(self, loop: Loop):
        async def work() -> None:
            for server in (1e300, 0.0):
                pool, _ = pool_of(keep_alive=server)
                await use(pool, "m1", keep_alive=None if server else float("inf"))
                (listed, *_) = [one for one in await pool.listed() if one.name == "m1"]
                assert listed.expires is not None
                assert moment(listed.expires).startswith("20")
                await pool.close()

        loop.run(work())

    def test_unloading_waits_for_requests(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1)
            async with pool.use("m1") as runner:
                ending = asyncio.ensure_future(pool.unload("m1"))
                await settled()
                assert not ending.done() and engines.loaded == ["m1"]
                waiting = asyncio.ensure_future(use(pool, "m1"))
                await settled()
            await ending
            assert runner is engines.started[0] and engines.started[0].closed
            assert await waiting is engines.started[1]

        loop.run(work())


class TestRoom:
    def test_the_least_recently_used_goes(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1, most=2)
            for name in ("m1", "m2", "m1", "m3"):
                await use(pool, name)
            assert engines.loaded == ["m1", "m3"]

        loop.run(work())

    def test_pinned_models_stay(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=0, most=2, pinned=["m1"])
            for name in ("m1", "m2", "m3"):
                await use(pool, name)
            assert "m1" in engines.loaded and "m2" not in engines.loaded

        loop.run(work())

    def test_pinned_models_are_loaded_at_the_start(
        self, loop: Loop, caplog: pytest.LogCaptureFixture
    ):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=0, pinned=["m2", "m1"])
            pool.check()
            pool.start()
            while len(engines.loaded) < 2:
                await asyncio.sleep(0.001)
            await pool.close()
            pool, engines = pool_of(pinned=["m1"])
            engines.error = FormatError("broken file")
            pool.start()
            while "cannot load m1: broken file" not in caplog.text:
                await asyncio.sleep(0.001)
            with pytest.raises(ModelNotFound, match="no model 'nobody'"):
                pool_of(pinned=["m1", "nobody"])[0].check()

        loop.run(work())

    @pytest.mark.parametrize(("memory", "free"), [(25, 1000), (None, 25)])
    def test_by_memory(self, loop: Loop, memory: int | None, free: int):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1, memory=memory)
            engines.free = free
            for name in ("m1", "m2"):
                await use(pool, name)
            # 11 and 12 bytes have room together; free memory is what the others leave.
            assert engines.loaded == ["m1", "m2"]
            engines.free = 12 if memory is None else free
            await use(pool, "m3")
            assert engines.loaded == (["m3"] if memory is None else ["m2", "m3"])

        loop.run(work())

    def test_a_busy_model_is_waited_for(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1, most=1)
            async with pool.use("m1"):
                waiting = asyncio.ensure_future(use(pool, "m2"))
                await settled()
                assert engines.loaded == ["m1"] and not waiting.done()
            assert (await waiting).name == "m2" and engines.loaded == ["m2"]

        loop.run(work())

    def test_one_that_has_no_room_even_alone_may_try(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(memory=5)
            assert (await use(pool, "m1")).name == "m1"
            engines.error = OutOfMemory("too large")
            with pytest.raises(OutOfMemory):
                await use(pool, "m2")

        loop.run(work())


class TestChanges:
    def test_a_name_that_stands_for_another_model(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1)
            await use(pool, "m2")
            async with pool.use("m1") as first:
                changing = asyncio.ensure_future(pool.changed("M1:latest"))
                await settled()
                assert not changing.done() and engines.loaded == ["m2", "m1"]
            await changing
            assert engines.loaded == ["m2"]
            assert await use(pool, "m1") is not first

        loop.run(work())

    def test_a_name_that_stands_for_nothing(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1)
            await use(pool, "m1")
            pool._catalogue.named.clear()
            await pool.changed("m1")
            assert engines.loaded == []
            with pytest.raises(ModelNotFound):
                await use(pool, "m1")

        loop.run(work())


class TestOptions:
    def test_others_start_it_anew(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1, options={"parallel": 2})
            async with pool.use("m1") as first:
                other = asyncio.ensure_future(use(pool, "m1", context_length=64))
                await settled()
                assert not other.done()
            assert await other is not first and len(engines.loaded) == 1
            assert (await other).options == {"parallel": 2, "context_length": 64}
            assert await use(pool, "m1", parallel=2, context_length=64) is await other
            third = await use(pool, "m1")  # the server's own again
            assert third.options == {"parallel": 2}
            assert await use(pool, "m1", parallel=2) is third

        loop.run(work())

    @pytest.mark.parametrize("loaded", [True, False])
    def test_too_long_a_context_stops_nothing(self, loop: Loop, loaded: bool):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1, options={"context_length": 200})
            if loaded:
                await use(pool, "m1")
            with pytest.raises(ConfigError, match="1,099,511,627,776 is more than the 200 of m1"):
                await use(pool, "m1", context_length=1 << 40)
            assert len(engines.started) == 1 and engines.loaded == ["m1"]
            assert (await use(pool, "m1", context_length=200)) is engines.started[0]

        loop.run(work())

    def test_a_failure_of_others_is_no_failure_of_the_model(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1)
            await use(pool, "m1")
            engines.error = OutOfMemory("too large")
            for _ in range(4):
                with pytest.raises(OutOfMemory):
                    await use(pool, "m1", context_length=100)
            engines.error = None
            assert (await use(pool, "m1")).options == {}

        loop.run(work())

    def test_no_such_engine(self):
        with pytest.raises(ConfigError, match="auto, ggmodel"):
            Engines("another")


class TestFailures:
    def test_a_full_queue(self, loop: Loop):
        async def work() -> None:
            pool, _ = pool_of(queue=2)
            async with pool.use("m1"), pool.use("m1"):
                with pytest.raises(Busy, match="2 requests"):
                    await use(pool, "m1")
                await use(pool, "m2")
            await use(pool, "m1")

        loop.run(work())

    def test_a_model_that_cannot_be_loaded(self, loop: Loop, monkeypatch: pytest.MonkeyPatch):
        async def work() -> None:
            pool, engines = pool_of()
            now = [100.0]
            monkeypatch.setattr(catalogue_module, "time", Clock(now))
            engines.error = FormatError("broken file")
            for _ in range(5):
                with pytest.raises(LoadError, match="m1 cannot be loaded: broken file"):
                    await use(pool, "m1")
            engines.error = None
            with pytest.raises(
                LoadError, match="m1 cannot be loaded: broken file"
            ):  # not tried again at once
                await use(pool, "m1")
            now[0] += 1
            assert (await use(pool, "m1")).name == "m1"

        loop.run(work())

    def test_one_that_crashes_again_and_again(self, loop: Loop, monkeypatch: pytest.MonkeyPatch):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1)
            now = [100.0]
            monkeypatch.setattr(catalogue_module, "time", Clock(now))

            async def crash() -> None:
                async with pool.use("m1") as runner:
                    assert isinstance(runner, MadeUp)
                    runner.ended = True
                    raise DeviceLost("ended by SIGKILL")

            for _ in range(2):  # the first crash is followed by a start at once
                with pytest.raises(DeviceLost, match="SIGKILL"):
                    await crash()
            for _ in range(8):
                with pytest.raises(DeviceLost, match="several times"):
                    await crash()
            assert len(engines.started) == 2
            for pause in (1, 2):
                now[0] += pause
                with pytest.raises(DeviceLost, match="SIGKILL"):
                    await crash()
            assert len(engines.started) == 4
            now[0] += 30
            await use(pool, "m1")
            with pytest.raises(DeviceLost, match="SIGKILL"):
                await crash()
            await use(pool, "m1")
            assert len(engines.started) == 6

        loop.run(work())

    def test_a_crash_that_the_caller_hides(self, loop: Loop):
        async def work() -> None:
            pool, engines = pool_of(keep_alive=-1)
            async with pool.use("m1") as runner:
                assert isinstance(runner, MadeUp)
                runner.ended = True
            assert await use(pool, "m1") is engines.started[1]

        loop.run(work())


class Clock:
    """Stands for the module `time`."""

    def __init__(self, now: list[float]):
        self._now = now

    def monotonic(self) -> float:
        return self._now[0]

    def time(self) -> float:
        return self._now[0]


@asynccontextmanager
async def real_pool(**options: Any) -> AsyncIterator[ModelPool]:
    named = {"stories": STORIES, "shapes": str(ASSETS / "shapes.gguf")}
    pool = ModelPool(named, options={"gpu_layers": 0}, stores=False, **options)
    try:
        yield pool
    finally:
        await pool.close()


class TestProcesses:
    def run(self, loop: Loop, work: Coroutine[Any, Any, None]) -> None:
        loop.run(work)

    def test_two_models_one_at_a_time(self, loop: Loop):
        async def work() -> None:
            async with real_pool(most=1, keep_alive=-1) as pool:
                async with pool.use("stories") as first:
                    assert text_of((await answered(first, generate()))[1])
                    assert isinstance(first, GgmodelRunner) and first.needs.cpu > first.needs.mapped
                async with pool.use("shapes") as second:
                    assert second.state.kinds == ["image"] and first.ended
                states = {one.name: one.state for one in await pool.listed()}
                assert states["stories"] is None and states["shapes"] is not None
                details = {one.name: one.details["architecture"] for one in await pool.listed()}
                assert details == {"stories": "llama", "shapes": "gemma3"}

        loop.run(work())

    def test_a_name_of_the_hub_with_the_tag_latest(self, loop: Loop, store: Path):
        put_hub(
            store.parents[5] / "hf" / "hub", "org/tales", {"m.gguf": Path(STORIES).read_bytes()}
        )

        async def work() -> None:
            pool = ModelPool(options={"gpu_layers": 0})
            try:
                async with pool.use("org/tales:latest") as runner:
                    assert text_of((await answered(runner, generate(max_tokens=2)))[1])
                async with pool.use("org/tales") as other:
                    assert other is runner
            finally:
                await pool.close()

        loop.run(work())

    def test_a_crash_is_followed_by_a_start(self, loop: Loop):
        async def crash(pool: ModelPool) -> None:
            async with pool.use("stories") as runner:
                assert isinstance(runner, GgmodelRunner)
                async for event in runner.generate(generate(max_tokens=500)):
                    if isinstance(event, TokenEvent):
                        os.kill(runner.pid, signal.SIGKILL)

        async def work() -> None:
            async with real_pool() as pool:
                with pytest.raises(DeviceLost, match="SIGKILL"):
                    await crash(pool)
                async with pool.use("stories") as runner:
                    assert text_of((await answered(runner, generate()))[1])

        loop.run(work())

    def test_a_file_that_is_none(self, loop: Loop, tmp_path: Path):
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(b"GGUF")

        async def work() -> None:
            pool = ModelPool({"bad": str(bad)}, stores=False)
            with pytest.raises(FormatError, match=r"bad\.gguf"):
                pool.check()
            with pytest.raises(LoadError, match=r"bad cannot be loaded: .*bad\.gguf"):
                await use(pool, "bad")
            (listed,) = await pool.listed()
            assert (listed.nbytes, listed.state) == (4, None)

        loop.run(work())
