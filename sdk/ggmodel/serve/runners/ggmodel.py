"""A model in a process of its own that ggmodel runs, seen from the server's event loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ...errors import Cancelled, DeviceLost, Error
from ..requests import Failure
from .child import Child
from .conversation import Conversation
from .failures import error_of
from .needs import Admit, Needs
from .watchdog import Watchdog, pause, silent

log = logging.getLogger("ggmodel.serve")

Progress = Callable[[float], None]
_MODULE = "ggmodel.serve.runners.process"
_POST_MORTEM_SECONDS = 2.0  # between the end of the connection and that of the process


class GgmodelRunner(Conversation):
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
    ) -> GgmodelRunner:
        """Starts the process and waits until it has loaded its model.

        Args:
            model: a path or a name, as `ggmodel.load` takes it. options: of `ggmodel.load`.
            name: for messages.
            stored: the model is a name of this machine's stores, and no path.
            admit: asked before it is loaded, and again until it says yes; its error ends the start.
            progress: called with the share that is loaded.

        Raises:
            Error: the model cannot be loaded, or the process not be started.
            DeviceLost: it ended, or stood still.
        """
        self, token = cls(name or model), secrets.token_urlsafe(32)
        self._progress, self._admit = progress, admit
        told = {"model": model, "token": token, "options": dict(options or {})}
        told |= {"stored": stored, "asks": admit is not None, "pause": pause()}
        self._child = Child(_MODULE, told, self._heard)
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

    def _heard(self, message: dict[str, Any]) -> None:
        event, loading = message.get("event"), self._loading
        self._watchdog_of_loading.heard()
        if event == "listening":
            self.port = message["port"]
        elif event == "needs":
            self.needs = Needs(**{k: v for k, v in message.items() if k != "event"})
            self._admitting = asyncio.ensure_future(self._decide())
        elif event == "loading" and self._progress is not None:
            self._progress(message["share"])
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
            self._child.tell("load" if await self._admit(self.needs) else "look")
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
        self.hang_up()
        await self._child.end()
        await self._watching
