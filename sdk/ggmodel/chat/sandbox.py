"""The Jinja environment of chat templates: as in transformers, but with limits.

The syntax adds to Jinja's, and bounds what a template may cost to compile.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType
from typing import Any

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import (
    BlockReference,
    Context,
    LoopContext,
    Macro,
    Undefined,
    markup_join,
    str_join,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace, pass_eval_context
from jinja2.visitor import NodeTransformer

from ..bounds import limits
from .limits import (
    FILTER_CHECKS,
    METHODS,
    TooCostly,
    costs,
    counting,
    data,
    each,
    join,
    printable,
    printed_width,
)

# Names of our own filters, which no template can spell.
MADE, JOINED, EACH = "a container", "a concatenation", "a loop"
_SCOPES = ("for", "macro", "call")
_ENDS = tuple(f"end{name}" for name in _SCOPES)
_DEEPEST = 20  # Python nests no more loops


class Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}`: marks the model's text, for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Measured(Extension):
    """Refuses templates that would take long to compile, before they are parsed.

    Compiling takes a time that grows with the number of symbols, and those in a loop or macro are
    read again for each of these around them.
    """

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        depth = symbols = 0
        begins = False
        for token in stream:
            if begins:
                depth += (token.value in _SCOPES) - (token.value in _ENDS)
            begins = token.type == "block_begin"
            symbols += 1 + max(depth, 0)
            if depth > _DEEPEST:
                raise TooCostly(f"it nests loops and macros more than {_DEEPEST} deep")
            if symbols > limits.template_symbols:
                raise TooCostly(
                    f"it has more than {limits.template_symbols:,} symbols, those in loops and "
                    "macros counted several times (limits.template_symbols)"
                )
            costs().tick()
            yield token


class Generator(CodeGenerator):
    """Writes the Python code of a template, and looks at the clock."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        costs().tick()
        return super().visit(node, *args, **kwargs)


class Counted(NodeTransformer):
    """Wraps the containers, slices and loops of a template in functions that count them."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(JOINED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter(EACH, node.iter)
        return node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(MADE, node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        # Targets of assignments are no values, and nothing here understands `x[1:2, 3]`.
        plain = node.ctx == "load" and not any(isinstance(i, nodes.Slice) for i in node.items)
        return _filter(MADE, node) if plain else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(MADE, node) if isinstance(node.arg, nodes.Slice) else node


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


FILE = "<chat template>"  # the file name in tracebacks
# Unsupported: for web pages, costlier than their results show, or random.
NO_FILTERS = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
_TIME_FORMAT = 1000  # characters
_INDENT = 100


class Refusal(Exception):
    """Raised by a template through `raise_exception`."""


def _raise_exception(message: Any = "") -> None:
    raise Refusal(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _TIME_FORMAT:
        raise ValueError(f"a time format has at most {_TIME_FORMAT} characters")
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escapes for HTML."""
    if (indent if isinstance(indent, int) else len(indent or "")) > _INDENT:
        raise ValueError(f"tojson indents by at most {_INDENT}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return join(encoder.iterencode(value))


class _Dict:
    """`dict` as an instance: the attributes of a class lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        if args and not isinstance(args[0], Mapping):
            args = (each(args[0]), *args[1:])
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, *value: Any) -> dict[Any, Any]:
        return dict.fromkeys(each(keys), *value)

    def __repr__(self) -> str:
        return "<dict>"


class _Namespace(Namespace):
    """`namespace` with a short repr and without private names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may name one `self`
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Cycler(Cycler):
    def __repr__(self) -> str:
        return "<Cycler>"


class _Joiner(Joiner):
    def __repr__(self) -> str:
        return "<Joiner>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names like {name!r}")


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        printed_width(format_spec)
        return costs().made(super().format_field(value, format_spec))


@pass_eval_context
def _concatenate(context: nodes.EvalContext, values: list[Any]) -> str:
    costs().joined("", values)
    return markup_join(values) if context.autoescape else str_join(values)


def _written(value: Any) -> str:
    """The text that `{{ value }}` prints."""
    return value if isinstance(value, str) else costs().made(str(printable(value)))


