"""Cases one after the other, of which some may be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ...errors import ConfigError, Error
from .files import Cases

R = TypeVar("R")


def each_case(cases: Cases, only: str | None, work: Callable[[str], Iterable[R]]) -> Iterator[R]:
    """The results of `work` for each case, or for one. A case that fails does not hide the others:
    errors are raised after the last case.

    Raises:
        Error: that of the only case that failed.
        ConfigError: several failed; it says how each did.
    """
    errors: dict[str, Error] = {}
    for name in cases.names:
        if only not in (None, name):
            continue
        try:
            yield from work(name)
        except Error as error:
            errors[name] = error
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        lines = (f"  {name}: {error}" for name, error in errors.items())
        raise ConfigError("\n".join([f"{len(errors)} cases of {cases.folder} failed:", *lines]))
