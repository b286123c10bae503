"""The interface of fuzzers: they make random cases of one kind, and run one."""

from __future__ import annotations

import base64
import ctypes
import gc
import importlib
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from ggmodel.errors import Error

Case = Any  # plain data: None, bool, int, float, str, bytes, and lists and dicts of these
Note = Callable[[str], None]
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it


class Wrong(Exception):
    """A wrong result: Wrong("the same words each time", "details of the case")."""


class Fuzzer(ABC):
    """Random cases of one kind. A child process makes one and runs many cases on it.

    A case may end well, or with a `legal` exception. All else is a finding: another exception, also
    in a thread or a destructor, the end of the process, more time than `patience`, and memory
    beyond `memory`, which shows as an exception or an end.

    Attributes:
        name: of the kind, in a table and in file names.
        weight: share of the time of all fuzzers.
        unit: the name in `counts` of what the table counts beside cases; "" for nothing.
        patience: seconds for one case.
        memory: bytes of address space beyond what the child has before its first case.
        legal: exceptions that a case may end with.
        counts: whatever is counted, since the last report.
        folder: for files; empty at first, removed with the child.
    """

    name: ClassVar[str]
    weight: ClassVar[float] = 1.0
    unit: ClassVar[str] = ""
    patience: ClassVar[float] = 30.0
    memory: ClassVar[int] = 1 << 30
    legal: ClassVar[tuple[type[Exception], ...]] = (Error,)

    def __init__(self, folder: Path):
        self.folder = folder
        self.counts: Counter[str] = Counter()

    def open(self) -> None:  # noqa: B027 (most fuzzers need none)
        """Makes what all cases share, before memory is limited."""

    @abstractmethod
    def make(self, random: Random) -> Case:
        """A case. It hangs on `random` alone; `open` was not necessarily called."""

    @abstractmethod
    def run(self, case: Case, note: Note) -> None:
        """Runs a case. `note` adds a line to what is shown if the process ends in it."""

    def measured(self) -> tuple[int, int, int]:
        """Resident bytes without reusable free ones, open files, threads: of what must not grow."""
        gc.collect()
        if _trim is not None:
            _trim(0)
        return usage(os.getpid())

    def close(self) -> None:  # noqa: B027
        """Frees what `open` made."""


def usage(process: int) -> tuple[int, int, int]:
    """Resident bytes, open files and threads of a process."""
    folder = Path("/proc") / str(process)
    resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))


def find(path: str) -> type[Fuzzer]:
    """The class called "module:Class"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def path_of(fuzzer: type[Fuzzer]) -> str:
    """The inverse of `find`."""
    return f"{fuzzer.__module__}:{fuzzer.__qualname__}"


def seeded(fuzzer: Fuzzer, seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    return fuzzer.make(Random(f"{seed}:{fuzzer.name}:{number}"))


def to_json(case: Case) -> str:
    """A case as text."""
    return json.dumps(_packed(case))


def from_json(text: str) -> Case:
    """The inverse of `to_json`."""
    return json.loads(text, object_hook=_unpacked)


def _packed(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(item) for item in value]
    return value


def _unpacked(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value
