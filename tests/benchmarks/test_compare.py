"""Comparing: statistics, disturbances, the table, and all of it beside a peer that is none."""

from __future__ import annotations

import json
import math
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compare, compare_sides
from benchmarks.compare import Results, measure_pair
from benchmarks.compare_report import Row, interval, markdown, verdict, write_between
from benchmarks.compare_sides import OUTSIDE, SDK, Clock, Ours, Peer, Side

from ggmodel import __version__, native

STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"


@pytest.mark.parametrize("n", range(6, 40))
def test_an_interval_is_the_narrowest_that_is_safe(n: int):
    lo, hi = interval(list(range(n, 0, -1))) or (0, 0)  # the values are their ranks
    k = int(lo)
    assert hi == n + 1 - k

    def covered(k: int) -> float:
        return sum(math.comb(n, i) for i in range(k, n - k + 1)) / 2**n

    assert covered(k) >= 0.95 > covered(k + 1)


def test_few_values_have_none():
    assert [interval([1.0] * n) for n in range(6)] == [None] * 6


@pytest.mark.parametrize(
    ("median", "bounds", "expected"),
    [
        (1.05, (1.01, 1.1), "ahead"),
        (1.05, (1.0, 1.1), "level"),
        (1.0, (0.9, 1.1), "level"),
        (0.98, (0.97, 1.0), "level"),
        (0.979, (0.9, 1.1), "behind"),
        (0.99, (0.985, 0.999), "behind"),
    ],
)
def test_verdicts(median: float, bounds: tuple[float, float] | None, expected: str):
    assert verdict(median, bounds, pairs=10) == expected


def test_ten_pairs_decide():
    for name, better in (("tg64", 2.0), ("start", 0.5)):
        verdicts = [Row("f", name, [better] * n, [1.0] * n).verdict for n in (1, 6, 9, 10, 11)]
        assert verdicts == ["?", "?", "?", "ahead", "ahead"]


def test_less_is_better_of_seconds_and_bytes():
    half, whole = [1.0] * 10, [2.0] * 10
    for name in ("start", "resident", "load + first token after import"):
        assert Row("f", name, half, whole).verdict == "ahead"
        assert Row("f", name, whole, half).verdict == "behind"
    for name in ("pp512", "tg32 x8", "tg16 @ d8192"):
        assert Row("f", name, half, whole).verdict == "behind"


def test_ratios_are_those_of_pairs():
    assert Row("f", "pp512", [2.0, 9.0], [1.0, 3.0]).ratios == [2.0, 3.0]


# what others do

