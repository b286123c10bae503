"""Answers a batch by replicas on Ray, each with models of its own.

Ray Data gives them the requests, and those of a replica that is lost to others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...errors import Unsupported
from ...imports import install_command
from . import AnswerFile, Progress, RequestFile, RequestLine


def answer_on_ray(
    requests: RequestFile,
    answers: AnswerFile,
    make_server: Callable[[], Any],
    width: int,
    replicas: int,
    progress: Progress,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> None:
    """Answers the requests that have no answer yet.

    Args:
        make_server: makes the `Server` of a replica, in its process.
        width: requests that a replica is asked at a time.
        cpus, gpus: that a replica takes; Ray hides other GPUs from it.

    Raises:
        Unsupported: Ray is not installed.
    """
    data = _data()
    left = list(requests.lines(after=answers.done))
    if not left:
        return
    rows = [{"place": i, "url": one.url, "body": bytes(one.body)} for i, one in enumerate(left)]
    data.DataContext.get_current().execution_options.preserve_order = True
    done = data.from_items(rows, override_num_blocks=_blocks(len(rows), width)).map_batches(
        Replica,
        fn_constructor_args=(make_server, width),
        batch_size=width * 2,
        concurrency=replicas,
        num_cpus=cpus,
        num_gpus=gpus,
        max_restarts=-1,
        max_task_retries=-1,
    )
    for row in done.iter_rows():
        answers.write(left[row["place"]], row["status"], row["answer"])
        progress(answers.done)


def _blocks(count: int, width: int) -> int:
    """Blocks of a few batches: as much as a lost replica has to repeat."""
    return max(1, min(200, count // (width * 2)))


class Replica:
    """A server without a port, in a process of Ray's."""

    def __init__(self, make_server: Callable[[], Any], width: int):
        from ..api import make_app

        self._server = make_server()
        self._app = make_app(self._server)
        self._width = width
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The answers to a batch of requests."""
        lines = [
            RequestLine("", str(url), _raw(body))
            for url, body in zip(batch["url"], batch["body"], strict=True)
        ]
        work = asyncio.run_coroutine_threadsafe(self._all(lines), self._loop)
        answered = work.result()
        return {
            "place": list(batch["place"]),
            "status": [status for status, _ in answered],
            "answer": [answer for _, answer in answered],
        }

    async def _all(self, lines: list[RequestLine]) -> list[tuple[int, bytes]]:
        from . import ask

        free = asyncio.Semaphore(self._width)

        async def answer(line: RequestLine) -> tuple[int, bytes]:
            async with free:
                return await ask(self._app, line.url, bytes(line.body))

        return [*await asyncio.gather(*map(answer, lines))]


def _raw(body: Any) -> Any:
    from msgspec import Raw

    return Raw(bytes(body))


def _data() -> Any:
    try:
        return import_module("ray.data")
    except ImportError:
        raise Unsupported(f"replicas need Ray: {install_command('ray')}") from None
