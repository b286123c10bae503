"""The values that `gpu_layers` may have, and their effect."""

from __future__ import annotations

import pytest

from ggmodel.errors import ConfigError
from ggmodel.ml import BackendMemory, DeviceInfo, DeviceMemory, GPULayers, GPULayersList
from ggmodel.runner.loading.gpu_layers import (
    GPURequest,
    choose_layers,
    named_layers,
    parse_gpu_layers,
)


@pytest.mark.parametrize(
    ("value", "request_"),
    [
        ("auto", GPURequest()),
        (0, GPURequest(0)),
        ("12", GPURequest(12)),
        (-1, GPURequest(-1)),
        ("-1", GPURequest(-1)),
        ("CUDA0=0-15,CUDA1=16", GPURequest(named=(("CUDA0", range(16)), ("CUDA1", 16)))),
        ({"CUDA0": 3}, GPURequest(named=(("CUDA0", 3),))),
        ({"CUDA0": {5, 4}}, GPURequest(named=(("CUDA0", (4, 5)),))),
        ({}, GPURequest(named=())),
        (GPULayersList([GPULayers("1", "CUDA", (2,))]), GPURequest(named=(("CUDA:1", (2,)),))),
    ],
)
def test_requests(value: object, request_: GPURequest):
    assert parse_gpu_layers(value) == request_
    assert request_.automatic == (value == "auto")


@pytest.mark.parametrize(
    "value",
    [
        *("", "all", "-2", "1.5", "²", "9" * 30, "CUDA0", "CUDA0=", "CUDA0=5-4", "CUDA0=0-1,"),
        *(-2, True, 1.5, None, ["CUDA0"], {0: 1}, {"CUDA0": -1}, {"CUDA0": "1"}, {"CUDA0": [True]}),
    ],
)
def test_what_is_no_request(value: object):
    with pytest.raises(ConfigError, match=r"gpu_layers is .*give 'auto', a number of layers"):
        parse_gpu_layers(value)


DEVICES = [DeviceInfo(id, "CUDA", f"CUDA{id}", free_memory=1 << 30) for id in "01"]


def assigned(found: GPULayersList) -> dict[str, list[int]]:
    return {g.id: list(g.layers) for g in found}


def named(value: object, blocks: int = 8) -> dict[str, list[int]]:
    request = parse_gpu_layers(value)
    assert request.named is not None
    return assigned(named_layers(request.named, DEVICES, blocks))


def test_named_layers():
    assert named("cuda0=0-3, CUDA:1=8-8") == {"0": [0, 1, 2, 3], "1": [8]}
    assert named({"CUDA1": range(7, 3, -1)}) == {"1": [4, 5, 6, 7]}
    assert named({"CUDA1": [], "CUDA0": ()}) == {"0": [], "1": []}
    assert named({}) == {}


def test_numbers_by_device():
    assert named("CUDA0=2,CUDA1=3") == {"0": [3, 4], "1": [5, 6, 7]}
    assert named({"CUDA1": 4, "CUDA0": 5}) == {"1": [0, 1, 2, 3], "0": [4, 5, 6, 7, 8]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("CUDA2=0-1", r"no device 'CUDA2'; there is CUDA0 \(CUDA:0\), CUDA1 \(CUDA:1\)"),
        ("CUDA0=0-9", "layer 9; the model has 0 to 7, and 8 is its output layer"),
        ("CUDA0=0-999999999", "layer 999999999"),
        ({"CUDA0": range(10**18)}, "layer 9+;"),
        ({"CUDA0": [-1, 3]}, "layer -1"),
        ("CUDA0=5,CUDA1=5", "layer 9"),
        ("CUDA0=0-1,CUDA:0=2-3", "CUDA0 twice"),
        ("CUDA0=0-2,CUDA1=2-3", "layer 2 is on more than one"),
        ("CUDA0=0-2,CUDA1=2", "each a number"),
    ],
)
def test_impossible_layers(value: object, message: str):
    with pytest.raises(ConfigError, match=message):
        named(value)


def test_named_layers_are_not_searched():
    runs: list[GPULayersList] = []

    def dry_run(layers: GPULayersList) -> BackendMemory:
        runs.append(layers)
        return BackendMemory(DeviceMemory("CPU", [10] * 9, [1] * 9))

    found = choose_layers(parse_gpu_layers("CUDA1=0-3"), dry_run, DEVICES, 8)
    assert assigned(found) == {"1": [0, 1, 2, 3]}
    assert not runs
    assert choose_layers(parse_gpu_layers(2), dry_run, DEVICES, 8).sum() == 2
    assert choose_layers(parse_gpu_layers("auto"), dry_run, DEVICES, 8).sum() == 9
    with pytest.raises(ConfigError, match="there is none"):
        choose_layers(parse_gpu_layers("CUDA0=0-3"), dry_run, [], 8)


def test_a_device_that_two_libraries_drive_is_used_once():
    one = {"name": "0", "pci_id": "0000:01:00.0", "free_memory": 1 << 40}
    twice = [DeviceInfo("0", library, **one) for library in ("Vulkan", "CUDA")]

    def dry_run(layers: GPULayersList) -> BackendMemory:
        return BackendMemory(DeviceMemory("CPU", [1 << 38] * 9, [1] * 9))

    chosen = choose_layers(parse_gpu_layers("auto"), dry_run, twice, 8)
    assert [group.library for group in chosen] == ["CUDA"]
