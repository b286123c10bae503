"""`ggmodel estimate` as printed; what it finds is tested in tests/workbench."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ggmodel.cli.estimate import _layers
from ggmodel.workbench.estimate import DeviceEstimate
from tests.cli.test_bad_input import refused
from tests.cli.test_show_check import has_row
from tests.shapes import write_llama_1b

# A cache of 1 TiB.
TOO_MUCH = ("--context-length", 131_072, "--parallel", 128, "--kv-type", "f32")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama_1b(tmp_path_factory.mktemp("large") / "1b.gguf")


def test_estimate(program, large: Path):
    ran = program("estimate", large, "--gpu-layers", 0, "--context-length", 2048, "--parallel", 2)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    lines = ran.stdout.splitlines()
    assert lines[0].endswith("1b.gguf (llama): context 2,048, 2 sequences, cache in f16")
    header = ("device", "layers", "input", "weights", "cache", "graph", "total", "free")
    assert has_row(ran.stdout, *header)
    assert has_row(ran.stdout, "CPU", "0-16", "266.16 MiB", "986.26 MiB", "128.00 MiB")
    assert lines[-2] == "1.22 GiB of the weights stay in the mapped file"
    assert lines[-1].startswith("fits; the largest context that fits is ")


def test_a_context_beyond_the_training(program, model_path: Path):
    ran = program("estimate", model_path, "--context-length", 1000)
    assert "context 1,000" in ran.stdout
    assert ran.stdout.endswith("; texts may fall apart beyond that\n")
    assert "fall apart" not in program("estimate", model_path).stdout


def test_layers(program, large: Path):
    ran = program("estimate", large, "--gpu-layers", "0", "--per-layer")
    assert ran.returncode == 0
    assert has_row(ran.stdout, "0", "CPU", "61.64 MiB", "8.00 MiB", "69.64 MiB")
    assert has_row(ran.stdout, "15", "CPU", "61.64 MiB", "8.00 MiB", "69.64 MiB")
    assert has_row(ran.stdout, "output", "CPU", "8.00 KiB", "0 B", "8.00 KiB")


def test_as_json(program, model_path: Path):
    said = json.loads(program("estimate", model_path, "--json", "--context-length", 512).stdout)
    assert (said["fits"], said["missing"], said["context_length"]) == (True, {}, 512)
    cpu = said["devices"][-1]
    assert cpu["name"] == "CPU"
    assert len(cpu["weights"]) == len(cpu["cache"]) == 3
    parts = cpu["input_weights"] + sum(cpu["weights"]) + sum(cpu["cache"]) + cpu["graph"]
    assert cpu["size"] == parts
    assert said["size"] == sum(d["size"] for d in said["devices"])


def test_what_does_not_fit(program, large: Path):
    ran = program("estimate", large, "--gpu-layers", 0, *TOO_MUCH)
    assert (ran.returncode, ran.stderr) == (1, "")
    last = ran.stdout.splitlines()[-1]
    assert re.match(r"does not fit: .* on CPU missing; the largest context that fits is ", last)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu-layers", "some"), "--gpu-layers is 'some'; give 'auto', a number of layers"),
        (("--gpu-layers", "CUDA7=0-1"), "--gpu-layers: there is no device 'CUDA7'"),
        (("--kv-type", "f17"), "--kv-type 'f17' is not supported"),
    ],
)
def test_wrong_options(program, model_path: Path, arguments: tuple[str, ...], message: str):
    ran = program("estimate", model_path, *arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"error: {message}")


def test_a_model_that_sees(program):
    folder = Path(__file__).parents[1] / "golden" / "gemma3" / "converted"
    ran = program("estimate", folder / "text.gguf")  # its projector lies beside it
    assert ran.returncode == 0, ran.stderr
    assert "96.00 KiB of the weights see; an image takes 1.12 KiB more" in ran.stdout
    blind = program("estimate", folder / "text.gguf", "--mmproj", "")
    assert blind.returncode == 0 and "see;" not in blind.stdout
    refused(program("estimate", folder / "text.gguf", "--mmproj", "none.gguf"), "none.gguf")


def test_a_layer_names_every_device_that_has_a_part_of_it():
    """Its own device even without weights, and that of single weights placed elsewhere."""

    def device(name: str, layers: list[int], weights: list[int], cache: list[int]):
        return DeviceEstimate(name, "", layers, 0, weights, cache, 0, 0)

    devices = [
        device("CUDA0", [0, 1], [5, 0, 0], [0, 0, 0]),
        device("CUDA1", [], [0, 7, 0], [0, 0, 0]),
        device("CPU", [2], [0, 0, 1], [3, 0, 0]),
    ]
    assert [row[:2] for row in _layers(devices)] == [
        ("0", "CUDA0, CPU"),
        ("1", "CUDA0, CUDA1"),
        ("output", "CPU"),
    ]
