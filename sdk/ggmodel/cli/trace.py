"""`ggmodel trace`: the intermediate tensors of a prompt."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .loading import Loading
from .options import File, Json, Prompt, Tokens, expanded, prompt_of
from .requests import MediaFile
from .terminal import console, count, report, table

if TYPE_CHECKING:
    from ..workbench.trace import OperandValue, Statistics, Trace, Value

_NUMBERS = ("min", "max", "mean", "rms")


@expanded("rpc", "context_length", "parallel")
def trace(
    file: File,
    prompt: Prompt = None,
    tokens: Tokens = None,
    pattern: Annotated[
        str,
        typer.Option(
            "--filter", metavar="GLOB", help="Show and save only tensors of these names: 'blk.0.*'."
        ),
    ] = "*",
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the tensors' values, as .npz or .safetensors."),
    ] = None,
    as_json: Json = False,
    *,
    item: MediaFile,
    loading: Loading,
) -> None:
    """Show every intermediate tensor of a prompt.

    In execution order, with statistics. The first tensor with NaN or infinity is marked, with the
    operands that it was computed from; the exit status then is 1.
    """
    from ..storage import check_target
    from ..workbench.trace import save as write
    from ..workbench.trace import trace as look

    inputs: Any = prompt_of(prompt or None, tokens)
    media = item.one(tokens)
    if save is not None and not save.endswith((".npz", ".safetensors")):
        raise ConfigError(f"{save}: values are saved as .npz or .safetensors")
    if save is not None:
        check_target(save)
    with loading.load(file, rpc=()) as model:
        prepared = None if media is None else (media[0], model.engine.images.prepare(*media))
        result = look(model, inputs, item=prepared, names=pattern, keep=save is not None)
    if save is not None:
        write(save, result.kept)
    values = asdict(replace(result, kept={})) | {"ok": result.ok}
    del values["kept"]
    report(as_json, values, lambda: _print(result), result.ok)


def _print(result: Trace) -> None:
    out = console()
    header = ("  name", "op", "shape", "dtype", *_NUMBERS, "NaN", "Inf")
    rows = [
        (
            ("→ " if v is result.first else "  ") + v.name,
            v.op,
            str(list(v.shape)),
            v.dtype,
            *_cells(v.statistics),
        )
        for v in result.values
    ]
    grid = table(rows, header, right="2456789", fold=0)
    for line, value in zip(grid.rows, result.values, strict=True):
        line.style = "" if value.statistics.finite else "red"
    out.print(grid)
    out.print()
    if result.first is None:
        n, of = count(len(result.values), "tensor"), count(result.tokens, "token")
        what = f"{result.model}: {n} of {of}, all finite"
        masks = sum(not v.statistics.finite for v in result.values)
        if masks:
            what = what.replace("all finite", f"{masks} of them masks with infinities, no NaN")
        out.print(what, style="bold green")
        return
    _print_first(out, result.first, result.operands)


def _print_first(out: Any, first: Value, operands: list[OperandValue]) -> None:
    what = "NaN" if first.statistics.nan else "infinity"
    verdict = f"{first.name} is where the first {what} comes from: the result of {first.op}"
    out.print(verdict, style="bold red")
    out.print(f"  at {first.line}")
    rows = [
        (f"  {o.kind}", o.name, str(list(o.shape)), o.dtype, *_cells(o.statistics))
        for o in operands
    ]
    out.print(
        table(rows, ("  it read", "", "shape", "dtype", *_NUMBERS, "NaN", "Inf"), right="456789")
    )


def _cells(s: Statistics | None) -> tuple[str, ...]:
    if s is None:
        return ("",) * 6
    numbers = (f"{v:.4g}" for v in (s.min, s.max, s.mean, s.rms))
    return (*numbers, str(s.nan or ""), str(s.inf or ""))
