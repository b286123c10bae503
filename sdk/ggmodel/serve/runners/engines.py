"""Engines: ggmodel runs models whose architecture it has, llama.cpp others."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import (
    ArchitectureError,
    Cancelled,
    ConfigError,
    DeviceLost,
    Error,
    ModelNotFound,
    Unsupported,
)
from ...names import find
from ...names.grammar import hub_name
from ..requests import Failure
from .client import Admit, Child, Needs, RunnerConnection
from .llama_cpp import LlamaCppRunner, program
from .protocol import Watchdog, error_of, pause, silent

if TYPE_CHECKING:
    from ..models.catalogue import Target

log = logging.getLogger("ggmodel.serve")

Progress = Callable[[float], None]
_MODULE = "ggmodel.serve.runners.process"
_POST_MORTEM_SECONDS = 2.0  # between the end of the connection and that of the process


class GgmodelRunner(RunnerConnection):
    """A `Runner` in a process of ggmodel; made by `start`.

    Attributes:
        port: where the process listens.
        pid: of the process.
        needs: the memory of its model, where it was asked for.
    """

    _child: Child
    pid: int
    _watching: asyncio.Future[None]

    def __init__(self, name: str):
        super().__init__(name)
        self.port, self.needs = 0, Needs(0)
        self._admit: Admit | None = None
        self._admitting: asyncio.Task[None] | None = None
        self._loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress: Progress | None = None
        self._watchdog_of_loading = Watchdog(lambda: None, self._stands_still)  # while it loads
        self._end: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        model: str,
        options: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        stored: bool = False,
        admit: Admit | None = None,
        progress: Progress | None = None,
        taken: int | None = None,
    ) -> GgmodelRunner:
        """Starts the process and waits until it has loaded its model.

        Args:
            model: a path or a name, as `ggmodel.load` takes it. options: of `ggmodel.load`.
            name: for messages.
            stored: the model is a name of this machine's stores, and no path.
            admit: asked before it is loaded, and again until it says yes; its error ends the start.
            progress: called with the share that is loaded.
            taken: bytes of free memory that are promised to others: a model that is asked about
                gets the context that the rest holds; None for the default.

        Raises:
            Error: the model cannot be loaded, or the process not be started.
            DeviceLost: it ended, or stood still.
        """
        self, token = cls(name or model), secrets.token_urlsafe(32)
        self._progress, self._admit = progress, admit
        first = {"model": model, "token": token, "options": dict(options or {})}
        first |= {"stored": stored, "asks": admit is not None, "pause": pause()}
        first["taken"] = taken
        self._child = Child(_MODULE, first, self._on_message)
        self.pid = self._child.pid
        watch = asyncio.ensure_future(self._watch())
        try:
            self._watchdog_of_loading.begin()
            self._loading.add_done_callback(lambda _: self._watchdog_of_loading.end())
            await self._loading
            await self.connect(self.port, token)
        except BaseException:
            self._child.kill()
            await self._child.ended.wait()
            raise
        finally:
            self._watching = watch
        return self

    # the process

    def _on_message(self, message: dict[str, Any]) -> None:
        event, loading = message.get("event"), self._loading
        self._watchdog_of_loading.heard()
        if event == "listening":
            self.port = message["port"]
        elif event == "needs":
            self.needs = Needs(**{k: v for k, v in message.items() if k != "event"})
            self._admitting = asyncio.ensure_future(self._decide())
        elif event == "loading" and self._progress is not None:
            self._progress(message["share"])
        elif event == "context" and message["length"] < message["trained"]:
            log.warning("%s: %s", self.name, _context(message))
        elif event == "warning":
            log.warning("%s: %s", self.name, message["message"])
        elif event == "ready" and not loading.done():
            loading.set_result(None)
        elif event == "failed" and not loading.done():
            loading.set_exception(error_of(Failure(message["error"], message["message"])))

    def _stands_still(self) -> None:
        if not self._loading.done():
            self._loading.set_exception(silent(f"loads {self.name}"))

    async def _decide(self) -> None:
        assert self._admit is not None
        try:
            self._child.send("load" if await self._admit(self.needs) else "look")
        except Error as error:
            if not self._loading.done():
                self._loading.set_exception(error)

    async def _watch(self) -> None:
        """Tells all who wait when the process has ended."""
        await self._child.ended.wait()
        error = DeviceLost(
            f"the process that computed {self.name} {self._child.post_mortem}; the model is loaded "
            "again with the next request"
        )
        if not self._loading.done():
            self._loading.set_exception(
                DeviceLost(f"the process that loads {self.name} {self._child.post_mortem}")
            )
        self.fail(error)

    def lose(self, error: Error) -> None:
        super().lose(error)
        self._child.kill()

    def broke(self) -> None:
        """Mostly the process has ended, and its post-mortem is on the way."""

        async def end() -> None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._child.ended.wait(), _POST_MORTEM_SECONDS)
            self._child.kill()

        self._end = asyncio.ensure_future(end())

    async def close(self) -> None:
        """Ends the process; requests that run get Cancelled. Idempotent."""
        self.fail(Cancelled(f"the server unloads {self.name}"))
        self.disconnect()
        await self._child.end()
        await self._watching


def _context(message: Mapping[str, Any]) -> str:
    """The line about a context that is shorter than the model's own."""
    length, trained, size = (message[name] for name in ("length", "trained", "bytes"))
    of = f"context {length:,} of {trained:,} tokens, what {size / 2**30:.1f} GiB of memory hold"
    return f"{of}; --context-length sets it"


