"""`ggmodel profile`; what it measures is tested in tests/workbench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmodel.cli.measure import _cells, _print_sums
from ggmodel.workbench.profile import OpGroup, Peaks, Profile, Workload

from .test_bad_input import refused

SHAPES = Path(__file__).parents[2] / "examples" / "assets" / "shapes.gguf"
ONE = ("-r", "1", "--threads", "1")


def test_tables(program, model_path: Path):
    ran = program("profile", model_path, *ONE)
    assert (ran.returncode, ran.stderr) == (0, "")
    first, sums, *rest = ran.stdout.splitlines()
    assert first == f"{model_path}: llama, F32, tg1, 1 thread"
    assert sums.startswith("the graph at once ") and "its ops one by one" in sums
    headers = [line.split() for line in rest if line.split()[1:3] == ["ops", "time"]]
    assert [h[0] for h in headers] == ["op", "module", "layer"]
    rows = {line.split()[0]: line for line in rest if line}
    assert {"mulmat", "blk.*.ffn.up", "blk.0", "blk.1", "head"} <= rows.keys()
    shares = [float(word[:-1]) for word in rows["mulmat"].split() if word.endswith("%")]
    assert 0 < shares[0] <= 100
    assert "\x1b" not in ran.stdout


def measured(peaks: Peaks) -> Profile:
    return Profile(Workload(), [], 1.0, 1.0, 0.25, threads=1, repetitions=1, peaks=peaks)


def test_the_peaks_that_were_measured_are_said(capsys: pytest.CaptureFixture[str]):
    _print_sums(measured(Peaks(10e9, {"f32": 100e9})))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "memory: 10.0 GB/s read with these threads",
        "products in the caches, GFLOP/s: f32 100",
    ]
    _print_sums(measured(Peaks()))
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_op_that_takes_no_longer_than_timing_it_has_no_rates():
    whole = measured(Peaks(10e9, {"f32": 100e9}))

    def cells(seconds: float) -> tuple[str, ...]:
        group = OpGroup("mulmat f32", 3, 2, seconds, 2 << 20, 1 << 20, int(50e9))
        return _cells(whole, group, 1.0, True)

    known = "mulmat f32", "3"
    sizes = "2.00 MiB", "1.00 MiB"
    assert cells(1.0) == (*known, "1.000 s", "100.0%", *sizes, "0.0", "0%", "50.0", "50%")
    assert cells(0.5) == (*known, "500.000 ms", "50.0%", *sizes, "", "", "", "")


def test_json(program, model_path: Path, tmp_path: Path):
    trace = tmp_path / "trace.json"
    ran = program(
        "profile", model_path, "-p", "6", "--decode", "-d", "3", "-r", "2", "--threads", "1",
        "--json", "--chrome-trace", trace,
    )  # fmt: skip
    prompt, token = json.loads(ran.stdout)
    assert (prompt["test"], token["test"]) == ("pp6 @ d3", "tg1 @ d3")
    for result in (prompt, token):
        whole = sum(op["seconds"] for op in result["ops"])
        assert result["seconds_of_ops"] == pytest.approx(whole) and result["seconds"] > 0
        for rows in ("by_op", "by_module", "by_layer"):
            assert sum(row["seconds"] for row in result[rows]) == pytest.approx(whole)
        assert result["threads"] == 1 and result["repetitions"] == 2
        assert result["ops"][0]["traffic"].keys() == {"weights", "activations", "flops"}
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"pp6 @ d3", "tg1 @ d3"}


def test_an_image(program):
    ran = program("profile", SHAPES, "--image-graph", *ONE)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "gemma3, F16, image, 1 thread" in ran.stdout and "conv_2d" in ran.stdout
    assert "tg1" not in ran.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-r", "0"), "-r 0: there must be at least 1"),
        (("-p", "0"), "--prompt-length 0: give 1 or more"),
        (("-d", "-1"), "--depth -1: give 0 or more"),
        (("-p", "513"), "computed in batches of 512"),
        (("--image-graph",), "takes no images"),
        (("--backend", "reference"), "needs ggml in this process"),
        (("--chrome-trace", "/does/not/exist.json"), "cannot write /does/not/exist.json"),
    ],
)
def test_what_cannot_be_profiled(program, model_path: Path, options: tuple, message: str):
    refused(program("profile", model_path, *ONE, *options), message)


def test_no_model(program, tmp_path: Path):
    (tmp_path / "text.gguf").write_text("this is not a model, but long enough to be one")
    timeline = ("--chrome-trace", tmp_path / "timeline.json")
    refused(program("profile", tmp_path / "text.gguf", *timeline), "text.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["text.gguf"]
