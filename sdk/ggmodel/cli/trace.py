"""`ggmodel trace`: the intermediate tensors of a prompt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .loading import Loading
from .options import File, Json, Prompt, Tokens, expanded, option, prompt_of
from .requests import MediaFile
from .terminal import console, count, printable, report, table

if TYPE_CHECKING:
    from ..runner import LoadedModel
    from ..workbench.trace import OperandValue, Statistics, Trace, Value

_NUMBERS = ("min", "max", "mean", "rms")


@dataclass(kw_only=True)
class Drawings:
    """Files of pictures to draw in place of the table."""

    heat: str | None = option(
        None, "Draw the norm of each layer's result by token.", metavar="OUT.svg"
    )
    lens: str | None = option(
        None, "Draw the likeliest token after each layer (logit lens).", metavar="OUT.svg"
    )
    attention: str | None = option(
        None, "Draw the attention weights of a layer (--layer).", metavar="OUT.svg"
    )
    layer: int = option(0, "Layer of --attention, from 0.")
    head: int | None = option(
        None, "Attention head of the layer; default: the mean of all heads.", metavar="N"
    )

    @property
    def files(self) -> list[str]:
        """The pictures that are wanted."""
        return [path for path in (self.heat, self.lens, self.attention) if path is not None]

    def draw(self, model: LoadedModel, prompt: Any) -> None:
        """Writes them, each with the tokens' text."""
        from ..storage import write_text
        from ..workbench import inside
        from ..workbench.heat import heat_map

        if self.heat is not None:
            write_text(self.heat, heat_map(inside.norms(model, prompt), "norms by layer"))
        if self.lens is not None:
            grid = inside.logit_lens(model, prompt)
            write_text(self.lens, heat_map(grid, "likeliest next token after each layer"))
        if self.attention is not None:
            grid = inside.attention_grid(model, prompt, self.layer, self.head)
            of = "all heads" if self.head is None else f"head {self.head}"
            title = f"attention of layer {self.layer}, {of}: from rows to columns"
            write_text(self.attention, heat_map(grid, title))


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
    drawings: Drawings,
    item: MediaFile,
    loading: Loading,
) -> None:
    """Show every intermediate tensor of a prompt.

    In execution order, with statistics. The first tensor with NaN or infinity is marked, with the
    operands that it was computed from; the exit status then is 1.
    """
    from ..chat.messages import OPTIONS
    from ..storage import check_target
    from ..workbench.trace import save as write
    from ..workbench.trace import trace as look

    inputs: Any = prompt_of(prompt or None, tokens)
    media = item.one(tokens)
    if save is not None and not save.endswith((".npz", ".safetensors")):
        raise ConfigError(f"{save}: values are saved as .npz or .safetensors")
    if save is not None:
        check_target(save)
    if drawings.files:
        more: Any = {} if drawings.attention is None else {"flash_attention": "off"}
        for path in drawings.files:
            check_target(path, force=True)
        with loading.load(file, rpc=(), **more) as model:
            items = {} if media is None else {OPTIONS[media[0]]: [media[1]]}
            drawings.draw(model, model.prompts.with_items(inputs, items))
        print(printable(f"drawn: {', '.join(drawings.files)}"))
        return
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
