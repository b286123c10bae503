"""`ggmodel estimate`: the memory that a model will take."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .loading import LoadingToAnswer
from .options import File, Json, expanded
from .terminal import console, report, size, table

if TYPE_CHECKING:
    from ..workbench.estimate import DeviceEstimate, Estimate


@expanded("threads", "backend")
def estimate(
    file: File,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="List the memory of each layer, too.")
    ] = False,
    as_json: Json = False,
    *,
    loading: LoadingToAnswer,
) -> None:
    """Estimate the memory that a model will take.

    Weights, KV cache and compute buffers are planned as for `ggmodel run` with the same options,
    but not allocated. The exit status is 1 if they do not fit into the memory that is free now.
    """
    from ..workbench.estimate import estimate as estimate_file

    result = estimate_file(file, **loading.arguments("threads", "backend"))
    report(as_json, _json(result), lambda: _print(result, per_layer), result.fits)


# By kind: the verb for its encoder's weights, and its name.
_ENCODES = {
    "image": ("see", "an image"),
    "audio": ("hear", "a sound"),
    "video": ("watch", "a video"),
}


def _json(result: Estimate) -> dict[str, object]:
    devices = [{**asdict(d), "size": d.size} for d in result.devices]
    return {
        "fits": result.fits,
        "missing": result.missing(),
        "size": result.size,
        **asdict(result),
        "devices": devices,
    }


def _print(result: Estimate, per_layer: bool) -> None:
    out = console()
    n = result.parallel
    out.print(
        f"{result.name} ({result.architecture}): context {result.context_length:,}, "
        f"{n:,} sequence{'s'[: n != 1]}, cache in {result.kv_type}"
    )
    out.print()
    header = ("device", "layers", "input", "weights", "cache", "graph", "total", "free")
    rows = [_row(device) for device in result.devices]
    if len(rows) > 1:
        rows.append(_sum(result.devices))
    out.print(table(rows, header, right="1234567", fold=0))
    if per_layer:
        out.print()
        header = ("layer", "device", "weights", "cache", "total")
        out.print(table(_layers(result.devices), header, right="234", fold=1))
    out.print()
    if result.mapped:
        out.print(f"{size(result.mapped)} of the weights stay in the mapped file")
    if drafting := sum(d.draft for d in result.devices):
        out.print(f"{size(drafting)} of the total are the draft model's")
    for kind, memory in result.encoders.items():
        verb, item = _ENCODES.get(kind, ("encode", kind))
        rows = f"{item} takes {size(memory.rows)} more"
        out.print(f"{size(memory.weights)} of the weights {verb}; {rows}")
    out.print(_verdict(result), style="bold green" if result.fits else "bold red")


def _row(d: DeviceEstimate) -> tuple[str, ...]:
    from ..workbench.nodes import ranges

    name = f"{d.name} ({d.description})" if d.description else d.name
    parts = (d.input_weights, sum(d.weights), sum(d.cache), d.graph, d.size)
    return name, ranges(d.layers) or "none", *map(size, parts), size(d.free)


def _sum(devices: list[DeviceEstimate]) -> tuple[str, ...]:
    parts = [(d.input_weights, sum(d.weights), sum(d.cache), d.graph, d.size) for d in devices]
    count = str(sum(len(d.layers) for d in devices))
    return "all", count, *(size(sum(column)) for column in zip(*parts, strict=True)), ""


def _layers(devices: list[DeviceEstimate]) -> list[tuple[str, ...]]:
    count = len(devices[-1].weights)
    rows = []
    for n in range(count):
        # Single weights may have been placed elsewhere than the rest of their layer.
        names = [d.name for d in devices if n in d.layers or d.weights[n] or d.cache[n]]
        weights, cache = sum(d.weights[n] for d in devices), sum(d.cache[n] for d in devices)
        label = "output" if n == count - 1 else str(n)
        rows.append((label, ", ".join(names), size(weights), size(cache), size(weights + cache)))
    return rows


def _verdict(result: Estimate) -> str:
    largest = f"the largest context that fits is {result.largest_context:,}"
    if not result.largest_context:
        largest = "no context fits"
    elif result.largest_context == result.trained_context:
        largest += ", all that the model was trained for"
    if result.context_length > result.trained_context:
        largest += "; texts may fall apart beyond that"
    if result.fits:
        return f"fits; {largest}"
    missing = ", ".join(f"{size(n)} on {name}" for name, n in result.missing().items())
    return f"does not fit: {missing} missing; {largest}"
