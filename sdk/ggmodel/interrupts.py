"""Waits, and long calls into libraries, that Ctrl-C ends all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from .platforms.processes import TICK

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")


def next_of(queue: SimpleQueue[_T]) -> _T:
    """The next item of a queue, as soon as there is one."""
    if TICK is None:
        return queue.get()
    while True:
        try:
            return queue.get(timeout=TICK)
        except Empty:
            pass


def until_set(event: threading.Event) -> None:
    """Waits for an event."""
    while not event.wait(TICK):
        pass


def result_of(future: Future[_T]) -> _T:
    """Waits for a result, which may be an error that is raised."""
    if TICK is not None and not future.done():
        ended = threading.Event()
        future.add_done_callback(lambda _: ended.set())
        until_set(ended)
    return future.result()


def in_a_thread(work: Callable[[], _T], *, wait: bool = False) -> _T:
    """The result of `work`, which runs where no Ctrl-C reaches it.

    Ctrl-C is noticed here at once, even if the work is one long call of a library; and a library
    that calls Python cannot swallow it.

    Args:
        wait: after Ctrl-C, let the work end first, which must be short then.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    results: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    working, wanted = threading.Lock(), [True]

    def run() -> None:
        with working:
            try:
                if wanted:
                    results.put((True, work()))
            except BaseException as error:
                results.put((False, error))

    try:
        threading.Thread(target=run, name="ggmodel-work", daemon=True).start()
        good, result = next_of(results)
    except BaseException:
        wanted.clear()  # if it has not begun
        if wait:
            with working:
                raise
        raise
    if not good:
        raise result
    return result
