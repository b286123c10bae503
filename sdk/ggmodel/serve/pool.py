"""Models by name: loaded on demand, kept as long as wanted, unloaded when memory is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from .requests import Runner, State

Condition = Literal["unloaded", "loading", "ready", "silent", "failed"]
"""A model's condition. `silent`: its process answers no ping, and is ended if that goes on.
`failed`: it has ended by itself or could not be loaded; the next request tries again."""


class ListedModel(Struct):
    """A model that can be asked for.

    Attributes:
        name: what requests call it. created: seconds since 1970. nbytes: of its files.
        digest: 64 hexadecimal digits that change with the model.
        source: the path or name that its files are found by.
        state: of its runner; None while it is not loaded.
        expires: when it is unloaded, seconds since 1970; None for never, or not loaded.
    """

    name: str
    path: str
    created: float
    nbytes: int
    digest: str = ""
    source: str = ""
    state: State | None = None
    expires: float | None = None
    details: Mapping[str, Any] = {}


def same_name(name: str, other: str) -> bool:
    """Whether two names mean one model: capitals and the tag "latest" make no difference, as in
    Ollama."""
    return _plain(name) == _plain(other)


def best_name(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is spelt like `name`, or else differs by the tag alone, or else means
    the same model; None if there is none."""
    untagged = name.removesuffix(":latest")
    return max(
        (one for one in names if same_name(one, name)),
        key=lambda one: (one == name, one.removesuffix(":latest") == untagged),
        default=None,
    )


def _plain(name: str) -> str:
    return name.casefold().removesuffix(":latest")


class Models(Protocol):
    """The pool as APIs know it."""

    def use(
        self, name: str | None, *, keep_alive: float | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Runner]:
        """A runner of the model, loaded first where needed; it stays while the block runs.

        Args:
            name: as `ggmodel.find` takes it, or a name given at start; None takes the only model,
                or the first that was named at start.
            keep_alive: seconds to stay loaded after this use; negative for ever, 0 not at all; None
                takes the server's.
            options: of loading, such as context_length; a runner with others is started anew.

        Raises:
            ModelNotFound: no model has that name, or the server may not load it.
            Busy: the queue is full.
            Error: it cannot be loaded.
        """
        ...

    async def loaded(self, name: str | None) -> Runner | None:
        """The runner of a model, which is not used: it stays no longer for that. Waits where the
        model is being loaded; None where it is not.

        Raises:
            ModelNotFound: no model has that name.
        """
        ...

    def start(self) -> None:
        """Begins to load the models that always stay; in the loop of all requests."""
        ...

    async def listed(self) -> list[ListedModel]:
        """All models: those named at start, and those of this machine's stores."""
        ...

    def conditions(self) -> dict[str, Condition]:
        """Conditions of the models named at start and of others asked for. Never waits."""
        ...

    async def unload(self, name: str) -> None:
        """Ends a runner when its requests are done."""
        ...

    async def changed(self, name: str) -> None:
        """A name of this machine's stores stands for something else now, or for nothing. Ends the
        runner of the former when its requests are done."""
        ...

    async def close(self) -> None:
        """Ends all runners; idempotent."""
        ...
