"""Arguments of a wrong type or size as errors of ours, for the whole interface at once.

Numbers and texts are converted by the annotations of a function's parameters, so that functions
need no checks of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import wraps
from itertools import chain, repeat
from operator import index
from typing import Any, TypeVar

from ..errors import ArgumentError, Error

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_WRONG = (
    TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError, AssertionError
)  # fmt: skip
_OPERATORS = ("__mul__", "__rmul__", "__truediv__")


def integer(value: Any) -> int:
    """The integer; raises TypeError for others, floats and bools included."""
    if isinstance(value, bool):
        raise TypeError(f"{value} is no integer")
    return index(value)


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"{value!r:.80} is text, no number")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value


_CONVERSIONS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "int": (int, integer),
    "float": (float, _number),
    "str": (str, _text),
}
_ANYTHING = (None, None)


class _Annotated:
    """The numbers and texts among a function's parameters, by their annotations."""

    def __init__(self, function: Callable[..., Any]):
        parameters = inspect.signature(function).parameters.values()
        self._named = {p.name: _CONVERSIONS.get(p.annotation, _ANYTHING) for p in parameters}
        placed = [self._named[p.name] for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        others = [self._named[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL]
        self._placed, self._other = placed, others[0] if others else _ANYTHING
        self._typed = [(i, kind) for i, (kind, _) in enumerate(placed) if kind is not None]

    def _fit(self, args: tuple[Any, ...]) -> bool:
        """Whether all of them have their types already, as in most calls."""
        n = len(args)
        for i, kind in self._typed:
            if i >= n:
                return True
            if type(args[i]) is not kind:
                return False
        kind, _ = self._other
        if kind is not None:
            for value in args[len(self._placed) :]:
                if type(value) is not kind:
                    return False
        return True

    def convert(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with the numbers and texts of their annotated types."""
        if not kwargs and self._fit(args):
            return args, kwargs
        converted = list(args)
        kinds = zip(chain(self._placed, repeat(self._other)), args, strict=False)
        for i, ((kind, convert), value) in enumerate(kinds):
            if convert is not None and type(value) is not kind:
                converted[i] = convert(value)
        for name, value in kwargs.items():
            kind, convert = self._named.get(name, _ANYTHING)
            if convert is not None and type(value) is not kind:
                kwargs[name] = convert(value)
        return tuple(converted), kwargs


def _checked(function: F, convert: bool, calls: bool) -> F:
    annotated: _Annotated | None = None  # made at the first call: most have none

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal annotated
        converted = False
        try:
            if convert:
                if annotated is None:
                    annotated = _Annotated(function)
                args, kwargs = annotated.convert(args, kwargs)
            converted = True
            return function(*args, **kwargs)
        except Error:
            raise
        except _WRONG as reason:
            signature = inspect.signature(function)
            if calls and converted and _binds(signature, args, kwargs):
                raise
            names = [n for n in signature.parameters if n not in ("self", "cls")]
            maker, name = function.__qualname__.rpartition(".")[::2]
            shown = maker if name in ("__init__", "__new__") else name
            what = f"{shown}({', '.join(names)})"
            why = str(reason) or type(reason).__name__
            raise ArgumentError(f"{what} cannot take these arguments: {why}") from reason

    call.checked = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]  # of the same signature


def _binds(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def checked_call(*, convert: bool = True, calls: bool = False) -> Callable[[F], F]:
    """Has a function raise `ArgumentError` where its arguments make Python or numpy fail.

    Args:
        convert: arguments annotated `int`, `float` or `str` must be that, or become it without a
            change; else the function checks them itself.
        calls: it calls functions of the caller's, whose own errors pass; of wrong arguments only
            their number and names are told.
    """
    return lambda function: _checked(function, convert, calls)


def checked_methods(*calling: str, own: Collection[str] = ()) -> Callable[[C], C]:
    """`checked_call` for the public methods of a class and its bases, its operators, and the number
    of its constructor's arguments. Methods that are checked already stay as they are.

    Args:
        calling: methods that call functions of the caller's, whose own errors pass.
        own: methods that check the types of numbers themselves.
    """

    def decorate(cls: C) -> C:
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            makes = name == "__init__" and name in vars(cls)
            public = not name.startswith("_") or name in _OPERATORS or makes
            if public and not hasattr(method, "checked"):
                calls = name in calling or (makes and not hasattr(cls, "__dataclass_fields__"))
                setattr(cls, name, _checked(method, name not in own and not makes, calls))
        return cls

    return decorate


@checked_call()
def check_interface(names: dict[str, Any], public: Iterable[str]) -> None:
    """`checked_call` and `checked_methods` for the functions and classes of a module.

    Args:
        names: the module's, which are replaced.
        public: those that are checked; enumerations and protocols stay as they are.
    """
    for name in public:
        if name not in names:
            raise ArgumentError(f"check_interface(names, public): the module has no {name!r:.80}")
        value = names[name]
        if inspect.isfunction(value) and not hasattr(value, "checked"):
            names[name] = _checked(value, convert=True, calls=False)
        elif inspect.isclass(value) and not (
            issubclass(value, (Enum, Exception)) or getattr(value, "_is_protocol", False)
        ):
            checked_methods()(value)