STAT = """\
cpu  9 9 9 9 9 9 9 9 9 9
cpu0 {0} 10 10 5000 700 10 10 10 0 0
cpu1 100 0 0 {1} 0 0 0 0 0 0
cpu2 {2} 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


def test_busy_cores_are_ours_to_use(monkeypatch: pytest.MonkeyPatch):
    """User, nice, system, interrupts and what other machines take; neither idle nor waiting."""
    monkeypatch.setattr(compare_sides.os, "sched_getaffinity", lambda _: {0, 1})
    ticks = compare_sides._TICK
    before = Clock.now(STAT.format(0, 0, 0))
    assert before.busy == pytest.approx(150 / ticks)
    assert Clock.now(STAT.format(0, 500, 0)).busy == before.busy
    assert Clock.now(STAT.format(0, 0, 500)).busy == before.busy
    assert Clock.now(STAT.format(500, 0, 0)).busy == pytest.approx(650 / ticks)


def test_the_share_of_others():
    began = Clock(wall=10.0, busy=100.0, own=7.0)
    assert began.foreign(Clock(20.0, 115.0, 21.0), cores=2) == pytest.approx(1 / 20)
    assert began.foreign(Clock(20.0, 113.9, 21.0), cores=2) == 0  # clocks differ in resolution


def test_another_process_is_seen():
    others = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        began = Clock.now()
        time.sleep(0.5)
        assert began.foreign(Clock.now(), cores=1) > 0.2
    finally:
        others.kill()
        others.wait()


class Scripted(Side):
    """A side that takes as long, among others, as it was told."""

    def __init__(self, name: str, shares: list[float], calls: list[str]):
        super().__init__(threads=1)
        self.name, self.shares, self.calls = name, shares, calls

    def measure(self, file: Path, group: str) -> dict[str, float]:
        self.calls.append(self.name)
        self.foreign = self.shares.pop(0)
        return {"tg64": float(len(self.calls))}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_wait_for_quiet", lambda: None)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("shares", "tries", "kept"),
    [
        ([0.0], 1, 1),
        ([0.05], 1, 1),
        ([0.3, 0.01], 2, 2),
        ([0.3, 0.1, 0.2, 0.4], 4, 2),
    ],
)
def test_disturbed_pairs_are_measured_again(shares: list[float], tries: int, kept: int):
    calls: list[str] = []
    expected = shares[kept - 1]
    ours, peer = Scripted("a", list(shares), calls), Scripted("b", [0.0] * 9, calls)
    pair = measure_pair(ours, peer, Path(), "speed", 0)
    assert calls == ["a", "b"] * tries
    assert pair == {
        "ours": {"tg64": 2.0 * kept - 1},
        "peer": {"tg64": 2.0 * kept},
        "foreign": expected,
    }


@pytest.mark.usefixtures("quiet")
def test_the_peers_disturbance_counts_too():
    calls: list[str] = []
    ours, peer = Scripted("a", [0.0] * 9, calls), Scripted("b", [0.5, 0.0], calls)
    assert measure_pair(ours, peer, Path(), "speed", 1)["foreign"] == 0
    assert calls == ["b", "a"] * 2


# results

PAIR = {"ours": {"tg64": 1.0}, "peer": {"tg64": 2.0}, "foreign": 0.2}


def test_results_are_kept(tmp_path: Path):
    path, setting = tmp_path / "new" / "results.json", {"ggml": "1"}
    for key in ("a speed", "a speed", "b start"):
        Results(path, setting).add(key, PAIR)
    assert {k: len(v) for k, v in Results(path, setting).pairs.items()} == {
        "a speed": 2,
        "b start": 1,
    }
    assert list(Results(path, setting, ["a speed"]).pairs) == ["b start"]
    with pytest.raises(SystemExit, match="results of another setting"):
        Results(path, {"ggml": "2"}, ["a speed"])
    assert Results(path, {"ggml": "2"}, ["a speed", "b start"]).pairs == {}


def test_pairs_are_rows():
    (row,) = compare.rows_of({"a speed": [PAIR, PAIR]})
    assert (row.file, row.name, row.disturbed, row.outside) == ("a", "tg64", 2, [])
    told = [{**PAIR, "ours": {"tg64": 1.0, "tg64" + OUTSIDE: us}} for us in (40.0, 50.0)]
    (row,) = compare.rows_of({"a speed": told})
    assert (row.name, row.outside) == ("tg64", [40.0, 50.0])
    (row,) = compare.rows_of({"a speed": [*told, PAIR]})  # of one pair nothing is known
    assert row.outside == []


def test_a_document_keeps_the_rest(tmp_path: Path):
    document = tmp_path / "doc.md"
    document.write_text("before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n")
    write_between(document, "x", "new\n")
    write_between(document, "y", "more\n")
    write_between(document, "x", "newest\n")
    assert document.read_text() == (
        "before\n<!-- x: begin -->\nnewest\n<!-- x: end -->\nafter\n"
        "\n<!-- y: begin -->\nmore\n<!-- y: end -->\n"
    )


def test_the_table():
    rows = [
        Row("a", "pp512", [102.0] * 6, [100.0] * 6),
        Row("a", "tg64", [98.0] * 10, [100.0] * 10),
        Row("a", "resident", [3.0 * 2**30], [4.0 * 2**30], disturbed=1),
        Row("a", "start", [0.5], [0.25]),
    ]
    assert markdown(rows, {"machine": "M"}).splitlines() == [
        "- machine: M",
        "",
        "| file | row | ours | peer | ratio | 95 % | pairs | verdict |",
        "|---|---|---|---|---|---|---|---|",
        "| a | pp512 | 102.0 | 100.0 | 1.020 | 1.020 to 1.020 | 6 | ? |",
        "| a | tg64 | 98.0 | 100.0 | 0.980 | 0.980 to 0.980 | 10 | behind |",
        "| a | resident | 3,072 MiB | 4,096 MiB | 0.750 |  | 1, 1 disturbed | ? |",
        "| a | start | 0.50 s | 0.25 s | 2.000 |  | 1 | ? |",
    ]


def test_a_second_table_tells_the_time_outside_ggml():
    speeds, times = [100.0, 200.0, 400.0], [50.0, 60.0, 40.0]  # 0.5, 1.2 and 1.6 %
    rows = [Row("a", "pp512", [1.0], [1.0]), Row("a", "tg64", speeds, speeds, outside=times)]
    assert markdown(rows, {}).split("\n\n")[1].splitlines() == [
        "| file | row | outside ggml, a token | of its time |",
        "|---|---|---|---|",
        "| a | tg64 | 50.0 µs | 1.20 % |",
    ]


# all of it

PEER = """#!{python}
import json, pathlib, sys, time
name, given = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
open({log!r}, "a").write(json.dumps([name, *given]) + "\\n")
option = lambda flag: given[given.index(flag) + 1]
if name == "llama-bench":
    p, n = int(option("-p")), int(option("-n"))
    rows = [(p, 0, 1e3)] * bool(p) + [(0, n, 10.0)] * bool(n)
    print(json.dumps([dict(n_prompt=p, n_gen=n, avg_ts=ts) for p, n, ts in rows]))
