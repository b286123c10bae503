"""`ggmodel show` and `check`: the contents of a file, and its fit to the declaration."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import File, Json, Mmproj, Models, Strict, Where
from .terminal import console, count, report, size, table

if TYPE_CHECKING:
    from ..workbench.check import Check, TensorCheck
    from ..workbench.show import Description

_LONG = 72  # characters of a string that are shown
_UNCHECKED = (
    "checked: names, shapes and keys; not checked: any number that the model computes, which "
    "`ggmodel diff` and `ggmodel golden` compare with transformers"
)


def show(
    file: File,
    models: Models = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List all tensors, too.")] = False,
    as_json: Json = False,
    where: Where = False,
) -> None:
    """Show the metadata, hyperparameters and sizes of a model.

    Hyperparameters are those of the architecture where it is known.
    """
    from ..gguf_file import open_gguf
    from ..workbench.show import describe

    if Path(file).is_dir():
        from ..convert import CheckpointSource

        opened = CheckpointSource.open(file, models=models)
    else:
        opened = open_gguf(file, parts=getattr(file, "parts", ()))
    with opened as source:
        description = describe(source, models)
    report(as_json, asdict(description), lambda: _print_description(description, tensors))


def _print_description(d: Description, tensors: bool) -> None:
    out = console()
    version = "" if d.version is None else f"GGUF version {d.version}, "
    parts = "" if len(d.files) == 1 else f"{len(d.files)} files, "
    out.print(f"{d.name}: {version}{parts}{d.architecture or 'no architecture'}")

    _heading(out, "metadata")
    out.print(table([(e.key, e.type, _value(e.value)) for e in d.metadata]))

    _heading(out, "hyperparameters")
    if d.hyperparameters is None:
        out.print(f"unknown: {d.note or ''}", style="yellow")
    else:
        rows = [(h.name, _value(h.value), h.key or "default") for h in d.hyperparameters]
        out.print(table(rows, ("name", "value", "from")))

    if tensors:
        _heading(out, "tensors")
    for layer in d.layers if tensors else ():
        name = layer.name or "outside of layers"
        out.print(f"{name}: {len(layer.tensors)} tensors, {size(layer.nbytes)}", style="bold")
        rows = [
            (f"  {t.name}", t.dtype, str(list(t.shape)), f"{t.nbytes:,} bytes")
            for t in layer.tensors
        ]
        out.print(table(rows, right="3"))

    _heading(out, "total")
    totals = [
        (t.dtype, f"{t.tensors} tensors", f"{t.parameters:,} parameters", size(t.nbytes))
        for t in d.totals
    ]
    all_of_it = ("all", f"{d.tensors} tensors", f"{d.parameters:,} parameters", size(d.nbytes))
    out.print(table([*totals, all_of_it], right="123"))


def _heading(out: Any, title: str) -> None:
    out.print()
    out.print(title, style="bold underline")


def _value(value: Any) -> str:
    from ..workbench.show import ArraySummary

    if isinstance(value, ArraySummary):
        items = [_value(item) for item in value.first]
        if len(items) < value.length:
            items.append(f"… ({value.length:,} items)")
        return f"[{', '.join(items)}]"
    if isinstance(value, str):
        quoted = json.dumps(value[:_LONG], ensure_ascii=False)
        return quoted + (f"… ({len(value):,} characters)" if len(value) > _LONG else "")
    if isinstance(value, float):
        return _shortest(value)
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _shortest(value: float) -> str:
    """1e-05 rather than 9.999999747378752e-06 for a number that was stored in 32 bits."""
    try:
        stored = struct.pack("f", value)
    except OverflowError:
        return str(value)
    if struct.unpack("f", stored)[0] != value:
        return str(value)
    # Nine digits tell any two such numbers apart.
    digits = (f"{value:.{n}g}" for n in range(1, 10))
    return str(float(next(d for d in digits if struct.pack("f", float(d)) == stored)))


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
    from ..loading import open_source
    from ..workbench.check import check as check_source

    source = open_source(file, mmproj, models)
    with source:
        result = check_source(source, models=models, strict=strict)
    report(as_json, {"ok": result.ok, **asdict(result)}, lambda: _print_check(result), result.ok)


def _print_check(result: Check) -> None:
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
    if result.ok:
        out.print(_UNCHECKED, style="dim")


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
