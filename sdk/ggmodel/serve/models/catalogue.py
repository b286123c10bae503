"""Models that requests may call by name: their files, and the runner of each that is loaded."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from ...chat.template import KEY as TEMPLATE
from ...chat.template import template_abilities
from ...errors import DeviceLost, Error, ModelNotFound
from ...gguf_file import TensorSource, open_gguf
from ...gguf_file.source import quantization_of
from ...gguf_file.values import KeyValues
from ...names import Stored, find_stored, stored
from ..infill import fills
from ..pool import Condition, ListedModel, best_name
from ..requests import Runner
from ..runners.client import Needs

_DIGEST = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
_REMEMBERED = 60.0  # seconds until the stores are looked through again
_SPELLINGS = 1000  # that are remembered; a name has as many as its letters have capitals
_LONGEST = 4096  # characters of a name, which may be a path
# Capability → keys that files with such an encoder have.
_ENCODERS = {
    "vision": ["vision.block_count"],
    "audio": ["audio.block_count", "encoder.mel_count"],
}


@dataclass(frozen=True)
class Target:
    """A model that can be started.

    Attributes:
        key: the same for all names of the model.
        source: for the runner: a path, or a name of the stores if `stored`.
        path: of its file or folder, where it is known.
    """

    key: str
    source: str
    path: Path | None
    stored: bool = False


class Catalogue:
    """The models that a server may load.

    Args:
        named: name → path or name; what was given at start.
        stores: whether it may load whatever is in this machine's stores.
        any_name: whether a name that no model has means the first of `named`.
    """

    def __init__(self, named: Mapping[str, str], stores: bool, any_name: bool = False):
        self.named, self._stores, self._any_name = dict(named), stores, any_name
        self._targets: dict[str, tuple[float, Target]] = {}
        self._headers: dict[tuple[str, int], dict[str, Any]] = {}

    async def target(self, name: str | None) -> Target:
        """The model of a name.

        Raises:
            ModelNotFound: there is none that the server may load.
        """
        if name is None:
            if not self.named:
                raise ModelNotFound('no model is named; give one, as in "model": NAME')
            name = next(iter(self.named))
        if len(name) > _LONGEST:  # answers repeat it
            raise ModelNotFound(
                f"there is no model {name[:200]!r}…: names have up to {_LONGEST:,} characters"
            )
        since, target = self._targets.get(name, (0.0, None))
        if target is None or time.monotonic() - since > _REMEMBERED:
            try:
                target = await asyncio.to_thread(self.look, name)
            except ModelNotFound:
                if not (self._any_name and self.named):
                    raise
                return await self.target(None)  # not remembered: there is no end of such names
            self._targets[name] = time.monotonic(), target
            if len(self._targets) > _SPELLINGS:
                del self._targets[next(iter(self._targets))]
        return target

    def adapted(self, name: str | None) -> tuple[str | None, list[str]]:
        """The model and the adapters of a name MODEL+ADAPTER…, of a model given at start."""
        base, *adapters = (name or "").split("+")
        if adapters and not best_name(name or "", self.named) and best_name(base, self.named):
            return base, adapters
        return name, []

    def look(self, name: str) -> Target:
        """The model of a name, looked up anew. For a thread; raises as `target`."""
        own = best_name(name, self.named)
        if own is not None:
            source = self.named[own]
            return Target(own, source, _place(source))
        return self._stored(name)

    def _stored(self, name: str) -> Target:
        # Programs add the tag to names of the hub, too, where it means nothing.
        spellings = (name, name.removesuffix(":latest")) if self._stores else ()
        for spelling in dict.fromkeys(spellings):
            with suppress(Error):  # it is no name, or cannot be used: the list says why
                if model := find_stored(spelling):
                    return Target(model.name, spelling, model.path, stored=True)
        names = ", ".join(self.named) or "none"
        stores = ", and no store of this machine has it" if self._stores else ""
        raise ModelNotFound(
            f"there is no model {name[:200]!r}{stores}; models named at start: {names}"
        )

    def forget(self) -> None:
        """Looks all names up anew."""
        self._targets.clear()

    def stays(self, name: str) -> bool:
        """Whether it was given at start for a file or folder, which no store can change."""
        return os.path.exists(self.named.get(name, ""))

    def trained_context(self, target: Target) -> int | None:
        """The context that the model of a GGUF file was trained for; None where nothing tells. For
        a thread."""
        path = target.path
        if path is None or not path.is_file():
            return None
        with suppress(Error, OSError), open_gguf(path) as source:
            return KeyValues(source.metadata).get("context_length", int) or None
        return None

    def listed(self) -> list[ListedModel]:
        """All models; reads the headers of new files. For a thread."""
        models = [
            _list(name, _place(source) or Path(source), source)
            for name, source in self.named.items()
        ]
        if self._stores:
            paths = {one.path for one in models}
            for one in _usable(stored()):
                if str(one.path) not in paths and best_name(one.name, self.named) is None:
                    models.append(_list(one.name, one.path, one.name, one))
        for one in models:
            one.details = {**one.details, **self._header(one.path)}
        return models

    def _header(self, path: str) -> dict[str, Any]:
        """The architecture, the number of parameters and the main type of a GGUF file."""
        key = path, 0
        with suppress(OSError):
            key = path, os.stat(path).st_mtime_ns
        if key not in self._headers:
            header = dict[str, Any]()
            if os.path.isfile(path):
                with suppress(Error, OSError), open_gguf(path) as source:
                    header = header_of(source)
            self._headers[key] = header  # whole: other threads read it
        return self._headers[key]


def _place(source: str) -> Path | None:
    """The file or folder of a path or a name; None where it has to be downloaded first."""
    if os.path.exists(source):
        return Path(source)
    with suppress(Error):
        if model := find_stored(source):
            return model.path
    return None


def _usable(models: Iterable[Stored]) -> Iterable[Any]:
    return [one for one in models if one.path is not None and not one.problem]


def _list(name: str, path: Path, source: str, stored: Stored | None = None) -> ListedModel:
    created, nbytes, digest = 0.0, stored.nbytes if stored else 0, stored.digest if stored else ""
    with suppress(OSError):
        created, size = path.stat().st_mtime, path.stat().st_size
        nbytes = nbytes or (size if path.is_file() else _size(path))
    if not digest:
        blob = _DIGEST.fullmatch(Path(os.path.realpath(path)).name)
        state = f"{os.path.realpath(path)}\n{nbytes}\n{created}"
        digest = blob[1] if blob else sha256(state.encode("utf-8", "surrogateescape")).hexdigest()
    details: dict[str, Any] = {"format": "safetensors" if path.is_dir() else "gguf"}
    if stored is not None:
        details["store"], created = stored.store, stored.modified or created
        details["own"] = stored.own
    return ListedModel(name, str(path), created, nbytes, digest, source, details=details)


def _size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.iterdir() if one.is_file())


def header_of(source: TensorSource) -> dict[str, Any]:
    """The architecture, the number of parameters, the type, the abilities and the trained context
    of a model, and whether it has a chat template."""
    architecture = source.metadata.get("general.architecture")
    return {
        "architecture": architecture if isinstance(architecture, str) else "",
        "parameters": sum(tensor.n_elements for tensor in source.tensors.values()),
        "quantization": quantization_of(source),
        "capabilities": capabilities_of(source.metadata),
        "chat": bool(source.metadata.get(TEMPLATE)),
        "context_length": KeyValues(source.metadata).get("context_length", int) or 0,
    }


def capabilities_of(metadata: Mapping[str, Any]) -> list[str]:
    """The abilities of a model, in Ollama's words."""
    name, template = metadata.get("general.architecture"), metadata.get(TEMPLATE)
    template = template if isinstance(template, str) else ""
    pooled = bool(metadata.get(f"{name}.pooling_type"))
    able = ["embedding"] if pooled else ["completion", *template_abilities(template)]
    able += ["insert"] * (not pooled and fills(metadata))
    for kind, keys in _ENCODERS.items():
        able += [kind] * any(
            f"{owner}.{key}" in metadata for owner in (name, "clip") for key in keys
        )
    return able


