"""Many prompts at once, each with an answer of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import TYPE_CHECKING, TypeVar

from ...errors import BatchError, Cancelled, Error
from .completion import Completion

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from .generation import Generation

P = TypeVar("P")

_BEAT = 0.05  # seconds between two looks at requests that have yet to notice the end of a batch


def complete_all(
    engine: Engine,
    request: Callable[[P], Generation],
    prompts: Sequence[P],
    progress: Callable[[float], None] | None = None,
) -> list[Completion]:
    """A completion for each prompt, in order.

    Args:
        request: makes the request of a prompt.
        progress: called with the share of prompts that are done, in the thread of the caller; an
            error that it raises ends the batch.

    Raises:
        BatchError: some failed; carries the others' completions.
    """
    open_requests: set[Generation] = set()
    stopped = False

    def answer(prompt: P) -> Completion:
        open_requests.add(one := request(prompt))
        try:
            if stopped:
                raise Cancelled("the batch was stopped")
            return one.run()
        finally:
            open_requests.discard(one)

    # Twice as many threads as sequences: one that ends finds the next request waiting.
    workers = min(len(prompts), 2 * len(engine.slots.all)) or 1
    with ThreadPoolExecutor(workers, "ggmodel-batch") as pool:
        answers = [pool.submit(answer, prompt) for prompt in prompts]
        try:
            for done, _ in enumerate(as_completed(answers), 1):
                if progress is not None:
                    progress(done / len(prompts))
        except BaseException:
            stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            while running := [one for one in answers if one.running()]:
                for one in list(open_requests):
                    engine.cancel(one)
                wait(running, _BEAT)
            raise
    return _all_of(answers)


def _all_of(answers: Sequence[Future[Completion]]) -> list[Completion]:
    completions: list[Completion | None] = []
    errors: dict[int, Error] = {}
    for i, answer in enumerate(answers):
        try:
            completions.append(answer.result())
        except Error as error:
            completions.append(None)
            errors[i] = error
    if errors:
        first, error = next(iter(errors.items()))
        raise BatchError(
            f"{len(errors)} of {len(answers)} prompts failed, first prompts[{first}]: {error}. "
            "The attribute `completions` of this error has the answers to the others",
            completions,
            errors,
        )
    return [one for one in completions if one is not None]
