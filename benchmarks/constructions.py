"""Notes of each object that is constructed of a class of the SDK, in a process and its children.

`environment(FOLDER)` has Python import this module before all else, by a `sitecustomize` that it
writes into the folder; each process then adds a line to a file of its own there for each object:
nanoseconds of the system's monotonic clock, which all processes share, and the class.

Noted are classes that are defined by a `class` statement in a module of `ggmodel`, but for
enumerations. Objects that C makes without calling the class, such as `_replace` of a named tuple,
escape; those of msgspec, decoded or called, do not.
"""

from __future__ import annotations

import builtins
import enum
import inspect
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIRST = """import sys
sys.path.insert(0, {root!r})
from benchmarks import constructions
sys.path.remove({root!r})
constructions.note({folder!r})
"""


@dataclass(frozen=True, order=True)
class Construction:
    """An object that was constructed.

    Attributes:
        time: nanoseconds of the monotonic clock. name: of its class, "ggmodel.ml.node.Node".
    """

    time: int
    process: int
    name: str


def environment(folder: Path, import_path: str) -> dict[str, str]:
    """The variables for a Python whose objects are noted in this folder."""
    text = _FIRST.format(root=str(Path(__file__).resolve().parents[1]), folder=str(folder))
    (folder / "sitecustomize.py").write_text(text, "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), import_path))}


def constructions(folder: Path) -> list[Construction]:
    """All that was noted there so far, in order of time."""
    noted = []
    for path in folder.glob("*.txt"):
        for line in path.read_text("utf-8").splitlines():
            nanoseconds, name = line.split(" ", 1)
            noted.append(Construction(int(nanoseconds), int(path.stem), name))
    return sorted(noted)


def note(folder: str) -> None:
    """Notes the objects of classes that are defined in this process from now on."""
    file = os.open(Path(folder, f"{os.getpid()}.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def constructed(kind: type) -> None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name.startswith("ggmodel."):
            os.write(file, f"{time.monotonic_ns()} {name}\n".encode())

    _note_structs(constructed)
    build = builtins.__build_class__

    def build_class(*arguments: Any, **options: Any) -> Any:
        kind = build(*arguments, **options)
        if isinstance(kind, type) and kind.__module__.startswith("ggmodel."):
            _note_class(kind, constructed)
        return kind

    builtins.__build_class__ = build_class


def _note_structs(constructed: Callable[[type], None]) -> None:
    """msgspec calls `__post_init__` of what it decodes, and no `__new__`."""
    try:
        import msgspec
    except ImportError:  # then there are none
        return

    class Struct(msgspec.Struct):
        def __post_init__(self) -> None:
            constructed(type(self))

    msgspec.Struct = Struct  # type: ignore[misc]


def _note_class(kind: type, constructed: Callable[[type], None]) -> None:
    if not issubclass(kind, (enum.Enum, type)) and not hasattr(kind, "__struct_fields__"):
        kind.__new__ = _New(kind, constructed)  # type: ignore[method-assign]


class _New:
    """The `__new__` of a class, which notes the object first. It looks like `__init__` to who
    inspects the class, as it would without."""

    def __init__(self, kind: type, constructed: Callable[[type], None]):
        own = kind.__dict__.get("__new__")
        self._kind, self._own = kind, own and own.__func__
        self._constructed = constructed

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._own or self._kind.__init__)

    def __call__(self, kind: type, /, *arguments: Any, **options: Any) -> Any:
        made = [base.__dict__["__new__"] for base in kind.__mro__ if "__new__" in base.__dict__]
        place = made.index(self)
        if place == 0:  # no class below has called this one
            self._constructed(kind)
        if self._own is not None:
            return self._own(kind, *arguments, **options)
        new = made[place + 1]
        new = getattr(new, "__func__", new)
        return new(kind) if new is object.__new__ else new(kind, *arguments, **options)