elif name == "llama-batched-bench":
    print("a line of log")
    for many in map(int, option("-npl").split(",")):
        print(json.dumps(dict(pl=many, tg=int(option("-ntg")), speed_tg=10.0 * many)))
else:
    time.sleep(0.1)
    print("token")
"""


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    folder = tmp_path / "peer"
    folder.mkdir()
    for name in ("llama-bench", "llama-batched-bench", "llama-completion"):
        program = folder / name
        program.write_text(PEER.format(python=sys.executable, log=str(tmp_path / "log")))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def stories(peer: Path, folder: Path) -> list[str]:
    """The arguments that compare a small model."""
    shutil.copy(STORIES, folder / "stories.gguf")
    return ["--peer", str(peer), "--models", str(folder), "--files", "stories",
            "--results", str(folder / "r.json")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_beside_a_peer_that_is_none(
    peer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(compare, "RETRIES", 0)
    document = tmp_path / "doc.md"
    arguments = [*stories(peer, tmp_path), "--pairs", "1", "--threads", "1",
                 "--output", str(document), "--rows", "speed", "depth", "sequences", "crowd",
                 "start"]  # fmt: skip
    compare.main(arguments)
    said = capsys.readouterr().out
    assert "of the peer ?: NOT the same" in said
    build = Peer(threads=1, folder=peer).build()
    assert f"- ggml of the peer: ?, build {build}" in document.read_text().splitlines()
    assert "1 pairs a row: a first look" in said
    lines = [line.split(" | ") for line in document.read_text().splitlines() if "stories |" in line]
    found: dict[str, Any] = {line[1]: line[2:5] for line in lines if len(line) > 4}
    assert list(found) == [
        "pp512", "tg64", "tg32 @ d2048", "tg32 x2", "tg32 x4", "tg32 x8",
        "tg32 x32", "tg32 x8 @ d512", "tg32 x32 @ d512", "start",
        "start, peer without warm-up", "resident", "load + first token after import",
    ]  # fmt: skip
    assert [found[name][1] for name in ("pp512", "tg64", "tg32 x8")] == ["1000.0", "10.0", "80.0"]
    assert all(float(row[2]) > 0 for row in found.values())
    outside = {line[1]: line[2] for line in lines if len(line) == 4}
    assert list(outside) == [name for name in found if name.startswith("tg")]
    assert all(float(cell.removesuffix(" µs")) > 0 for cell in outside.values())
    assert str(tmp_path) not in document.read_text()
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [call[0] for call in calls] == [
        "llama-bench", "llama-bench", "llama-batched-bench", "llama-batched-bench",
        "llama-completion", "llama-completion",
    ]  # fmt: skip
    assert [call[-1] == "--no-warmup" for call in calls] == [False] * 5 + [True]
    compare.main(arguments)  # everything is there already
    assert len((tmp_path / "log").read_text().splitlines()) == len(calls)


@pytest.mark.usefixtures("quiet")
def test_a_peer_that_fails(peer: Path, tmp_path: Path):
    (peer / "llama-bench").write_text(f"#!{sys.executable}\nraise SystemExit('no such model')\n")
    with pytest.raises(SystemExit, match=r"(?s)llama-bench.*ended with 1.*no such model"):
        compare.main([*stories(peer, tmp_path), "--rows", "speed"])


# what is asked for, and what is there


@pytest.mark.parametrize("number", ["0", "-1", "ten"])
@pytest.mark.parametrize("option", ["--pairs", "--threads"])
def test_numbers_begin_at_one(option: str, number: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        compare.main(["--peer", "p", "--models", "m", f"{option}={number}"])
    assert ended.value.code == 2
    assert f"argument {option}: '{number}' is no number of at least 1" in capsys.readouterr().err


def test_each_group_takes_the_program_that_it_is_measured_with(peer: Path, tmp_path: Path):
    side = Peer(threads=1, folder=peer)
    for group in compare.GROUPS:
        (tmp_path / "log").write_text("")
        side.measure(STORIES, group)
        (program,) = {json.loads(x)[0] for x in (tmp_path / "log").read_text().splitlines()}
        assert side.lacks(group) is None
        (peer / program).rename(peer / "elsewhere")
        assert side.lacks(group) == program
        (peer / "elsewhere").rename(peer / program)


def test_a_long_prompt_is_measured_alone(peer: Path, monkeypatch: pytest.MonkeyPatch):
    """The same row of both sides: a pair needs it."""
    (peer.parent / "log").write_text("")
    assert list(Peer(threads=1, folder=peer).measure(STORIES, "prompt")) == ["pp2048"]
    ours, asked = Ours(threads=1), []
    monkeypatch.setattr(ours, "_bench", lambda file, *options: asked.append(options) or {})
    ours.measure(STORIES, "prompt")
    assert asked == [("-p", "2048", "-n", "0", "-d", "0")]


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_quick_makes_do_with_llama_bench(
    peer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(compare, "RETRIES", 0)
    results = tmp_path / "r.json"
    arguments = [*stories(peer, tmp_path), "--pairs", "1", "--quick", "--again"]
    compare.main(arguments)
    assert list(json.loads(results.read_text())["pairs"]) == ["stories speed", "stories start"]
    (peer / "llama-completion").unlink()  # which makes it another peer, too
    capsys.readouterr()
    compare.main(arguments)
    assert capsys.readouterr().out.splitlines()[0] == "no llama-completion: without start"
    assert list(json.loads(results.read_text())["pairs"]) == ["stories speed"]


@pytest.mark.parametrize(
    "asked", [[], ["--rows", "speed", "start"], ["--quick", "--rows", "start"]]
)
def test_a_program_that_is_not_there(peer: Path, tmp_path: Path, asked: list[str]):
    (peer / "llama-completion").unlink()
    with pytest.raises(SystemExit, match=r"no llama-completion, which start.* needs: `make peer`"):
        compare.main(["--peer", str(peer), "--models", str(tmp_path), "--results",
                      str(tmp_path / "r.json"), *asked])  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peer"]  # no file, no log


# what was measured


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """One with a link in it, as ours has them."""
    package, behind = tmp_path / "package", tmp_path / "models"
    for folder in (package / "nn", package / "workbench", behind / "llama4"):
        folder.mkdir(parents=True)
        (folder / "bench.py").write_text("1")
        (folder / "other.py").write_text("1")
    (behind / "shim.c").write_text("1")
    (package / "native").mkdir()
    (package / "models").symlink_to("../models")
    return package


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("nn/other.py", True),
        ("models/llama4/other.py", True),
        ("models/shim.c", True),
        ("models/new.py", True),
        ("native/new.h", True),
        ("workbench/bench.py", True),
        ("workbench/other.py", False),
        ("nn/other.pyc", False),
    ],
)
def test_the_digest_covers_what_computes(package: Path, name: str, counts: bool):
    before = compare.digest_of_source(package)
    assert compare.digest_of_source(package) == before
    (package / name).write_text("2")
    assert (compare.digest_of_source(package) != before) == counts


def test_our_models_and_binding_are_behind_links(monkeypatch: pytest.MonkeyPatch):
    read: list[Path] = []
    monkeypatch.setattr(compare, "digest_of", read.extend)
    compare.digest_of_source()
    names = {path.relative_to(SDK / "ggmodel").as_posix() for path in read}
    native_files = {f"native/{name}" for name in ("shim.c", "kernels.h", "loader.py")}
    assert {"models/llama/model.py", "nn/rope.py", *native_files} <= names


def test_two_builds_of_a_version_differ(tmp_path: Path):
    ours = Ours(threads=1)
    about = ours.about()
    assert about[:2] == (__version__, native.version)
    copy = shutil.copytree(native.prefix, tmp_path / "ggml")
    ours.env["GGMODEL_GGML"] = str(copy)
    assert ours.about() == about  # wherever it lies
    with next(copy.rglob("libggml-cpu*.so")).open("ab") as library:
        library.write(b"another")
    other = ours.about()
    assert other[:2] == about[:2]
    assert other[2] != about[2]


@pytest.mark.parametrize(
    "name", ["bin/llama-bench", "bin/libggml-cpu.so", "lib/libggml-base.so", "bin/libllama.so"]
)
def test_two_builds_of_the_peer_differ(tmp_path: Path, name: str):
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    (tmp_path / name).write_text("1")
    peer = Peer(threads=1, folder=tmp_path / "bin")
    before = peer.build()
    (tmp_path / "bin" / "notes.txt").write_text("1")
    assert peer.build() == before
    (tmp_path / name).write_text("2")
    assert peer.build() != before


def test_a_file_that_cannot_be_made(tmp_path: Path):
    with pytest.raises(SystemExit, match=r"llama-7b-q8_0\.gguf does not exist"):
        compare.make_missing(tmp_path, "llama-7b-q8_0")


def test_our_side_is_that_of_this_repository_or_installed():
    assert Ours(threads=1, extra=[]).env["PYTHONPATH"] == str(SDK)
    assert Ours(threads=1).about()[3] == SDK / "ggmodel"
    installed = Ours(threads=1, python=Path(sys.executable))
    assert "PYTHONPATH" not in installed.env
    assert installed._ggmodel("bench", STORIES)[0] == sys.executable


@pytest.mark.usefixtures("quiet")
def test_our_modes_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compare, "RETRIES", 0)
    results, document = tmp_path / "r.json", tmp_path / "doc.md"
    write_between(document, "compare, same ggml", "measured\n")
    compare.main([*stories(Path("ggmodel"), tmp_path), "--pairs", "1", "--threads", "1",
                  "--our-args=--deterministic", "--rows", "speed",
                  "--output", str(document)])  # fmt: skip
    before, _, table = document.read_text().partition("<!-- compare, ggmodel: begin -->\n")
    assert "\nmeasured\n" in before
    assert "compare.py --peer ggmodel --models … " in table
    kept = json.loads(results.read_text())
    assert kept["setting"]["our options"] == "--deterministic"
    module = compare_sides.digest_of([Path(native.describe()["module"])])
    assert kept["setting"]["ggmodel"].endswith(f", module {module}")
    (pair,) = kept["pairs"]["stories speed"]
    assert pair["ours"].keys() == pair["peer"].keys() >= {"pp512", "tg64"}
    assert [row.name for row in compare.rows_of(kept["pairs"])] == ["pp512", "tg64"]
