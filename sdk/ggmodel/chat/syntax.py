"""The syntax of chat templates: what they add to Jinja's, and what it may cost to compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from ..bounds import limits
from .limits import TooCostly, costs

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
