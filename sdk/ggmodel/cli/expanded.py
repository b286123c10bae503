"""Options that several commands share, as the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from functools import lru_cache, wraps
from typing import Annotated, Any, get_type_hints

import typer

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def option(default: Any, help: str, *flags: str, metavar: str | None = None) -> Any:
    """A field of such a dataclass."""
    return field(default=default, metadata={"": typer.Option(*flags, help=help, metavar=metavar)})


def expanded(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, in place of each parameter typed as a dataclass, an option a field.

    Args:
        without: fields that it has no option for.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        types = get_type_hints(command, None, None, True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        for own in inspect.signature(command).parameters.values():
            kind = types[own.name]
            if isinstance(kind, type) and is_dataclass(kind):
                options = [p for p in _options(kind) if p.name not in without]
                groups[own.name] = kind, [p.name for p in options]
                parameters += options
            else:
                parameters.append(own.replace(kind=_KEYWORD, annotation=kind))

        @wraps(command)
        def with_options(**given: Any) -> None:
            for name, (kind, options) in groups.items():
                given[name] = kind(**{option: given.pop(option) for option in options})
            command(**given)

        setattr(with_options, "__signature__", inspect.Signature(parameters))  # noqa: B010
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


@lru_cache
def _options(kind: Any) -> list[inspect.Parameter]:
    """A parameter for each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        for about in f.metadata.values():
            hints[f.name] = Annotated[hints[f.name], about]
    return [
        inspect.Parameter(f.name, _KEYWORD, default=f.default, annotation=hints[f.name])
        for f in fields(kind)
    ]
