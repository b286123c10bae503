"""Arguments of a wrong type or size as errors of ours, for the whole interface at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ..errors import Error

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_WRONG = (TypeError, ValueError, OverflowError, AttributeError)
_OPERATORS = ("__mul__", "__rmul__", "__truediv__")


def checked_call(error: type[Error]) -> Callable[[F], F]:
    """Has a function raise `error` where its arguments make Python or numpy fail."""

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Error:
                raise
            except _WRONG as reason:
                names = [n for n in inspect.signature(function).parameters if n != "self"]
                what = f"{function.__name__}({', '.join(names)})"
                raise error(f"{what} cannot take these arguments: {reason}") from reason

        return call  # type: ignore[return-value]  # of the same signature

    return decorate


def checked_methods(error: type[Error], *without: str) -> Callable[[C], C]:
    """`checked_call` for the public methods of a class and its bases, and its operators.

    Args:
        without: methods that call functions of the caller's, whose own errors pass.
    """

    def decorate(cls: C) -> C:
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            public = not name.startswith("_") and name not in without
            if public or name in _OPERATORS:
                setattr(cls, name, checked_call(error)(method))
        return cls

    return decorate