_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between starts that fail one after the other


class PooledRunner(Runner, Protocol):
    """A runner as the pool holds it.

    Attributes:
        needs: the memory of its model.
    """

    needs: Needs

    @property
    def silent(self) -> bool:
        """Whether its process leaves pings unanswered."""
        ...

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        ...


class PoolEntry:
    """A model and its runner.

    Attributes:
        lock: held while the runner is started, changed or ended.
        users: requests that have or want the runner. active: those that have it.
        used: when the last one was done, by `time.monotonic`.
        keep_alive: seconds to stay after the last use; negative for ever.
        starting: the runner is being started.
        loading: the memory of the model while it is being loaded.
        longest: context that a request may want; None before it was loaded.
    """

    def __init__(self, target: Target, keep_alive: float, pinned: bool):
        self.target, self.keep_alive, self.pinned = target, keep_alive, pinned
        self.lock = asyncio.Lock()
        self.runner: PooledRunner | None = None
        self.options: Mapping[str, Any] = {}
        self.users = self.active = 0
        self.used = time.monotonic()
        self.starting, self.loading = False, Needs(0)
        self.longest: int | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._failures, self._again, self._error = 0, 0.0, Error("")

    @property
    def expires(self) -> float | None:
        """Seconds since 1970 when it is unloaded; None for never, and while it is in use."""
        if self.runner is None or self.pinned or self.keep_alive < 0 or self.users:
            return None
        return time.time() + self.used + self.keep_alive - time.monotonic()

    @property
    def condition(self) -> Condition:
        """See `Models.conditions`."""
        if self.starting:
            return "loading"
        if self.runner is None:
            return "failed" if self._failures else "unloaded"
        if self.runner.ended:
            return "failed"
        return "silent" if self.runner.silent else "ready"

    def became(self, target: Target) -> None:
        """Its name stands for something else, of which nothing is known."""
        self.target, self.longest = target, None
        self.note_success()

    # uses

    def suits(self, options: Mapping[str, Any]) -> bool:
        """Whether the runner was started with these options, and no others."""
        return self.options == options

    def has(self, options: Mapping[str, Any]) -> bool:
        """Whether the runner can be had now, with these options."""
        runs = self.runner is not None and not self.runner.ended
        return runs and not self.lock.locked() and self.suits(options)

    def acquire(self) -> PooledRunner:
        """A request has the runner."""
        assert self.runner is not None
        self.active += 1
        self._idle.clear()
        return self.runner

    def release(self) -> None:
        """The request is done with it."""
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def idle(self) -> None:
        """Waits until no request has the runner."""
        await self._idle.wait()

    def expire_in(self, seconds: float | None, unload: Any) -> None:
        """Calls `unload` in so many seconds, and not as it was told before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, unload)

    # failures

    def check_pause(self) -> None:
        """Raises the latest error while it is too early to start the model again."""
        if time.monotonic() < self._again:
            raise type(self._error)(str(self._error))

    def note_failure(self, error: Error) -> None:
        """The runner ended by itself, or could not be started. The first end is followed by a new
        start at once, further ones without a use between them by pauses."""
        pauses = self._failures if isinstance(error, DeviceLost) else self._failures + 1
        self._failures += 1
        pause = min(_FIRST_PAUSE * 2 ** (pauses - 1), _LONGEST_PAUSE) if pauses else 0.0
        self._error, self._again = error, time.monotonic() + pause

    def note_success(self) -> None:
        self._failures, self._again = 0, 0.0
