"""Options that several commands share, as the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from functools import lru_cache, wraps
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONTEXT = inspect.Parameter("typer_context", _KEYWORD, annotation=typer.Context)


class Typed:
    """Options that know which of them the user gave.

    Attributes:
        typed: their names.
    """

    typed: ClassVar[frozenset[str]] = frozenset()


def _is_typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def option(default: Any, help: str, *flags: str, metavar: str | None = None) -> Any:
    """A field of such a dataclass."""
    return field(default=default, metadata={"": typer.Option(*flags, help=help, metavar=metavar)})


def expanded(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, in place of each parameter typed as a dataclass, an option a field.

    Args:
        without: fields that it has no option for.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        # Before Python 3.11 get_type_hints hides what is annotated behind a default of None.
        types = inspect.get_annotations(command, eval_str=True)
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
            context = given.pop(_CONTEXT.name, None)
            for name, (kind, options) in groups.items():
                made = given[name] = kind(**{option: given.pop(option) for option in options})
                if isinstance(made, Typed) and context is not None:
                    vars(made)["typed"] = frozenset(o for o in options if _is_typed(context, o))
            command(**given)

        parameters.append(_CONTEXT)
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
