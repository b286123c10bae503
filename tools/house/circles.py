"""Circles of imports between files, annotations' included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from .source import Source

Module = tuple[str, ...]


def circles(sources: list[Source]) -> list[list[str]]:
    """The files that import each other, directly or through others: a list for each circle.

    Imports within functions and under TYPE_CHECKING count, too.
    """
    names = {source.module: source.name for source in sources}
    graph = {source.module: imported(source, names) for source in sources}
    components = _components(graph)
    return sorted(sorted(names[m] for m in one) for one in components if len(one) > 1)


def imported(source: Source, modules: Mapping[Module, object]) -> set[Module]:
    """Those of `modules` that a file imports: a module rather than the package that it is taken
    from."""
    targets = set[Module]()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            targets.update(tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                up = node.level - source.is_package
                base = source.module[: len(source.module) - up] + base
            for alias in node.names:
                targets.add((*base, alias.name) if (*base, alias.name) in modules else base)
    return {target for target in targets if target in modules} - {source.module}


def _components(graph: Mapping[Module, set[Module]]) -> Iterator[list[Module]]:
    """The strongly connected components of a graph, by Tarjan's algorithm."""
    order: dict[Module, int] = {}
    lowest: dict[Module, int] = {}
    path: list[Module] = []
    on_path = set[Module]()

    def visit(node: Module) -> Iterator[list[Module]]:
        order[node] = lowest[node] = len(order)
        path.append(node)
        on_path.add(node)
        for target in sorted(graph[node]):
            if target not in order:
                yield from visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in on_path:
                lowest[node] = min(lowest[node], order[target])
        if lowest[node] == order[node]:
            begin = path.index(node)
            component = path[begin:]
            del path[begin:]
            on_path.difference_update(component)
            yield component

    for node in sorted(graph):
        if node not in order:
            yield from visit(node)
