"""A process that belongs to this one: started, listened to, ended."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ... import interpreter
from ...errors import Unsupported

_END_SECONDS = 2.0  # for it to end by itself


class Child:
    """A process of Python that writes lines of JSON, seen from an event loop.

    Args:
        heard: called in the loop with each message.

    Attributes:
        ended: set when it has ended; `post_mortem` says how.

    Raises:
        Unsupported: it cannot be started.
    """

    def __init__(
        self, module: str, told: Mapping[str, Any], heard: Callable[[dict[str, Any]], None]
    ):
        self._loop, self._heard = asyncio.get_running_loop(), heard
        self.ended = asyncio.Event()
        self.post_mortem = ""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            # numpy's BLAS would start a thread a core.
            self._process = interpreter.start(
                ["-m", module], {"OPENBLAS_NUM_THREADS": "1"}, **pipes
            )
        except OSError as error:
            raise Unsupported(
                f"a model needs a process of its own, which cannot start: {error}"
            ) from error
        self.pid = self._process.pid
        self._tail = interpreter.Tail(self._process)
        threading.Thread(target=self._listen, name="ggmodel-child", daemon=True).start()
        self.tell(told)

    def tell(self, message: Any) -> None:
        """Sends a line of JSON."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, and says why
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Runs in a thread until the process has ended."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):
                    self._call(self._heard, json.loads(line))
        status = self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        how = interpreter.ending(status, self._tail.last_line())
        self._call(self._note_end, how)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _note_end(self, how: str) -> None:
        self.post_mortem = how
        self.ended.set()

    async def end(self) -> None:
        """Ends it, by force if it takes long; idempotent."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self.ended.wait(), _END_SECONDS)
        except asyncio.TimeoutError:
            self._process.kill()
            await self.ended.wait()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
