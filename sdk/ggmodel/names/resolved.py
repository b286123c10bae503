"""Resolved models: files on this machine, and what their store says about using them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Progress = Callable[[float], None]
PATH = "a path"  # the store of what needed no looking up

ADVISED = {
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
        told = isinstance(first, Mapping) and first.get("role") == "system"
        system = [{"role": "system", "content": self.system}] if self.system and not told else []
        own = [first] if told and first is not None else []
        return [*system, *own, *self.messages, *messages[len(own) :]]

    def under(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a request, ours where it has none. A sampler brings its own."""
        ours = dict(self.options)
        if "sampler" in options:
            ours = {name: v for name, v in ours.items() if name in ("stop", "max_tokens")}
        return ours | dict(options)


@dataclass(frozen=True)
class Found(os.PathLike[str]):
    """A model that a name stands for; a path, too: `open_gguf(found)` opens its file.

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
            from .store_files import verify

            verify(self.digests, progress)


@dataclass(frozen=True)
class Stored:
    """A model in a store, not opened.

    Attributes:
        name: what `find` takes.
        store: the source's name.
        path: of its file or folder; None where there is none.
        nbytes: on the disk, projector included.
        problem: why it cannot be used, in a few words; "" if nothing is known.
        own: `ggmodel pull` made it.
        files: what removing it removes, links followed.
        digest: SHA-256 of its manifest, in hexadecimal digits; "" where it has none.
    """

    name: str
    store: str
    path: Path | None
    nbytes: int = 0
    problem: str = ""
    own: bool = False
    files: tuple[Path, ...] = ()
    digest: str = ""