ENGINES = ("auto", "ggmodel", "llama.cpp")


class Engines:
    """Starts runners.

    Args:
        engine: "ggmodel" or "llama.cpp" for every model; "auto" takes ggmodel for architectures
            that it has, and an installed llama.cpp for other GGUF files.

    Raises:
        ConfigError: there is no such engine.
    """

    def __init__(self, engine: str = "auto"):
        if engine not in ENGINES:
            raise ConfigError(f"there is no engine {engine!r}; there is {', '.join(ENGINES)}")

        self._engine = engine
        self._foreign: set[str] = set()

    def check(self, target: Target, options: Mapping[str, Any]) -> None:
        """Reads the header of a model on this machine. A name of the hub may be downloaded later.

        Raises:
            Error: `start` would raise it, too: the file is broken or cut short, no engine has its
                architecture, an option is wrong. ModelNotFound: the name stands for nothing.
        """
        from ...loading import open_source
        from ...runner.loading.preparation import Preparation
        from ...runner.options import Options

        try:
            resolved = find(target.source, download=False)
        except ModelNotFound:
            if hub_name(target.source) is None:
                raise
            return
        own = Options(**options)
        with (
            open_source(resolved, own.mmproj, own.models, own.type) as source,
            Preparation(source, own) as steps,
        ):
            try:
                if self._engine != "llama.cpp":
                    steps.configure()
            except ArchitectureError:
                if not self._is_for_llama_cpp(target):
                    raise

    def _is_for_llama_cpp(self, target: Target) -> bool:
        """Whether a model whose architecture ggmodel lacks goes to llama.cpp."""
        is_file = target.path is not None and target.path.is_file()
        return self._engine == "auto" and is_file and program() is not None

    async def start(
        self,
        target: Target,
        options: Mapping[str, Any],
        admit: Admit | None = None,
        progress: Progress | None = None,
        taken: int | None = None,
    ) -> GgmodelRunner | LlamaCppRunner:
        """A runner that has loaded the model.

        Args:
            admit: asked before it is loaded; see `GgmodelRunner.start`.
            progress: called with the share that is loaded, where the engine tells it.
            taken: see `GgmodelRunner.start`.

        Raises:
            Error: it cannot be loaded.
        """
        if self._engine != "llama.cpp" and target.key not in self._foreign:
            try:
                return await GgmodelRunner.start(
                    target.source,
                    options,
                    name=target.key,
                    stored=target.stored,
                    admit=admit,
                    progress=progress,
                    taken=taken,
                )
            except ArchitectureError as error:
                if not self._is_for_llama_cpp(target):
                    raise
                log.info("%s goes to llama.cpp: %s", target.key, error)
                self._foreign.add(target.key)
        if options.get("adapters"):
            raise Unsupported(f"{target.key} goes to llama.cpp, which gets no adapters here")
        if target.path is None or not target.path.is_file():
            raise ConfigError(f"llama.cpp runs GGUF files, and {target.key} is none")
        return await LlamaCppRunner.start(target.path, options, name=target.key, admit=admit)