def _checked(function: Callable[..., Any], check: Callable[..., Any] | None) -> Callable[..., Any]:
    """A filter or test with its arguments checked and its result counted."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        costs().tick()
        if check is not None:
            args = (*args[:skipped], *check(*args[skipped:], **kwargs))
        made = function(*args, **kwargs)
        return costs().made(_Results(made) if isinstance(made, GeneratorType) else made)

    return run


class _Results:
    """The results of a filter, one after the other, with a repr that gives no address away."""

    def __init__(self, results: Iterator[Any]):
        self._results = results

    def __iter__(self) -> Iterator[Any]:
        return self._results

    def __next__(self) -> Any:
        return next(self._results)

    def __repr__(self) -> str:
        return "<results of a filter>"


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounded values and a check of the time in every loop."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    concat = staticmethod(join)  # type: ignore[assignment]
    code_generator_class = Generator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, Measured, loopcontrols],
            finalize=_written,
            # Jinja would try to compute each part of an expression again for all parts around it.
            optimized=False,
        )
        kept = {name: f for name, f in FILTERS.items() if name not in NO_FILTERS}
        kept |= {"tojson": _tojson, MADE: lambda value: value, JOINED: _concatenate}
        checks = {name: FILTER_CHECKS.get(name, data) for name in kept}
        self.filters = {name: _checked(f, checks[name]) for name, f in kept.items()}
        self.filters[EACH] = each
        self.tests = {name: _checked(test, None) for name, test in TESTS.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
            "cycler": _Cycler,
            "joiner": _Joiner,
        }

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        costs().operation(operator, left, right)
        return costs().made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        costs().need_arguments((*args, *kwargs.values()))
        args = __self._arguments(__obj, args, kwargs)
        return costs().made(super().call(__context, __obj, *args, **kwargs))

    def _arguments(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments to call with; the check of a method may have replaced an iterator."""
        owner = getattr(function, "__self__", None)
        if isinstance(function, (BuiltinMethodType, MethodType)):
            if isinstance(owner, (LoopContext, Cycler, _Dict)):
                return args
            for kind, methods in METHODS:
                if isinstance(owner, kind) and function.__name__ in methods:
                    check = methods[function.__name__]
                    return args if check is None else check(owner, *args, **kwargs)[1:]
        elif isinstance(function, _CALLABLE) or any(function is c for c in _CLASSES):
            return args
        name = getattr(function, "__qualname__", type(function).__name__)
        raise SecurityError(f"{name}() cannot be called")

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not _Namespace or attribute.startswith("_"):
            return super().getattr(obj, attribute)
        # Jinja's own lookup takes ten times as long, in the innermost loops of templates.
        try:
            return getattr(obj, attribute)
        except AttributeError:
            return self.undefined(obj=obj, name=attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, mapped = value.__self__, value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            if mapped:
                (kwargs,), args = args, ()
            return _Formatter(self).vformat(text, args, kwargs)

        return formatted


_CALLABLE = (FunctionType, Macro, LoopContext, BlockReference, Joiner, Undefined, _Dict)
_CLASSES = (_Cycler, _Joiner, _Namespace)
_ENVIRONMENT = Environment()


@lru_cache(maxsize=32)
def _compiled(source: str, *_limits: float) -> Template | Exception:
    """The template, or the error in it, which would take as long to find again."""
    try:
        with counting(0):
            tree = Counted().visit(_ENVIRONMENT.parse(source, filename=FILE))
            tree.set_environment(_ENVIRONMENT)
            code = _ENVIRONMENT.compile(tree, filename=FILE)
        return Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None))
    except MemoryError:
        raise  # another time there may be enough
    except Exception as error:
        error.__cause__ = error.__context__ = error.__traceback__ = None
        return error


def _again(error: Exception) -> Exception:
    """The same error as a new object: raising one adds a traceback to it, which keeps frames."""
    new = copy.copy(error)
    vars(new).update(vars(error))  # Jinja's errors copy a part of it
    return new


def run(source: str, variables: Mapping[str, Any]) -> str:
    """Renders a template; errors of Jinja and of the template pass through."""
    if len(source) > limits.template_characters:
        raise TooCostly(
            f"it has more than {limits.template_characters:,} characters "
            "(limits.template_characters)"
        )
    template = _compiled(source, limits.template_symbols, limits.template_seconds)
    if isinstance(template, Exception):
        raise _again(template)
    with counting(len(variables["messages"])):
        return join(template.generate(variables))
