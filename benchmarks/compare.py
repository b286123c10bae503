"""Ours beside llama.cpp's on the same files: pairs of processes, one of each, in turn.

    python benchmarks/compare.py --peer FOLDER --models FOLDER [--ggml PREFIX] [--output FILE.md]
    python benchmarks/compare.py --peer FOLDER --models FOLDER --quick
    python benchmarks/compare.py --peer FOLDER --models FOLDER --python PYTHON
    python benchmarks/compare.py --peer ggmodel --models FOLDER --our-args=--deterministic

FOLDER of --peer has llama-bench, llama-batched-bench and llama-completion, of llama.cpp or of
ik_llama.cpp; --quick needs only the first. "ggmodel" is our own side with --peer-args. FOLDER of
--models gets missing files, of random weights. PYTHON has another ggmodel installed, which is
measured instead of this checkout. A pair measures a group of rows at once:

    speed      a prompt of 512 tokens, decoding 64
    prompt     a prompt of 2,048 tokens
    depth      decoding 32 tokens behind 2,048
    sequences  decoding 32 tokens of 2, 4, 8 and 32 sequences
    crowd      decoding 32 tokens of 8 and 32 sequences behind 512 each
    deep       the same behind 4,096 each
    start      a process that loads the file and gives one token; memory at that token
    cold       the same, the file not in the page cache
    long       decoding 16 tokens behind 8,192 (files with 1b in their name) or 32,768

Both sides use flash attention, keys and values in f16, batches of 512 tokens, mapped files and the
same number of threads, and take turns in going first. A pair is measured again, at most three
times, if other processes use more than 5 % of the cores. The ratio within a pair counts. Results
are kept in a JSON file as they come: a stopped comparison goes on, --again starts over. Needs
Linux.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare_report import ENOUGH, Row, markdown, table, table_outside, write_between
from benchmarks.compare_sides import (
    OUTSIDE,
    PROGRAMS,
    SDK,
    Clock,
    Failed,
    Ours,
    Peer,
    Side,
    digest_of,
)

GROUPS = tuple(PROGRAMS)
FILES = (
    "smollm-135m-q8_0", "smollm-135m-q4_0", "smollm-135m-f16", "llama-1b-q8_0", "llama-1b-q4_0",
    "llama-1b-q4_K_M", "llama-1b-f16", "gemma3-1b-q8_0",
)  # fmt: skip
QUICK = {"files": FILES[:2], "groups": ("speed", "start"), "pairs": 6}
FOREIGN = 0.05
RETRIES = 3
_FOR_AUTHORS = ("convert", "workbench")  # packages that compute nothing here
OURSELVES = Path("ggmodel")  # as a peer

Pair = dict[str, Any]  # ours, peer: {row: value}; foreign: share of the cores


def measure_pair(ours: Side, peer: Side, file: Path, group: str, first: int) -> Pair:
    """An undisturbed pair, or the least disturbed one of several."""
    pairs: list[Pair] = []
    while len(pairs) <= RETRIES:
        _wait_for_quiet()
        ours.foreign = peer.foreign = 0.0
        order = (ours, peer) if first == 0 else (peer, ours)
        found = {id(side): side.measure(file, group) for side in order}
        foreign = max(ours.foreign, peer.foreign)
        pairs.append({"ours": found[id(ours)], "peer": found[id(peer)], "foreign": foreign})
        if foreign <= FOREIGN:
            break
    return min(pairs, key=lambda pair: pair["foreign"])


def _wait_for_quiet(tries: int = 10) -> None:
    for _ in range(tries):
        before = Clock.now()
        time.sleep(0.2)
        if before.foreign(Clock.now(), len(os.sched_getaffinity(0))) <= FOREIGN:
            return


def rows_of(results: dict[str, list[Pair]]) -> Iterator[Row]:
    """The pairs by row; the keys are "FILE GROUP"."""
    for key, pairs in results.items():
        ours, peers = (pairs[0]["ours"], pairs[0]["peer"]) if pairs else ({}, {})
        for name in (n for n in ours if n in peers and not n.endswith(OUTSIDE)):
            outside = [pair["ours"].get(name + OUTSIDE) for pair in pairs]
            yield Row(
                key.split()[0],
                name,
                [pair["ours"][name] for pair in pairs],
                [pair["peer"][name] for pair in pairs],
                sum(pair["foreign"] > FOREIGN for pair in pairs),
                [] if None in outside else outside,
            )


class Results:
    """Pairs by "FILE GROUP", in a file that is written after each pair.

    Args:
        setting: machine, versions and options; results of other settings are refused.
        forgotten: keys whose pairs are dropped.
    """

    def __init__(self, path: Path, setting: dict[str, str], forgotten: Sequence[str] = ()):
        self.path, self.setting = path, setting
        self.pairs: dict[str, list[Pair]] = {}
        if path.exists():
            kept = json.loads(path.read_text())
            pairs = {k: v for k, v in kept["pairs"].items() if k not in forgotten}
            if kept["setting"] != setting and pairs:
                raise SystemExit(
                    f"{path} has results of another setting: {kept['setting']}; name another file "
                    "with --results"
                )
            self.pairs = pairs

    def add(self, key: str, pair: Pair) -> None:
        self.pairs.setdefault(key, []).append(pair)
        part = self.path.with_name(f"{self.path.name}.part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"setting": self.setting, "pairs": self.pairs}, indent=1))
        part.replace(self.path)


def make_missing(folder: Path, name: str) -> Path:
    """The file of that name, made if it is missing and its shape is known."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        from benchmarks.make_model import SHAPES, TYPES, make

        shape, _, kind = name.rpartition("-")
        if shape not in SHAPES or kind not in TYPES:
            raise SystemExit(f"{path} does not exist, and its name is no known shape and type")
        folder.mkdir(parents=True, exist_ok=True)
        print(f"making {path}", file=sys.stderr)
        make(path, shape, SHAPES[shape], kind)
    return path


