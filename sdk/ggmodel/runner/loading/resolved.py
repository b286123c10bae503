"""Resolved models: files on this machine, their digests, and what their store says of their use."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import storage
from ...errors import Error, FormatError
from ...reading import read_json

Progress = Callable[[float], None]
PATH = "a path"  # the store of what needed no looking up

SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}
"""Metadata by which a file advises how to sample → options of requests."""


@dataclass(frozen=True)
class Defaults:
    """How a store or a file wants a model to be used, where the caller does not say it.

    Attributes:
        system: a first message of the role "system".
        messages: a conversation that comes before the caller's.
        options: of requests, as `RequestOptions` calls them.
        context_length: positions a sequence may have.
    """

    system: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    context_length: int | None = None

    def over(self, options: Mapping[str, Any]) -> Defaults:
        """The same, with these options where ours say nothing."""
        return replace(self, options={**options, **self.options})

    def begin(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with those before them. A system's message of the caller replaces ours."""
        if not (self.system or self.messages) or not isinstance(messages, (list, tuple)):
            return messages
        first = messages[0] if messages else None
        has_system = isinstance(first, Mapping) and first.get("role") == "system"
        count = 1 if has_system else 0
        default = {"role": "system", "content": self.system}
        system = [default] if self.system and not has_system else messages[:count]
        return [*system, *self.messages, *messages[count:]]

    def under(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a request, ours where it has none. A sampler brings its own."""
        ours = dict(self.options)
        if "sampler" in options:
            ours = {name: v for name, v in ours.items() if name in ("stop", "max_tokens")}
        return ours | dict(options)


@dataclass(frozen=True)
class ResolvedModel(os.PathLike[str]):
    """A model that a name stands for; a path, too: `open_gguf(model)` opens its file.

    Attributes:
        name: the name in full, as its store spells it.
        store: where it was found, for people: "Ollama's store".
        path: a GGUF file, of a split one the first; or the folder of a checkpoint.
        parts: the files of a split model that are not named like parts; empty otherwise.
        mmproj: the vision projector.
        adapters: LoRA adapters, applied one after the other.
        template: a Jinja chat template that replaces the file's; "" keeps that.
        defaults: how the model is used where the caller does not say it.
        digests: file → what its content must hash to, "sha256:…" or "git:…" (a blob of git).
    """

    name: str
    store: str
    path: Path
    parts: tuple[Path, ...] = ()
    mmproj: Path | None = None
    adapters: tuple[Path, ...] = ()
    template: str = ""
    defaults: Defaults = Defaults()
    digests: Mapping[Path, str] = field(default_factory=dict)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def where(self) -> str:
        """A line for people."""
        projector = f", projector {self.mmproj}" if self.mmproj else ""
        return f"{self.name}: {self.store}, {self.path}{projector}"

    def verify(self, progress: Progress | None = None) -> None:
        """Compares the files with their digests, each once as long as it does not change.

        Args:
            progress: called with the share of bytes that were read.

        Raises:
            FormatError: a file is not what the store says; names it and what to do.
        """
        if self.digests:
            verify(self.digests, progress)


_CHUNK = 4 << 20
_MOST_KEPT = 1000  # files whose digests are remembered
_verified: dict[str, Any] = {}  # by this process, where nothing can be written


def verify(digests: Mapping[Path, str], progress: Progress | None = None) -> None:
    """See `ResolvedModel.verify`."""
    verified = _read_verified() | _verified
    pending = {p: d for p, d in digests.items() if verified.get(str(p)) != _state(p, d)}
    if not pending:
        return
    total, done = sum(path.stat().st_size for path in pending) or 1, 0
    for path, digest in pending.items():
        state, (kind, _, expected) = _state(path, digest), digest.partition(":")
        computed = _hasher(path, kind)
        with open(path, "rb") as file:
            while piece := file.read(_CHUNK):
                computed.update(piece)
                done += len(piece)
                if progress is not None:
                    progress(min(done / total, 1.0))
        if computed.hexdigest() != expected or state != _state(path, digest):
            raise FormatError(
                f"{path} is damaged: its {kind} digest is not the one its store has for it; "
                "remove it and pull the model again"
            )
        verified[str(path)] = _verified[str(path)] = state
    _write_verified(verified)


def _hasher(path: Path, kind: str) -> Any:
    if kind == "sha256":
        return hashlib.sha256()
    hasher = hashlib.sha1(usedforsecurity=False)  # what git calls blobs by
    hasher.update(b"blob %d\0" % path.stat().st_size)
    return hasher


def _state(path: Path, digest: str) -> list[Any]:
    try:
        now = path.stat()
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}; pull the model again"
        ) from None
    return [digest, now.st_size, now.st_mtime_ns, now.st_ino]


def _record() -> Path:
    return storage.cache_folder() / "verified.json"


def _read_verified() -> dict[str, Any]:
    with suppress(Error):
        return read_json(_record())
    return {}


def _write_verified(verified: dict[str, Any]) -> None:
    """A folder that cannot be written costs hashing the file again."""
    with suppress(OSError, Error):
        _record().parent.mkdir(parents=True, exist_ok=True)
        storage.write_text(_record(), json.dumps(dict([*verified.items()][-_MOST_KEPT:])))
