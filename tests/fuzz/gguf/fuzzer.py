"""Damaged GGUF files: read, or loaded and run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ggmodel
from ggmodel.errors import Error, FormatError
from ggmodel.gguf_file import Array, TensorSource, open_gguf
from tests.fuzz.damage import damaged
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong
from tests.fuzz.gguf.corpus import Model, models
from tests.fuzz.gguf.document import Document
from tests.fuzz.gguf.mutations import ANY, MEANING, Change, mutate

_LONG = 200  # items of an array that are read one by one
_PIXELS = np.linspace(-1, 1, 3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)


class Files(Fuzzer):
    """Damaged files, opened, and read as far as they can be."""

    name = "gguf"
    weight = 4.0
    patience = 20.0
    memory = 256 << 20
    changes: tuple[Change, ...] = ANY
    filled = False  # with weights; else with zeros
    shortens = True
    hurt, cut = 0.4, 0.1  # shares of files with damaged bytes, and without their end

    def open(self) -> None:
        self.models()

    def make(self, random: Random) -> dict[str, Any]:
        model = random.choice(self.models())
        files = dict(model.files)
        name = random.choice(list(files))
        changed = files[name].copy()
        if self.shortens and random.random() < 0.8:
            _shorten(random, changed)
        mutate(random, changed, self.changes)
        if self.filled or random.random() < 0.3:
            changed.lay_out()
        files[name] = changed
        packed = {name: self._packed(random, one, one is changed) for name, one in files.items()}
        if len(files) > 1 and random.random() < 0.1:
            _mix_up(random, packed)
        return {"model": model.name, "files": packed, "mmproj": model.mmproj}

    def models(self) -> list[Model]:
        """The models to damage."""
        return models()

    def _packed(self, random: Random, one: Document, changed: bool) -> list[Any]:
        """The bytes of a file, and its size: beyond the bytes it has zeros."""
        head = one.whole() if self.filled else one.head()
        size = len(head) if self.filled else len(head) + one.size
        if changed and random.random() < self.hurt:
            hurt = damaged(random, head)
            size, head = size + len(hurt) - len(head), hurt
        if changed and random.random() < self.cut:
            size = random.randrange(size + 1)
        return [head[:size], size]

    def run(self, case: dict[str, Any], note: Note) -> None:
        self.write(case["files"])
        with self.source(case) as source:
            self.counts["opened"] += 1
            _read_all(source)

    def write(self, files: dict[str, list[Any]]) -> None:
        """Writes the files, over those of the case before; removes others."""
        for other in self.folder.iterdir():
            if other.name not in files:
                other.unlink()
        for name, (head, size) in files.items():
            with open(self.folder / name, "r+b" if (self.folder / name).exists() else "xb") as file:
                file.write(head)
                file.truncate(len(head))
                file.truncate(size)

    def paths(self, case: dict[str, Any]) -> tuple[Path, Path | None]:
        """The file to open, and the projector."""
        first = self.folder / next(iter(case["files"]))
        return first, self.folder / case["mmproj"] if case["mmproj"] else None

    def source(self, case: dict[str, Any]) -> TensorSource:
        return open_gguf(*self.paths(case))


def _shorten(random: Random, document: Document) -> None:
    """Leaves a few keys and tensors, which is as good for a reader, and faster."""
    at = random.randrange(max(1, len(document.pairs) - 9))
    document.pairs = document.pairs[at : at + 9]
    at = random.randrange(max(1, len(document.entries) - 6))
    document.entries = document.entries[at : at + 6]


def _mix_up(random: Random, files: dict[str, list[Any]]) -> None:
    """Exchanges two of several files, or loses one."""
    a, b = random.sample(list(files), 2)
    if random.random() < 0.5:
        files[a], files[b] = files[b], files[a]
    else:
        del files[b]


def _read_all(source: TensorSource) -> None:
    for value in source.metadata.values():
        if isinstance(value, Array):
            _read_array(value)
        elif not isinstance(value, (bool, int, float, str)):
            raise Wrong("metadata of an unknown kind", type(value))
    for name, info in source.tensors.items():
        if len(source.data(name)) != info.nbytes:
            raise Wrong("data of another size", name)


def _read_array(array: Array) -> None:
    few = range(min(len(array), _LONG))
    with suppress(FormatError):
        if any(item != array[i] and item == item for i, item in zip(few, array, strict=False)):
            raise Wrong("an array that gives different items", repr(array))
        if array.dtype not in ("string", "array") and len(array.numpy()) != len(array):
            raise Wrong("an array of another length", repr(array))


class Loads(Files):
    """Damaged files that can mostly be read, loaded; the model generates, embeds and looks."""

    name = "gguf-load"
    unit = "loaded"
    weight = 3.0
    patience = 60.0
    memory = 3 << 30
    changes = MEANING
    filled = True
    shortens = False
    hurt, cut = 0.05, 0.02

    def models(self) -> list[Model]:
        return [one for one in models() if one.small]

    def run(self, case: dict[str, Any], note: Note) -> None:
        self.write(case["files"])
        path, mmproj = self.paths(case)
        options: dict[str, Any] = {"context_length": 48, "batch_size": 16, "threads": 1}
        with ggmodel.load(path, mmproj=mmproj or "", parallel=2, **options) as model:
            self.counts["loaded"] += 1
            for ask in (
                lambda: model.generate([1, 2, 3], max_tokens=4, temperature=0),
                lambda: model.batch([[1, 2], [1, 2, 3, 4]], max_tokens=3, context_shift=True),
                lambda: model.embed([[1, 2, 3]]),
                lambda: model.generate("the fox", max_tokens=2),
                lambda: model.encode_image(_PIXELS),
            ):
                with suppress(Error):
                    ask()
                    self.counts["answered"] += 1
