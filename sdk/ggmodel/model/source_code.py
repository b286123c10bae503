"""The source code of models: annotations, and the lines that errors point at."""

from __future__ import annotations

import inspect
import sys
import traceback
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ArchitectureError, ConfigError, Error, OutOfMemory


def declared(cls: type) -> dict[str, Any]:
    """Annotated name → the value that the class has for it (None without), bases first.

    A subclass may annotate a field anew and keep its tag, or tag it anew and keep its annotation.
    """
    names = [n for base in reversed(cls.__mro__) for n in inspect.get_annotations(base)]
    # Not getattr: some of these are descriptors.
    return {n: inspect.getattr_static(cls, n, None) for n in names}


def check_tags(cls: type, right: type, wrong: type, advice: str) -> None:
    """Refuses tags that would be ignored.

    Raises:
        ConfigError: a tag of the type `right` on a name without annotation, or one of the type
            `wrong`; names the line.
    """
    annotated = declared(cls)
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, wrong):
                raise ConfigError(f"{line_of(base, name)}: {cls.__name__}.{name}: {advice}")
            if isinstance(value, right) and name not in annotated:
                raise ConfigError(
                    f"{line_of(base, name)}: {cls.__name__}.{name} is tagged but has no type; "
                    f"write `{name}: SomeType = ...`"
                )


def type_hints(cls: type) -> dict[str, Any]:
    """The annotations of a class and its bases as types."""
    try:
        return typing.get_type_hints(cls)
    except Exception as error:
        name, text = _unresolved(cls)
        raise ConfigError(
            f"{line_of(cls, name)}: the annotation {text!r} of {cls.__name__}.{name} cannot be "
            f"resolved ({error}); what it names must exist when the module is imported, "
            "not under TYPE_CHECKING alone"
        ) from error


def union_members(hint: Any) -> tuple[bool, tuple[Any, ...]]:
    """Whether None is among the members of a union, and the others."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return False, (hint,)
    members = typing.get_args(hint)
    others = tuple(t for t in members if t is not types.NoneType)
    return len(others) < len(members), others


def _unresolved(cls: type) -> tuple[str, str]:
    for base in cls.__mro__:
        scope = vars(sys.modules.get(base.__module__)) if base.__module__ in sys.modules else {}
        for name, hint in inspect.get_annotations(base).items():
            if isinstance(hint, str):
                try:
                    eval(hint, dict(scope), dict(vars(base)))
                except Exception:
                    return name, hint
    return "", "…"


def line_of(cls: type, field: str = "") -> str:
    """The line of a class or of its field, "file:line", or the file or module if it is unknown."""
    for base in cls.__mro__:
        if field and field not in inspect.get_annotations(base) and field not in vars(base):
            continue
        try:
            lines, first = inspect.getsourcelines(base)
            file = inspect.getsourcefile(base)
        except (OSError, TypeError):
            break
        starts = (f"{field}:", f"{field} :", f"{field} =")
        for i, line in enumerate(lines):
            if field and line.strip().startswith(starts):
                return f"{file}:{first + i}"
        return f"{file}:{first}"
    return file_of(cls) or cls.__module__


@contextmanager
def author_code(what: str, file: str | None, keep: type[Error] = Error) -> Iterator[None]:
    """Runs code of a model's author. Its exceptions become an `ArchitectureError` that names the
    line, or `OutOfMemory`; the original is the cause.

    Args:
        what: the activity, for the message.
        file: of the model; the innermost line in its folder is named.
        keep: errors to pass on, with the line added if they name none.
    """
    try:
        yield
    except keep as error:
        if error.args and "\n  at " not in str(error) and _own_frames(error, file):
            error.args = (f"{error.args[0]}\n  at {_blamed(error, file)}", *error.args[1:])
        raise
    except MemoryError as error:
        if isinstance(error, Error):
            raise
        raise OutOfMemory(f"{_blamed(error, file)}: {what}: memory ran out") from error
    except Exception as error:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
        reason = type(error).__name__ + (f": {text}" if text else "")
        raise ArchitectureError(f"{_blamed(error, file)}: {what}: {reason}") from error


def _blamed(error: Exception, file: str | None) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = _own_frames(error, file) or traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"


def _own_frames(error: Exception, file: str | None) -> list[traceback.FrameSummary]:
    """The frames of a traceback that lie in the folder of a model's file, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if file and Path(file).parent in Path(f.filename).parents]


def file_of(cls: type) -> str | None:
    """The file that a class comes from, if it has one."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None)
