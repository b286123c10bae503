"""The pool of models: runners that are started on demand, and ended when their memory is needed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from ...errors import (
    Busy,
    Cancelled,
    ConfigError,
    DeviceLost,
    Error,
    LoadError,
    ModelNotFound,
    Unsupported,
)
from ..errors import problem_of
from ..monitoring import note_model
from ..pool import Condition, ListedModel, same_name
from ..requests import Embed, Event, Request, Rows, Runner
from ..runners.client import Needs
from ..runners.engines import Engines
from .catalogue import Catalogue, PoolEntry, Target

__all__ = ["ModelPool"]

log = logging.getLogger("ggmodel.serve")

KEEP_ALIVE = 300.0  # seconds, as Ollama's
_LONGEST = 1e9  # seconds, some 30 years
_ENDED = "the process of {name} has ended several times; it is started again in a moment"


class ModelPool:
    """`Models` of a server.

    Args:
        named: names → paths or names of models; or these alone. The first one is meant by requests
            that name none.
        options: of loading, for all.
        keep_alive: seconds that a model stays after its last use; negative for ever.
        pinned: names of models that are never unloaded.
        stores: whether requests may name models of this machine's stores, too.
        any_name: whether a name that no model has means the first of `named`.
        engine: "auto", "ggmodel" or "llama.cpp"; see `Engines`.
        queue: requests to one model at a time, those included that it computes.
        most: models that are loaded at a time; None for as many as memory holds.
        memory: bytes that all of them may take; None for what the machine has.
    """

    def __init__(
        self,
        named: Mapping[str, str] | Iterable[str] = (),
        *,
        options: Mapping[str, Any] | None = None,
        keep_alive: float = KEEP_ALIVE,
        pinned: Iterable[str] = (),
        stores: bool = True,
        any_name: bool = False,
        engine: str = "auto",
        queue: int = 512,
        most: int | None = None,
        memory: int | None = None,
    ):
        named = named if isinstance(named, Mapping) else {name: name for name in named}
        self._catalogue = Catalogue(named, stores, any_name)
        self._options, self._keep_alive = dict(options or {}), min(keep_alive, _LONGEST)
        self._pinned, self._queue = {*pinned}, queue
        self._most, self._memory = most, memory
        self._engines = Engines(engine)
        self._entries: dict[str, PoolEntry] = {}
        self._room = asyncio.Lock()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._closed = False

    def check(self) -> None:
        """Reads the headers of the models named at start, but of those still to be downloaded.

        Raises:
            ModelNotFound: a model that is to stay is unknown, or a name stands for nothing.
            Error: a model cannot be loaded, as far as its header tells.
        """
        for name in (*self._pinned, *self._catalogue.named):
            target = self._catalogue.look(name)
            self._engines.check(target, self._options_of(target))

    def start(self) -> None:
        """See `Models.start`. A model that cannot be loaded is tried again by its requests."""
        for name in self._pinned:
            self._later(self._load(name))

    def _options_of(self, target: Target) -> dict[str, Any]:
        """The options of loading a model: adapters are for those named at start."""
        if target.key in self._catalogue.named:
            return self._options
        return {name: value for name, value in self._options.items() if name != "adapters"}

    async def _load(self, name: str) -> None:
        with suppress(Error):  # the log has it, or the server ends
            async with self.use(name):
                pass

    # uses

    @asynccontextmanager
    async def use(
        self, name: str | None, *, keep_alive: float | None = None, **options: Any
    ) -> AsyncIterator[Runner]:
        """See `Models.use`."""
        note_model(name)
        name, adapters = self._catalogue.adapted(name)
        entry = await self._entry(name)
        if self._closed:
            raise Cancelled("the server ends")
        if entry.users >= self._queue:
            raise Busy(f"{self._queue} requests wait for {entry.target.key}; try again in a moment")
        entry.expire_in(None, None)
        entry.users += 1
        try:
            runner = await self._started(entry, {**self._options_of(entry.target), **options})
            given: Any = AdaptedRunner(runner, adapters) if adapters else runner
            try:
                yield given
                if not runner.ended:
                    entry.note_success()
            finally:
                entry.release()
                if runner.ended and entry.runner is runner:
                    self._note_failure(entry, DeviceLost(_ENDED.format(name=entry.target.key)))
                    entry.runner = None
                    self._later(runner.close())
        finally:
            entry.users -= 1
            self._done(entry, keep_alive)

    async def loaded(self, name: str | None) -> Runner | None:
        """See `Models.loaded`."""
        base, _ = self._catalogue.adapted(name)
        entry = self._entries.get((await self._catalogue.target(base)).key)
        if entry is None:
            return None
        if entry.starting:
            async with entry.lock:
                pass
        return None if entry.runner is None or entry.runner.ended else entry.runner

    async def _entry(self, name: str | None) -> PoolEntry:
        target = await self._catalogue.target(name)
        entry = self._entries.get(target.key)
        if entry is None:
            pinned = not self._pinned.isdisjoint((target.key, name))
            entry = self._entries[target.key] = PoolEntry(target, self._keep_alive, pinned)
        return entry

    def _done(self, entry: PoolEntry, keep_alive: float | None) -> None:
        """Has an unused model stay as long as the latest request wants it."""
        entry.used = time.monotonic()
        entry.keep_alive = self._keep_alive if keep_alive is None else min(keep_alive, _LONGEST)
        self._released.set()
        stays = entry.pinned or entry.keep_alive < 0
        if not (entry.users or stays or entry.runner is None):
            entry.expire_in(entry.keep_alive, lambda: self._later(self._end(entry)))

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _started(self, entry: PoolEntry, options: Mapping[str, Any]) -> Any:
        """The runner of a model, which the caller then has."""
        while not entry.has(options):
            # It goes on where this caller gives up: others wait for it, too.
            starting = asyncio.ensure_future(self._prepare(entry, options))
            self._starts.add(starting)
            starting.add_done_callback(self._started_one)
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:
                if self._closed:
                    raise Cancelled("the server ends") from None
                raise
        return entry.acquire()

    def _started_one(self, task: asyncio.Task[None]) -> None:
        self._starts.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to look at it

    async def _prepare(self, entry: PoolEntry, options: Mapping[str, Any]) -> None:
        """Starts a runner where there is none, or where it was started with other options."""
        async with entry.lock:
            await self._check(entry, options)
            runner = entry.runner
            if runner is not None and runner.ended:
                await self._stop(entry)
            elif runner is not None and not entry.suits(options):
                await entry.idle()
                await self._stop(entry)
            if entry.runner is None:
                entry.check_pause()
                await self._start(entry, options)
        if not entry.users:
            self._done(entry, None)

    async def _start(self, entry: PoolEntry, options: Mapping[str, Any]) -> None:
        async def admit(needs: Needs) -> bool:
            return await self._admit(entry, needs)

        if self._closed:
            raise Cancelled("the server ends")
        log.info("loading %s", entry.target.key)
        try:
            entry.options, entry.starting = options, True
            taken = None if self._memory is not None else self._promised()
            entry.runner = await self._engines.start(entry.target, options, admit, taken=taken)
            state = entry.runner.state
            if options == self._options_of(entry.target):
                entry.longest = max(state.trained_context, state.context_length)
        except Error as error:
            # The server ends, or it is the request that wanted these options.
            if self._closed or options != self._options_of(entry.target):
                raise
            log.error("cannot load %s: %s", entry.target.key, error)
            fault = _of_server(error, entry.target)
            entry.note_failure(fault)
            raise fault from None
        finally:
            entry.starting, entry.loading = False, Needs(0)
        log.info("loaded %s", entry.target.key)

    async def _check(self, entry: PoolEntry, options: Mapping[str, Any]) -> None:
        """Looks before anything is stopped or loaded whether a request may want these options.

        Raises:
            ConfigError: it wants more context than the model was trained for, and than the server
                gives it.
        """
        length, own = options.get("context_length"), self._options.get("context_length")
        if length is None or length == own:
            return
        if entry.longest is None:
            trained = await asyncio.to_thread(self._catalogue.trained_context, entry.target)
            entry.longest = None if trained is None else max(trained, own or 0)
        if entry.longest is None:  # only the model itself knows
            entry.check_pause()
            await self._start(entry, self._options_of(entry.target))
        if entry.longest is not None and length > entry.longest:
            raise ConfigError(
                f"the context_length (num_ctx) of {length:,} is more than the {entry.longest:,} of "
                f"{entry.target.key}; ask for less"
            )

    def _note_failure(self, entry: PoolEntry, error: Error) -> None:
        """A request whose own options fail does not keep the model from others."""
        if entry.options == self._options_of(entry.target):
            entry.note_failure(error)

    # memory

    async def _admit(self, entry: PoolEntry, needs: Needs) -> bool:
        """Whether there is room for a model. If not, room has been made, and the memory has to be
        looked at again; a model that has no room even alone may try."""
        async with self._room:
            others = [e for e in self._entries.values() if e is not entry and _holds(e)]
            if self._fits(needs, others):
                entry.loading = needs
                return True
            self._released.clear()
            idle = [e for e in others if e.runner and not (e.users or e.pinned)]
            if idle:
                await self._end(min(idle, key=lambda e: e.used))
                return False
            waits = [e for e in others if not e.pinned]
            if not waits:
                if others or needs.missing:
                    log.warning("%s may not fit in memory", entry.target.key)
                entry.loading = needs
                return True
        await self._released.wait()
        return False

    def _promised(self) -> int:
        """Bytes of mapped files of loaded models, which count as free."""
        return sum(e.runner.needs.mapped for e in self._entries.values() if e.runner is not None)

    def _fits(self, needs: Needs, others: list[PoolEntry]) -> bool:
        if self._most is not None and len(others) >= self._most:
            return False
        loaded = [e.runner.needs if e.runner is not None else e.loading for e in others]
        if self._memory is not None and needs.cpu + sum(n.cpu for n in loaded) > self._memory:
            return False
        # Mapped files of other models count as free, and models under way have not taken theirs.
        taken = sum(n.mapped for n in loaded) + sum(e.loading.cpu for e in others)
        return not needs.missing and needs.cpu + taken <= needs.free

    async def _end(self, entry: PoolEntry) -> None:
        """Unloads a model unless somebody wants it again."""
        async with entry.lock:
            if not entry.users and entry.runner is not None:
                await self._stop(entry)

    async def _stop(self, entry: PoolEntry) -> None:
        runner, entry.runner = entry.runner, None
        if runner is not None:
            log.info("unloading %s", entry.target.key)
            await runner.close()
            self._released.set()

    # the whole

    async def listed(self) -> list[ListedModel]:
        """See `Models.listed`."""
        models = await asyncio.to_thread(self._catalogue.listed)
        entries = {e.target.key: e for e in self._entries.values() if e.runner is not None}
        paths = {str(e.target.path): e for e in entries.values() if e.target.path is not None}
        result = []
        for one in models:
            entry = entries.get(one.name) or paths.get(one.path)
            if entry is not None and entry.runner is not None and not entry.runner.ended:
                one = msgspec.structs.replace(one, state=entry.runner.state, expires=entry.expires)
            result.append(one)
            if one.state is not None:
                names = [f"{one.name}+{adapter}" for adapter in one.state.adapters]
                result += [msgspec.structs.replace(one, name=name) for name in names]
        return result

    def conditions(self) -> dict[str, Condition]:
        """See `Models.conditions`."""
        named: dict[str, Condition] = dict.fromkeys(self._catalogue.named, "unloaded")
        named.update((key, entry.condition) for key, entry in self._entries.items())
        return named

    async def unload(self, name: str) -> None:
        """See `Models.unload`."""
        entry = self._entries.get((await self._catalogue.target(name)).key)
        if entry is not None:
            async with entry.lock:
                await entry.idle()
                await self._stop(entry)

    async def changed(self, name: str) -> None:
        """See `Models.changed`."""
        self._catalogue.forget()
        for key, entry in [*self._entries.items()]:
            if same_name(key, name) and not self._catalogue.stays(key):
                async with entry.lock:
                    await entry.idle()
                    await self._stop(entry)
                    with suppress(ModelNotFound):
                        entry.became(await self._catalogue.target(key))

    async def close(self) -> None:
        """Ends all runners at once; requests that run get Cancelled. Idempotent."""
        self._closed = True
        starts = [*self._starts]
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        for entry in self._entries.values():
            entry.expire_in(None, None)
        await asyncio.gather(*map(self._stop, self._entries.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)


class AdaptedRunner:
    """A runner whose answers and embeddings are computed with some of its adapters, unless a
    request chooses.

    Raises:
        ModelNotFound: it has no adapter of a name.
    """

    def __init__(self, runner: Any, adapters: list[str]):
        self._runner, self._adapters = runner, adapters
        for name in adapters:
            if name not in (names := runner.state.adapters):
                loaded = ", ".join(names) or "none"
                raise ModelNotFound(f"{runner.name} has no adapter {name!r:.200}; it has: {loaded}")

    def __getattr__(self, name: str) -> Any:
        if name in ("rank", "transcribe"):
            raise Unsupported(
                "adapters are chosen for answers and embeddings alone; set their strengths for all "
                "requests (--adapter PATH=STRENGTH, POST /lora-adapters)"
            )
        return getattr(self._runner, name)

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `Runner.generate`."""
        request.options = {"adapters": self._adapters, **request.options}
        return self._runner.generate(request)

    async def embed(self, request: Embed) -> Rows:
        """See `Runner.embed`."""
        request.adapters = self._adapters if request.adapters is None else request.adapters
        return await self._runner.embed(request)


def _of_server(error: Error, target: Target) -> Error:
    """The error of a load for requests, which are not to blame for it. A model of a store may be
    gone, and is then unknown."""
    blamed = (400,) if target.stored else (400, 404)
    if problem_of(error).status in blamed:
        return LoadError(f"{target.key} cannot be loaded: {error}")
    return error


def _holds(entry: PoolEntry) -> bool:
    """Whether a model is in memory, or will be."""
    return entry.runner is not None or entry.loading.cpu > 0
