"""`ggmodel bench`, `profile` and `perplexity`: speed, the time of a step, quality on a text.

`bench` has the speed of prefill and decode, `profile` the time of a step by op, module and layer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__
from ..errors import ConfigError
from .loading import Loading, LoadingToAnswer
from .options import File, Json, Repetitions, Text, expanded, read_text
from .terminal import console, count, progress_bar, report, size, table, with_progress

if TYPE_CHECKING:
    from ..runner import LoadedModel
    from ..workbench.bench import BenchResult, Setting
    from ..workbench.profile import OpGroup, Profile, Workload
    from ..workbench.text_statistics import Perplexity

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
    loading: LoadingToAnswer,
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
    report(as_json, rows, lambda: _print_speed(results, setting, times, peak))


def _numbers(flag: str, texts: list[str] | None, default: int) -> list[int]:
    try:
        return [int(number) for text in texts for number in text.split(",")] if texts else [default]
    except ValueError:
        joined = ",".join(texts or ())
        raise ConfigError(f"{flag} {joined}: give numbers, such as 512 or 0,2048") from None


def _row(result: BenchResult) -> dict[str, object]:
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


def _print_speed(
    results: list[BenchResult], setting: Setting, times: dict[str, float], peak: int
) -> None:
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
    from ..storage import check_target, write_text
    from ..workbench import profile as workbench
    from ..workbench.profile import chrome_trace as timeline

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
        report(
            as_json, [_json(result) for result in results], lambda: _print_profile(model, results)
        )


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


def _print_profile(model: LoadedModel, results: Sequence[Profile]) -> None:
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


@expanded("context_length", "parallel")
def perplexity(
    file: File,
    text: Text,
    context_length: Annotated[int, typer.Option(help="Context length: tokens of a chunk.")] = 512,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Measure the perplexity of a model on a text.

    As llama.cpp defines it: the text is cut into chunks of the context length, and the tokens of
    each one's second half are scored. The result is the exponential of the mean negative
    log-probability, with its standard error.
    """
    from ..workbench.text_statistics import perplexity as score

    content = read_text(text, "")
    model = loading.load(file, context_length=context_length)
    result: Perplexity | None = None
    with model, progress_bar("scoring") as progress:
        for result in score(model, content, context_length):
            progress(result.chunks / result.of_chunks, f"perplexity {result.value:.4f}")
    assert result is not None  # a text has a chunk
    scored = result
    report(as_json, asdict(scored), lambda: _print_perplexity(scored, context_length))


def _print_perplexity(result: Perplexity, length: int) -> None:
    chunks, tokens = count(result.chunks, "chunk"), count(result.tokens, "token")
    if result.context < length:
        scored = "all scored but the first" if result.whole else f"two chunks of {result.context}"
        shorter = "one context" if result.whole else "two contexts"
        print(f"the text has {result.of_tokens} tokens, less than {shorter} of {length}: {scored}")
    print(f"perplexity {result.value:.4f} ± {result.error:.4f} over {tokens} ({chunks})")
