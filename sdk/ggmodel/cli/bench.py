"""`ggmodel bench`: the speed of prefill and decode."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from .. import __version__
from ..errors import ConfigError
from .expanded import expanded
from .loading import Loading
from .options import File, Json, Repetitions
from .terminal import console, count, report, size, table, with_progress

if TYPE_CHECKING:
    from ..workbench.bench import Measured, Setting

Numbers = list[str] | None


@expanded("mmproj", "context_length", "parallel")
def bench(
    file: File,
    prompt: Annotated[
        Numbers,
        typer.Option(
            "--n-prompt", "-p", metavar="N,…", help="Prompt tokens (prefill); default: 512."
        ),
    ] = None,
    tokens: Annotated[
        Numbers,
        typer.Option("--n-gen", "-n", metavar="N,…", help="Tokens to decode; default: 128."),
    ] = None,
    depth: Annotated[
        Numbers,
        typer.Option(
            "--n-depth", "-d", metavar="N,…", help="Tokens in the KV cache before; default: 0."
        ),
    ] = None,
    parallel: Annotated[
        Numbers, typer.Option(metavar="N,…", help="Sequences decoded in one batch; default: 1.")
    ] = None,
    repetitions: Repetitions = 5,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Measure the speed of prefill and decode.

    Tests are those of llama-bench: pp512 is the prefill of 512 tokens, tg128 the decode of 128,
    "@ d2048" has 2,048 tokens in the KV cache before, "x8" is the sum of eight sequences in one
    batch. The values of -p, -n, -d and --parallel are combined, each a list or repeated; -p 0 and
    -n 0 leave prefill and decode out. The context length is that of the largest test.

    The time of a decoded token includes the graph, greedy sampling and detokenising. "Outside
    ggml" is the share of its time that is spent elsewhere.
    """
    from ..workbench import bench as workbench

    tests = workbench.plan(
        _numbers("-p", prompt, 512),
        _numbers("-n", tokens, 128),
        _numbers("-d", depth, 0),
        _numbers("--parallel", parallel, 1),
    )
    began = perf_counter()
    context, sequences = max(t.context for t in tests), max(t.sequences for t in tests)
    model = loading.load(file, mmproj="", context_length=context, parallel=sequences)
    loaded = perf_counter() - began
    with model:
        setting = workbench.setting(model)
        times = {"load_seconds": loaded, "first_token_seconds": workbench.first_token(model)}
        measured = workbench.bench(model, tests, repetitions)
        results = with_progress(measured, [test.name for test in tests])
    peak = workbench.peak_memory()
    about = {**asdict(setting), "ggmodel": __version__, **times, "peak_bytes": peak}
    rows = [_row(result) | about for result in results]
    report(as_json, rows, lambda: _print(results, setting, times, peak))


def _numbers(flag: str, given: list[str] | None, default: int) -> list[int]:
    try:
        return [int(number) for text in given for number in text.split(",")] if given else [default]
    except ValueError:
        said = ",".join(given or ())
        raise ConfigError(f"{flag} {said}: give numbers, such as 512 or 0,2048") from None


def _row(result: Measured) -> dict[str, object]:
    return {
        "test": result.test.name,
        "tokens_per_second": result.tokens_per_second,
        "stddev": result.stddev,
        "samples": result.samples,
        "microseconds_outside_ggml": result.microseconds_outside_ggml,
        "n_prompt": result.test.prompt,
        "n_gen": result.test.tokens,
        "n_depth": result.test.depth,
        "parallel": result.test.sequences,
    }


def _print(results: list[Measured], setting: Setting, times: dict[str, float], peak: int) -> None:
    rows = [
        (
            result.test.name,
            f"{result.tokens_per_second:.2f}",
            f"± {result.stddev:.2f}",
            "" if (us := result.microseconds_outside_ggml) is None else f"{us:.1f} µs a token",
        )
        for result in results
    ]
    out = console()
    out.print(table(rows, ("test", "tokens/s", "", "outside ggml"), right="123"))
    threads = f"{count(setting.threads, 'thread')}, " if setting.threads else ""
    library = f"ggml {setting.ggml}, " if setting.ggml else ""
    lines = (
        f"{setting.model}: {setting.architecture}, {setting.type}, {size(setting.size_bytes)}, "
        f"{setting.parameters / 1e6:,.1f} million parameters",
        f"loaded in {times['load_seconds']:.2f} s, the first token "
        f"{times['first_token_seconds']:.3f} s after that; at most {size(peak)} resident",
        f"{', '.join(d or name for name, d in setting.devices.items())}, {threads}{library}"
        f"ggmodel {__version__}",
    )
    for line in lines:
        out.print(line)
