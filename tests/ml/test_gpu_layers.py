"""Layers on devices, and splits by numbers of layers and shares."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmodel.errors import ConfigError
from ggmodel.ml import DeviceID, DeviceInfo, GPULayers, GPULayersList, gpu_layers_from_split


def on(id: str, *layers: int, library: str = "CUDA") -> GPULayers:
    return GPULayers(id, library, layers)


def assigned(found: GPULayersList) -> dict[str, list[int]]:
    return {g.id: list(g.layers) for g in found}


def test_layers_are_a_set():
    assert on("0", 3, 1, 3) == on("0", 1, 3)
    assert on("0", 1).device_id == DeviceID("0", "CUDA")
    with pytest.raises(ConfigError, match="layer -1"):
        on("0", 4, -1)


def test_first_layer():
    assert on("0", 7, 5, 6).first_layer() == 5
    assert on("0").first_layer() == sys.maxsize


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((), ""),
        ((4,), "ID:0 Layers:1(4..4)"),
        ((12, 10, 11), "ID:0 Layers:3(10..12)"),
        ((1, 7, 4), "ID:0 Layers:3[1 4 7]"),
    ],
)
def test_text(layers: tuple[int, ...], text: str):
    assert str(on("0", *layers)) == text


def test_list():
    layers = GPULayersList([on("1", 5, 6, 7), on("2"), on("0", 0, 1)])
    assert len(layers) == 3
    assert layers.sum() == 5
    assert [g.id for g in layers.in_order()] == ["0", "1", "2"]
    assert str(layers.in_order()[:2]) != str(layers)
    assert str(GPULayersList([on("0", 0, 1), on("1", 2)])) == (
        "3[ID:0 Layers:2(0..1) ID:1 Layers:1(2..2)]"
    )
    assert str(GPULayersList()) == "[]"
    assert GPULayersList().sum() == 0


def test_a_layer_is_on_one_device():
    with pytest.raises(ConfigError, match="layer 2 is on more than one device"):
        GPULayersList([on("0", 1, 2), on("1", 2, 3)])


def test_hash_identifies_the_assignment():
    a, b = on("0", 0, 1), on("1", 2, 3)
    base = GPULayersList([a, b]).hash()
    assert 0 <= base < 1 << 64
    assert GPULayersList([b, a, on("2")]).hash() == base
    others = [
        GPULayersList([a]),
        GPULayersList([on("0", 0), on("1", 1, 2, 3)]),
        GPULayersList([on("1", 0, 1), on("0", 2, 3)]),
        GPULayersList([on("0", 0, 1, library="ROCm"), b]),
        GPULayersList(),
    ]
    assert len({base, *(x.hash() for x in others)}) == 6


def test_hash_is_the_same_in_every_process():
    code = (
        "from ggmodel.ml import GPULayers, GPULayersList\n"
        "print(GPULayersList([GPULayers('0', 'CUDA', (0, 1))]).hash())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ran.stdout) == GPULayersList([on("0", 0, 1)]).hash()


# splits

DEVICES = [DeviceInfo(str(i), "CUDA", free_memory=free) for i, free in enumerate((10, 10, 20))]


def test_the_last_layers_go_to_devices():
    assert assigned(gpu_layers_from_split(DEVICES[:1], 8, 3)) == {"0": [5, 6, 7]}
    assert assigned(gpu_layers_from_split(DEVICES[:1], 2, 2)) == {"0": [0, 1]}


@pytest.mark.parametrize("n", [-1, 9, 1000])
def test_one_more_than_all_includes_the_output_layer(n: int):
    assert assigned(gpu_layers_from_split(DEVICES[:1], 8, n)) == {"0": list(range(9))}


@pytest.mark.parametrize("devices", [[], DEVICES])
def test_no_layers(devices: list[DeviceInfo]):
    assert gpu_layers_from_split(devices, 8, 0 if devices else -1) == GPULayersList()


def test_without_a_split_free_memory_decides():
    split = gpu_layers_from_split(DEVICES, 7, -1)
    assert assigned(split) == {"0": [0, 1], "1": [2, 3], "2": [4, 5, 6, 7]}
    assert gpu_layers_from_split(DEVICES, 7, -1, tensor_split=(0, 0, 0)) == split


def test_devices_that_do_not_tell_their_memory_share_evenly():
    devices = [DeviceInfo("0", "X"), DeviceInfo("1", "X")]
    assert assigned(gpu_layers_from_split(devices, 3, -1)) == {"0": [0, 1], "1": [2, 3]}


def test_split():
    split = gpu_layers_from_split(DEVICES, 9, 4, tensor_split=(3, 0, 1))
    assert assigned(split) == {"0": [5, 6, 7], "2": [8]}
    assert assigned(gpu_layers_from_split(DEVICES, 3, -1, tensor_split=(0, 1))) == {
        "1": [0, 1, 2, 3]
    }


def test_ten_tenths_are_ten_equal_shares():
    devices = [DeviceInfo(str(i), "CUDA") for i in range(10)]
    split = gpu_layers_from_split(devices, 29, -1, tensor_split=[0.1] * 10)
    assert [len(g.layers) for g in split] == [3] * 10


def test_main_gpu():
    assert assigned(gpu_layers_from_split(DEVICES, 2, -1, main_gpu=1)) == {"1": [0, 1, 2]}
    # A split selects its devices itself.
    split = gpu_layers_from_split(DEVICES, 2, -1, main_gpu=1, tensor_split=(1,))
    assert assigned(split) == {"0": [0, 1, 2]}


@pytest.mark.parametrize(
    ("main_gpu", "split", "message"),
    [
        (3, (), "main_gpu is 3; there are 3"),
        (-1, (), "main_gpu is -1"),
        (None, (1, -1, 1), "0 or more"),
        (None, (1, float("nan")), "0 or more"),
        (None, (1, 1, 1, 1), "more shares than the 3"),
    ],
)
def test_impossible_parameters(main_gpu: int | None, split: tuple[float, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        gpu_layers_from_split(DEVICES, 2, -1, main_gpu=main_gpu, tensor_split=split)


@given(
    shares=st.lists(st.floats(0, 100), min_size=1, max_size=5),
    blocks=st.integers(1, 40),
    wanted=st.integers(0, 45),
)
def test_every_layer_goes_to_one_device_in_ascending_order(
    shares: list[float], blocks: int, wanted: int
):
    devices = [DeviceInfo(str(i), "CUDA", free_memory=1) for i in range(len(shares))]
    split = gpu_layers_from_split(devices, blocks, wanted, tensor_split=shares)
    layers = [n for g in split for n in g.layers]
    first = max(0, blocks - wanted)
    assert layers == list(range(first, min(first + wanted, blocks + 1)))
    assert split == split.in_order()
    if any(shares):
        for g in split:
            assert shares[int(g.id)] > 0
            share = shares[int(g.id)] / sum(shares)
            assert abs(len(g.layers) - share * len(layers)) <= 1.001
