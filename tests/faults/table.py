"""The verdicts as tables for docs/diff.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.faults.rules import RULES
from tests.faults.trial import Result

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
TOOLS = ("check", "golden", "diff")


def effective(results: Iterable[Result]) -> list[Result]:
    """The faults that change the numbers."""
    return [r for r in results if r.shown]


def named(results: Iterable[Result]) -> list[Result]:
    """The faults for which `diff` named a module."""
    return [r for r in results if r.right is not None]


def missed(results: Iterable[Result]) -> list[Result]:
    """The faults that no tool noticed, and those that `diff` named wrongly."""
    return [r for r in effective(results) if not r.by or r.right is False]


def summary(results: list[Result]) -> str:
    """One line."""
    found, places = effective(results), named(results)
    caught, right = sum(bool(r.by) for r in found), sum(bool(r.right) for r in places)
    share = f"{100 * right / len(places):.1f} %" if places else "-"
    return (
        f"{len(results)} faults, {len(found)} change the numbers; {caught} of these are caught; "
        f"diff names a module in {len(places)}, the right one in {right} ({share})"
    )


def by_rule(results: list[Result]) -> list[str]:
    """A row for each rule."""
    lines = [
        "| rule | faults | effective | check | golden | diff | named right | missed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        lines.append(_row(rule, [r for r in results if r.rule == rule]))
    return [*lines, _row("all", results)]


def _row(name: str, results: list[Result]) -> str:
    found, places = effective(results), named(results)
    tools = [str(sum(tool in r.by for r in found)) for tool in TOOLS]
    right = f"{sum(bool(r.right) for r in places)} of {len(places)}"
    missing = str(sum(not r.by for r in found))
    return f"| {' | '.join([name, str(len(results)), str(len(found)), *tools, right, missing])} |"


def by_tool(results: list[Result]) -> list[str]:
    """A row for each set of tools that notice a fault."""
    lines = ["| noticed by | faults |", "|---|---|"]
    sets = [tuple(t for t in TOOLS if t in r.by) for r in effective(results)]
    for tools in sorted(set(sets), key=lambda t: -sets.count(t)):
        lines.append(f"| {', '.join(tools) or 'no tool'} | {sets.count(tools)} |")
    return lines


def healthy(alarms: dict[str, tuple[int, int]]) -> list[str]:
    """A row for each type of weights: comparisons of unmodified models, and false alarms."""
    lines = ["| weights | comparisons | false alarms |", "|---|---|---|"]
    lines += [f"| {dtype.upper()} | {n} | {wrong} |" for dtype, (n, wrong) in alarms.items()]
    return lines


def write(path: Path, results: list[Result], alarms: dict[str, tuple[int, int]]) -> None:
    """Replaces what stands between the marks of a document."""
    text = path.read_text("utf-8")
    before, rest = text.split(BEGIN)
    parts = [by_rule(results), by_tool(results), healthy(alarms)]
    body = "\n\n".join("\n".join(lines) for lines in parts)
    path.write_text(f"{before}{BEGIN}\n{body}\n{END}{rest.split(END)[1]}", "utf-8")
