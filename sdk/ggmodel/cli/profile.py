"""`ggmodel profile`: the time of a step by op, module and layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .expanded import expanded
from .loading import Loading
from .options import File, Json, Repetitions
from .terminal import console, count, report, size, table, with_progress

if TYPE_CHECKING:
    from ..runner import LoadedModel
    from ..workbench.profile import OpGroup, Profile, Workload

_MODULES = 20  # the most that are listed


@expanded("context_length", "parallel")
def profile(
    file: File,
    prompt_length: Annotated[
        int | None,
        typer.Option(
            "--prompt-length",
            "-p",
            metavar="N",
            help="Profile the prefill of a prompt of N tokens.",
        ),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Profile the decode of one token (the default).")
    ] = False,
    image_graph: Annotated[
        bool, typer.Option("--image-graph", help="Profile the encoding of the largest image.")
    ] = False,
    depth: Annotated[
        int, typer.Option("--depth", "-d", metavar="N", help="Tokens in the KV cache before.")
    ] = 0,
    repetitions: Repetitions = 5,
    chrome_trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a timeline for chrome://tracing or Perfetto."),
    ] = None,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Profile the time of a step by op, by module, by layer.

    Every op is timed alone. "GB/s" counts the weights and activations that it moves, compared with
    the memory bandwidth of the same threads, measured on the spot; "GFLOP/s" is compared with
    matrix products of such weights that stay in the CPU's caches.
    """
    from ..atomic import check_target, write_text
    from ..workbench import profile as workbench
    from ..workbench.timeline import chrome_trace as timeline

    works = _works(prompt_length, decode, image_graph, depth)
    if chrome_trace is not None:
        check_target(chrome_trace)
    mmproj = loading.mmproj if image_graph else ""
    length = max(256, *(work.depth + max(1, work.prompt) for work in works))
    with loading.load(file, mmproj=mmproj, context_length=length) as model:
        profiles = workbench.profile(model, works, repetitions)
        results = with_progress(profiles, [work.name for work in works])
        if chrome_trace is not None:
            write_text(chrome_trace, json.dumps(timeline(results)))
        report(as_json, [_json(result) for result in results], lambda: _print(model, results))


def _works(prompt: int | None, decode: bool, image: bool, depth: int) -> list[Workload]:
    from ..workbench.profile import Workload

    if prompt is not None and prompt < 1:
        raise ConfigError(f"--prompt-length {prompt}: give 1 or more")
    if depth < 0:
        raise ConfigError(f"--depth {depth}: give 0 or more")
    works = [Workload(prompt, depth)] if prompt else []
    if decode or (prompt is None and not image):
        works.append(Workload(depth=depth))
    return [*works, Workload(image=True)] if image else works


def _json(result: Profile) -> dict[str, Any]:
    row = {"by_op": result.by_op(), "by_module": result.by_module(), "by_layer": result.by_layer()}
    return {
        "test": result.work.name,
        "n_prompt": result.work.prompt,
        "n_depth": result.work.depth,
        "seconds": result.seconds,
        "seconds_apart": result.seconds_apart,
        "seconds_of_ops": result.seconds_of_ops,
        "overhead_seconds": result.overhead,
        "threads": result.threads,
        "repetitions": result.repetitions,
        "peaks": asdict(result.peaks),
        **{name: [_row_json(r) for r in rows] for name, rows in row.items()},
        "ops": [
            {**asdict(op), "traffic": op.traffic._asdict(), "shape": list(op.shape)}
            for op in result.ops
        ],
    }


def _row_json(row: OpGroup) -> dict[str, Any]:
    rates = {"bytes_per_second": row.bandwidth, "flops_per_second": row.flop_rate}
    return {**asdict(row), **rates}


def _print(model: LoadedModel, results: Sequence[Profile]) -> None:
    from ..workbench.bench import setting

    about = setting(model)
    out = console()
    name = f"{about.model}: {about.architecture}, {about.type}"
    for result in results:
        out.print(f"{name}, {result.work.name}, {count(result.threads, 'thread')}")
        _print_sums(result)
        whole = result.seconds_of_ops
        for title, rows in (
            ("op", result.by_op()),
            ("module", result.by_module()),
            ("layer", result.by_layer()),
        ):
            computed = [row for row in rows if row.computed]
            shown = computed[: _MODULES if title == "module" else None]
            header = (title, "ops", "time", "share", "weights", "activations", "GB/s", "of peak")
            flops = ("GFLOP/s", "of peak") if title == "op" else ()
            cells = [_cells(result, row, whole, bool(flops)) for row in shown]
            out.print()
            out.print(table(cells, (*header, *flops), right="123456789", fold=0))
            if len(shown) < len(computed):
                out.print(f"and {len(computed) - len(shown)} more")
        out.print()


def _print_sums(result: Profile) -> None:
    out, peaks = console(), result.peaks
    computed = sum(bool(op.seconds) for op in result.ops)
    out.print(
        f"the graph at once {_time(result.seconds)}; its ops one by one "
        f"{_time(result.seconds_apart)}, less {result.overhead * 1e6:.1f} µs for each of "
        f"{computed}: {_time(result.seconds_of_ops)}"
    )
    if peaks.bandwidth is not None:
        out.print(f"memory: {peaks.bandwidth / 1e9:.1f} GB/s read with these threads")
    if peaks.flops:
        rates = ", ".join(f"{dtype} {rate / 1e9:.0f}" for dtype, rate in peaks.flops.items())
        out.print(f"products in the caches, GFLOP/s: {rates}")


def _cells(result: Profile, row: OpGroup, whole: float, flops: bool) -> tuple[str, ...]:
    peak = result.peaks.bandwidth
    # The time of an op that takes no longer than the overhead of timing it is known but roughly.
    exact = row.seconds > row.computed * result.overhead
    cells = [
        row.name or "(the model)",
        str(row.ops),
        _time(row.seconds),
        f"{row.seconds / whole:.1%}" if whole else "",
        size(row.weights) if row.weights else "",
        size(row.activations),
        f"{row.bandwidth / 1e9:.1f}" if exact else "",
        f"{row.bandwidth / peak:.0%}" if exact and peak else "",
    ]
    if flops:
        most = result.peaks.flops.get(row.name.rpartition(" ")[2])
        cells.append(f"{row.flop_rate / 1e9:.1f}" if exact and row.flops else "")
        cells.append(f"{row.flop_rate / most:.0%}" if exact and most else "")
    return tuple(cells)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.3f} s"