def machine() -> dict[str, str]:
    """The machine of the figures."""
    cpu = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "machine": f"{cpu[0].partition(': ')[2] if cpu else platform.machine()}, "
        f"{os.cpu_count()} cores, {int(memory) / 2**20:.1f} GiB, Linux {platform.release()}"
    }


def compare(options: argparse.Namespace) -> None:
    """Measures missing pairs, and shows all."""
    ours, peer = sides(options)
    groups = groups_of(peer, options.rows, options.quick)
    (version, ggml, build, package, module), others = ours.about(), peer.ggml()
    setting = {
        **machine(),
        "threads": str(options.threads),
        "ggmodel": f"{version}, source {digest_of_source(package)}, module {digest_of([module])}",
        "ggml": f"{ggml}, build {build}",
        "ggml of the peer": f"{others}, build {peer.build()}",
        "our options": options.our_args,
        "options of the peer": options.peer_args,
    }
    same = ggml == others
    note = "the same" if same else "NOT the same: the ratios are not ggmodel's alone"
    print(f"ggml {ggml}, of the peer {others}: {note}")
    wanted = [(name, group) for name in options.files for group in groups]
    keys = [f"{name} {group}" for name, group in wanted]
    anew = [f"{name} {group}" for name in options.files for group in options.rows]
    results = Results(options.results, setting, anew if options.again else ())
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(wanted) * options.pairs)
        for name, group in wanted:
            file, key = make_missing(options.models, name), f"{name} {group}"
            done = len(results.pairs.get(key, ()))
            bar.advance(task, min(done, options.pairs))
            for i in range(done, options.pairs):
                bar.update(task, description=f"{key}, pair {i + 1} of {options.pairs}")
                results.add(key, measure_pair(ours, peer, file, group, i % 2))
                bar.advance(task)
            if not console.is_terminal:
                print(f"{key}: {options.pairs} pairs", file=sys.stderr)
    show(results, keys, options, same)


def sides(options: argparse.Namespace) -> tuple[Ours, Ours | Peer]:
    """Our side, and the peer's."""

    def ours(arguments: str, python: Path | None) -> Ours:
        side = Ours(options.threads, shlex.split(arguments), python=python)
        if options.ggml:
            side.env["GGMODEL_GGML"] = str(options.ggml)
        return side

    peer_args = options.peer_args
    if options.peer == OURSELVES:
        peer: Ours | Peer = ours(peer_args, options.python)
    else:
        peer = Peer(options.threads, shlex.split(peer_args), folder=options.peer.resolve())
    return ours(options.our_args, options.python), peer


