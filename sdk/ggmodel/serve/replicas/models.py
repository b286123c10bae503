"""The models of a server whose runners are replicas: there from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ...errors import Busy, ConfigError, Unsupported
from ..models.catalogue import Catalogue
from ..pool import Condition, Listed
from ..request_log import note_model
from ..runner import Runner
from .asked import Replicas

_STAYS = "models on Ray stay loaded as long as the server runs"


class ReplicatedModels:
    """`Models` of a server.

    Args:
        replicas: of each name of the catalogue.
        options: of loading, with which all were started.
        queue: requests to one model at a time.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        replicas: Mapping[str, Replicas],
        options: Mapping[str, Any],
        queue: int,
    ):
        self._catalogue, self._replicas = catalogue, replicas
        self._options, self._queue = options, queue
        self._users = dict.fromkeys(replicas, 0)
        self._starting = {name: asyncio.Lock() for name in replicas}

    @asynccontextmanager
    async def use(
        self, name: str | None, *, keep_alive: float | None = None, **options: Any
    ) -> AsyncIterator[Runner]:
        """See `Models.use`. Nobody has to load a model, and `keep_alive` is of no account.

        Raises:
            ConfigError: the request wants more context than the model was loaded with.
        """
        note_model(name)
        key = (await self._catalogue.target(name)).key
        if self._users[key] >= self._queue:
            raise Busy(f"{self._queue} requests wait for {key}; try again in a moment")
        self._users[key] += 1
        try:
            replicas = await self._started(key)
            _check(options, self._options, replicas, key)
            yield replicas
        finally:
            self._users[key] -= 1

    async def _started(self, key: str) -> Replicas:
        replicas = self._replicas[key]
        if not replicas.started:
            async with self._starting[key]:
                if not replicas.started:
                    await replicas.start()
        return replicas

    def start(self) -> None:
        """Nothing: they are there."""

    async def listed(self) -> list[Listed]:
        """See `Models.listed`."""
        found = await asyncio.to_thread(self._catalogue.listed)
        states = {one.name: (await self._started(one.name)).state for one in found}
        return [msgspec.structs.replace(one, state=states[one.name]) for one in found]

    def conditions(self) -> dict[str, Condition]:
        """See `Models.conditions`."""
        started = self._replicas.items()
        return {name: "ready" if one.started else "loading" for name, one in started}

    async def unload(self, name: str) -> None:
        """Raises Unsupported."""
        raise Unsupported(f"{name} cannot be unloaded: {_STAYS}")

    async def changed(self, name: str) -> None:
        """Raises Unsupported."""
        raise Unsupported(f"{name} cannot be changed: {_STAYS}")

    async def close(self) -> None:
        """Nothing: replicas end with the deployment."""


def _check(wanted: Mapping[str, Any], own: Mapping[str, Any], replicas: Replicas, key: str) -> None:
    """Whether replicas with their own options can do what others are wanted for."""
    for name, value in wanted.items():
        if name == "context_length" and value is not None:
            most = replicas.state.context_length
            if value > most:
                raise ConfigError(
                    f"the context_length (num_ctx) of {value:,} is more than the {most:,} that the "
                    f"replicas of {key} were started with; ask for less"
                )
        elif value != own.get(name):
            raise ConfigError(f"{name} cannot be changed: {_STAYS}")
