"""`ggmodel check`: check a file against the declaration of its architecture."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from .options import File, Json, Mmproj, Models, Strict, Where
from .terminal import console, count, report, table

if TYPE_CHECKING:
    from ..workbench.check import Check, TensorCheck


def check(
    file: File,
    models: Models = None,
    strict: Strict = True,
    mmproj: Mmproj = None,
    as_json: Json = False,
    where: Where = False,
) -> None:
    """Check a file against the declaration of its architecture.

    Lists every tensor with the field it fills, then what is missing, unused or of wrong shape, keys
    of a config.json that matter and are not read, and errors in a trace of the graph. The exit
    status is 1 if there is a problem.
    """
    from ..runner.loading.sources import open_source
    from ..workbench.check import check as check_source

    source = open_source(file, mmproj, models)
    with source:
        result = check_source(source, models=models, strict=strict)
    report(as_json, {"ok": result.ok, **asdict(result)}, lambda: _print(result), result.ok)


def _print(result: Check) -> None:
    out = console()
    rows = [(t.name, _filled(t), t.dtype, str(list(t.shape))) for t in result.tensors]
    if rows:
        out.print(table(rows, ("tensor", "field", "dtype", "shape"), fold=1))
    for title, findings, style in (
        ("problems", result.problems, "red"),
        ("warnings", result.warnings, "yellow"),
    ):
        if findings:
            out.print()
            out.print(title, style=f"bold {style}")
            out.print(table([(f"  {f.kind}", f.message) for f in findings], keep="\n"))
    out.print()
    out.print(_verdict(result), style="bold green" if result.ok else "bold red")


def _filled(t: TensorCheck) -> str:
    if not t.fields:
        return f"({t.status})"
    more = len(t.fields) - 1
    made = " (computed)" if t.status == "computed" else ""
    return t.fields[0] + (f" and {more} more" if more else "") + made


def _verdict(result: Check) -> str:
    if not result.ok:
        what = f" as {result.architecture}" if result.architecture else ""
        return f"{result.name} cannot be loaded{what}: {count(len(result.problems), 'problem')}"
    used = sum(t.status == "used" for t in result.tensors)
    warned = f", {count(len(result.warnings), 'warning')}" if result.warnings else ""
    return (
        f"{result.name} fits {result.architecture}: {used} tensors used, the forward traced{warned}"
    )
