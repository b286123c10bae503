"""`ggmodel compare`: the quality that a quantised file has left, beside its original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .loading import Loading
from .options import File, Json, Text, complete_model, existing, expanded, read_text
from .terminal import console, count, printable, progress_bar, report, size, table

if TYPE_CHECKING:
    from ..runner import LoadedModel
    from ..workbench.compare import Comparison
    from ..workbench.compare.modules import ModuleLoss

_SHOWN = 20  # modules in the table

_Other = Annotated[
    str,
    typer.Argument(
        callback=existing,
        autocompletion=complete_model,
        metavar="QUANTISED",
        help="The file to judge: the same model in other types.",
        show_default=False,
    ),
]
_Modules = Annotated[
    str | None,
    typer.Option(
        metavar="GLOB",
        help="Measure the modules of these names one by one: 'layers.*' or 'layers.*.attn'.",
    ),
]


@expanded("context_length", "parallel", "mmproj", "type")
def compare(
    original: File,
    quantised: _Other,
    text: Text,
    context_length: Annotated[int, typer.Option(help="Context length: tokens of a chunk.")] = 512,
    by_module: Annotated[
        bool, typer.Option("--by-module", help="Measure the loss by each module's weights alone.")
    ] = False,
    modules: _Modules = None,
    heat: Annotated[
        str | None,
        typer.Option(metavar="OUT.svg", help="Draw the loss by layer and module."),
    ] = None,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Compare a quantised model with its original on a text.

    KL divergence of the next token, in nats, as llama.cpp's --kl-divergence computes it: the text
    is cut into chunks of the context length, and the tokens of each one's second half count.

    --by-module, --modules and --heat compute the first chunk again for each module, by the original
    with the quantised weights of this module alone.
    """
    from ..storage import check_target, write_text
    from ..workbench.compare import compare as score

    if heat is not None:
        check_target(heat, force=True)
    content = read_text(text, "")
    how: dict[str, Any] = {"context_length": context_length, "mmproj": ""}
    result: Comparison | None = None
    losses: list[ModuleLoss] = []
    with loading.load(original, **how) as a, loading.load(quantised, **how) as b:
        with progress_bar("comparing") as progress:
            for result in score(a, b, content, context_length):
                shown = f"KL divergence {result.divergences.mean():.5f}"
                progress(result.chunks / result.of_chunks, shown)
        if by_module or modules is not None or heat is not None:
            losses = _by_module(a, b, content, modules, loading.arguments() | how)
        names = [_about(model) for model in (a, b)]
    assert result is not None  # a text has a chunk
    if heat is not None:
        from ..workbench.compare.modules import grid
        from ..workbench.heat import heat_map

        write_text(heat, heat_map(grid(losses), "KL divergence by module, nats"))
    compared = result
    values = {"original": names[0], "model": names[1], **compared.as_dict()}
    if losses:
        values["by_module"] = [loss.as_dict() for loss in losses]
    report(as_json, values, lambda: _print(values, losses, heat))


def _by_module(
    original: LoadedModel,
    quantised: LoadedModel,
    text: str,
    names: str | None,
    options: dict[str, Any],
) -> list[ModuleLoss]:
    from ..workbench.compare.modules import by_module, modules_of

    total = len(modules_of(original.report, names))
    losses: list[ModuleLoss] = []
    length = options["context_length"]
    with progress_bar("module by module") as progress:
        for loss in by_module(original, quantised, text, length, names=names, **options):
            losses.append(loss)
            progress(len(losses) / total, loss.module)
    return losses


def _about(model: LoadedModel) -> dict[str, Any]:
    from ..gguf_file.source import quantization_of

    nbytes = sum(t.nbytes for t in model.source.tensors.values())
    weights = sum(t.n_elements for t in model.source.tensors.values())
    return {
        "file": model.source.name,
        "type": quantization_of(model.source),
        "bytes": nbytes,
        "bits_per_weight": 8 * nbytes / weights,
    }


def _print(values: dict[str, Any], losses: list[ModuleLoss], heat: str | None) -> None:
    out, kl, same = console(), values["kl_divergence"], values["same_top"]
    models = [values["original"], values["model"]]
    rows = [
        (
            m["file"],
            m["type"],
            size(m["bytes"]),
            f"{m['bits_per_weight']:.2f}",
            f"{p['value']:.4f} ± {p['error']:.4f}",
        )
        for m, p in zip(models, values["perplexity"], strict=True)
    ]
    out.print(table(rows, ("model", "type", "size", "bits", "perplexity"), right="234", fold=0))
    of = f"{count(values['tokens'], 'token')} ({count(values['chunks'], 'chunk')})"
    out.print()
    out.print(f"KL divergence, nats, over {of}: mean {kl['mean']:.6f} ± {kl['error']:.6f}")
    names = ("median", "90%", "95%", "99%", "99.9%", "max")
    out.print("  " + ", ".join(f"{name.replace('%', ' %')} {kl[name]:.6f}" for name in names))
    out.print(f"same likeliest token: {same['value']:.2%} ± {same['error']:.2%}")
    out.print()
    places = [
        (
            f"{row['from']}–{row['to']}",
            f"{row['kl_divergence']:.6f}",
            f"{row['same_top']:.1%}",
        )
        for row in values["by_position"]
    ]
    out.print(table(places, ("tokens before", "KL divergence", "same token"), right="12", fold=0))
    if losses:
        _print_modules(losses)
    if heat is not None:
        out.print(printable(f"drawn: {heat}"))


def _print_modules(losses: list[ModuleLoss]) -> None:
    out = console()
    whole = sum(loss.kl_divergence for loss in losses)
    worst = sorted(losses, key=lambda loss: -loss.kl_divergence)
    rows = [
        (
            loss.module,
            f"{loss.original} → {loss.model}",
            size(loss.nbytes),
            f"{loss.kl_divergence:.6f}",
            f"{loss.kl_divergence / whole:.1%}" if whole else "",
        )
        for loss in worst[:_SHOWN]
    ]
    out.print()
    header = ("module", "types", "size", "KL divergence", "of the sum")
    out.print(table(rows, header, right="234", fold=0))
    if len(losses) > _SHOWN:
        out.print(f"and {len(losses) - _SHOWN} more; --json has all")
