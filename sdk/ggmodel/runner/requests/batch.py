"""Many prompts at once, each with an answer of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from ...errors import BatchError, Error
from .completion import Completion

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from .generation import Generation

P = TypeVar("P")


def complete_all(
    engine: Engine,
    request: Callable[[P], Generation],
    prompts: Sequence[P],
    progress: Callable[[float], None] | None = None,
) -> list[Completion]:
    """A completion for each prompt, in order.

    Args:
        request: makes the request of a prompt.
        progress: called with the share of prompts that are done; an error that it raises ends the
            batch.

    Raises:
        BatchError: some failed; carries the others' completions.
    """
    ended: SimpleQueue[int] = SimpleQueue()
    upcoming, running = iter(enumerate(prompts)), dict[int, "Generation"]()
    completions: list[Completion | None] = [None] * len(prompts)
    errors: dict[int, Error] = {}
    # Twice as many requests as sequences: one that ends finds the next waiting.
    most = 2 * len(engine.slots.all)
    try:
        for done in range(1, len(prompts) + 1):
            for i, prompt in islice(upcoming, most - len(running)):
                try:
                    running[i] = request(prompt)
                    running[i].start(partial(ended.put, i))
                except Error as error:
                    errors[i] = error
                    ended.put(i)
            one = running.pop(i := ended.get(), None)
            try:
                completions[i] = None if i in errors or one is None else one.result()
            except Error as error:
                errors[i] = error
            if progress is not None:
                progress(done / len(prompts))
    finally:
        for one in running.values():
            engine.cancel(one)
    if errors:
        first = min(errors)
        raise BatchError(
            f"{len(errors)} of {len(prompts)} prompts failed, first prompts[{first}]: "
            f"{errors[first]}. The attribute `completions` of this error has the answers to the "
            "others",
            completions,
            errors,
        )
    return [one for one in completions if one is not None]