def groups_of(peer: Ours | Peer, asked: Sequence[str], quick: bool) -> list[str]:
    """The groups for which the peer has a program; must be all, or with `quick` at least speed."""
    lacking = {group: name for group in asked if (name := peer.lacks(group))}
    kept = [group for group in asked if group not in lacking]
    if lacking:
        names = " and no ".join(dict.fromkeys(lacking.values()))
        if not (quick and "speed" in kept):
            raise Failed(
                f"--peer has no {names}, which {', '.join(lacking)} needs: `make peer` "
                "builds it, --rows chooses other groups"
            )
        print(f"no {names}: without {', '.join(lacking)}")
    return kept


def digest_of_source(package: Path = SDK / "ggmodel") -> str:
    """A digest of the measured source: results of other code must not be continued."""
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(package, followlinks=True)  # models and native are links
        for name in names
        if name.endswith((".py", ".c", ".h"))
    ]
    return digest_of(
        path
        for path in sorted(files)
        if path.name == "bench.py" or path.relative_to(package).parts[0] not in _FOR_AUTHORS
    )


def show(results: Results, keys: list[str], options: argparse.Namespace, same: bool) -> None:
    """Prints the tables of these keys, and writes the tables of all into the document."""
    rows = list(rows_of({key: results.pairs[key] for key in keys}))
    for lines in filter(None, (table(rows), table_outside(rows))):
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
        print()
    if options.pairs < ENOUGH:
        print(f"{options.pairs} pairs a row: a first look; {ENOUGH} or more decide")
    if options.output:
        about = {
            **{name: value for name, value in results.setting.items() if value},
            "command": f"`python benchmarks/compare.py {said(options.said)}`",
            "date": datetime.date.today().isoformat(),
        }
        marker = options.marker or marker_of(options.peer, same)
        write_between(options.output, marker, markdown(list(rows_of(results.pairs)), about))


def marker_of(peer: Path, same: bool) -> str:
    """The name of the table in a document.

    Args:
        same: whether both sides have the same ggml.
    """
    if peer == OURSELVES:
        return "compare, ggmodel"
    return "compare, same ggml" if same else "compare, other ggml"


def said(arguments: list[str]) -> str:
    """The arguments without the paths of this machine."""
    paths = {"--peer", "--models", "--ggml", "--python", "--results", "--output"}
    pairs = zip(["", *arguments], arguments, strict=False)
    return " ".join(
        "…" if before in paths and x != str(OURSELVES) else shlex.quote(x) for before, x in pairs
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def main(arguments: list[str]) -> None:
    description = __doc__ or ""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True, metavar="FOLDER|ggmodel")
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--files", nargs="+", metavar="NAME", help=", ".join(FILES))
    parser.add_argument("--rows", nargs="+", choices=GROUPS, metavar="GROUP")
    parser.add_argument("--pairs", type=_at_least_one, help="of each row; 10 by default")
    parser.add_argument("--quick", action="store_true", help="two minutes: two files, few rows")
    parser.add_argument("--threads", type=_at_least_one, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ggml", type=Path, metavar="PREFIX", help="for our side")
    parser.add_argument("--python", type=Path, metavar="PYTHON", help="of an installed ggmodel")
    parser.add_argument("--our-args", default="", metavar="'…'", help="of `ggmodel bench` and run")
    parser.add_argument("--peer-args", default="", metavar="'…'", help="of its three programs")
    parser.add_argument("--results", type=Path, default=Path(".cache/compare.json"))
    parser.add_argument("--again", action="store_true", help="measure these rows anew")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    parser.add_argument("--marker", help="the table's name in that file")
    options = parser.parse_args(arguments)
    defaults = QUICK if options.quick else {"files": FILES, "groups": GROUPS, "pairs": 10}
    options.files = options.files or defaults["files"]
    options.rows = options.rows or defaults["groups"]
    options.pairs = options.pairs or defaults["pairs"]
    options.said = arguments
    try:
        compare(options)
    except Failed as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main(sys.argv[1:])
