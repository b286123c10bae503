"""Which layers go to which device: properties of one layout, and how a search ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmodel.ml import (
    BackendMemory,
    DeviceID,
    DeviceInfo,
    DeviceMemory,
    GPULayersList,
)
from ggmodel.runner.loading.gpu_layers import layout, search

MINIMUM = DeviceInfo("0", "CUDA").minimum_memory()


def device(id: str, room: int, library: str = "CUDA", integrated: bool = False) -> DeviceInfo:
    """One that has so many bytes for layers."""
    free = MINIMUM + room
    return DeviceInfo(id, library, f"{library}{id}", integrated=integrated, free_memory=free)


def cuda(*room: int) -> list[DeviceInfo]:
    return [device(str(i), r) for i, r in enumerate(room)]


def report(layers: Sequence[int], graphs: dict[str, int] | None = None) -> BackendMemory:
    """Layers that need so many bytes, half of them in a cache, and graphs on CUDA devices."""
    nothing = [0] * len(layers)
    gpus = [
        DeviceMemory(f"CUDA{id}", nothing, nothing, graph, device=DeviceID(id, "CUDA"))
        for id, graph in (graphs or {}).items()
    ]
    cache = [n // 2 for n in layers]
    return BackendMemory(
        DeviceMemory("CPU", [n - c for n, c in zip(layers, cache, strict=True)], cache, 99), gpus
    )


def assigned(found: GPULayersList) -> dict[str, list[int]]:
    return {g.id: list(g.layers) for g in found}


# one layout


def test_all_on_the_device_with_most_room():
    assert assigned(layout(report([5] * 4), cuda(20, 30))) == {"1": [0, 1, 2, 3]}
    assert assigned(layout(report([5] * 4), cuda(20, 20))) == {"0": [0, 1, 2, 3]}


def test_balanced_over_two():
    assert assigned(layout(report([5] * 6), cuda(28, 28))) == {"1": [0, 1, 2], "0": [3, 4, 5]}
    # 25 and 50 bytes of room: 2 and 4 layers are equal shares.
    assert assigned(layout(report([8] * 6), cuda(25, 47))) == {"0": [0, 1], "1": [2, 3, 4, 5]}


def test_what_is_left_to_others_counts():
    needs = report([10] * 3)
    (one,) = cuda(30)
    assert layout(needs, [one]).sum() == 3
    assert layout(needs, [one], overhead=1).sum() == 2
    assert layout(report([10] * 3, {"0": 1}), [one]).sum() == 2
    assert layout(report([10] * 3, {"1": 1}), [one]).sum() == 3
    assert layout(needs, [one], backoff=1e-6).sum() < 3
    assert layout(needs, [one], backoff=1.0) == GPULayersList()


def test_the_output_layer_stays_first():
    # All but one fit: of these the output layer may go if it fits beside as many others.
    assert assigned(layout(report([10, 10, 10]), cuda(20))) == {"0": [0, 1]}
    assert assigned(layout(report([10, 10, 3]), cuda(14))) == {"0": [1, 2]}
    assert assigned(layout(report([10, 10, 100]), cuda(99))) == {"0": [0, 1]}


def test_nothing_fits():
    assert layout(report([10, 10]), cuda(9, 5)) == GPULayersList()
    assert layout(report([10, 10]), cuda(-1000)) == GPULayersList()
    assert layout(report([10, 10]), []) == GPULayersList()


def test_a_number_is_forced():
    needs = report([10] * 5)
    assert assigned(layout(needs, cuda(1000), 2)) == {"0": [2, 3]}
    assert assigned(layout(needs, cuda(1000), 4)) == {"0": [0, 1, 2, 3]}
    for everything in (5, 6, -1):
        assert assigned(layout(needs, cuda(1000), everything)) == {"0": [0, 1, 2, 3, 4]}
    assert layout(needs, cuda(1000), 0) == GPULayersList()
    # Beyond what fits all devices are used, each beyond its room by the same share.
    assert assigned(layout(needs, cuda(10, 15), -1)) == {"0": [0, 1], "1": [2, 3, 4]}
    assert layout(needs, cuda(-5), -1).sum() == 5


def test_better_devices_first():
    devices = [
        device("0", 90, "Vulkan", integrated=True),
        device("0", 80, "RPC"),
        device("1", 40, "CUDA"),
        device("0", 50, "CUDA"),
        device("0", 45, "ROCm"),
    ]
    order = ["Vulkan0", "RPC0", "ROCm0", "CUDA1", "CUDA0"]
    for n, layers in enumerate((5, 9, 13, 21, 30), 1):
        found = layout(report([10] * layers), devices)
        assert [f"{g.library}{g.id}" for g in found.in_order()] == order[-n:]


NEEDS = st.lists(st.integers(0, 12), min_size=1, max_size=7)
ROOM = st.lists(st.integers(-3, 30), min_size=1, max_size=4)


def splits(count: int, parts: int):
    """All ways to cut so many layers into that many parts, some of them empty."""
    for cuts in itertools.combinations_with_replacement(range(count + 1), parts - 1):
        edges = (0, *cuts, count)
        yield [b - a for a, b in itertools.pairwise(edges)]


def shares(needs: Sequence[int], room: Sequence[int], counts: Sequence[int]) -> list[Fraction]:
    """The share of its room that each device uses; infinity as the sum of all and more."""
    found, start = [], 0
    for r, count in zip(room, counts, strict=True):
        used = sum(needs[start : start + count])
        found.append(Fraction(used, r) if r > 0 else Fraction(10**9 if count else 0))
        start += count
    return found


@given(needs=NEEDS, room=ROOM)
def test_no_other_layout_is_better(needs: list[int], room: list[int]):
    devices = cuda(*room)
    found = layout(report(needs), devices)
    used = sorted(room, reverse=True)[: len(found)][::-1]
    counts = [len(g.layers) for g in found]
    layers = [n for g in found for n in g.layers]
    blocks = len(needs) - 1
    end = blocks if layers and layers[-1] < blocks else blocks + 1
    assert layers == list(range(end - len(layers), end))
    own = {d.id: r for d, r in zip(devices, room, strict=True)}
    assert all(sum(needs[n] for n in g.layers) <= own[g.id] for g in found)

    ranked = sorted(room)
    for top in (blocks, blocks + 1):
        most = max(
            n
            for n in range(top + 1)
            for split in splits(n, len(room))
            if max(shares(needs[top - n : top], ranked, split)) <= 1
        )
        assert len(layers) >= most or (len(layers) == most - 1 and top == blocks + 1 > end)
    if layers:
        mine = needs[layers[0] : layers[-1] + 1]
        # None are left out by what is found, none could be, and none could be less loaded.
        fewer = splits(len(layers), len(found) - 1) if len(found) > 1 else ()
        assert all(max(shares(mine, used[1:], split)) > 1 for split in fewer)
        largest = max(shares(mine, [own[g.id] for g in found], counts))
        for split in splits(len(layers), len(found)):
            assert max(shares(mine, used, split)) >= largest


@given(needs=NEEDS, room=ROOM, wanted=st.integers(-1, 9))
def test_a_number_is_kept_and_balanced(needs: list[int], room: list[int], wanted: int):
    found = layout(report(needs), cuda(*room), wanted)
    blocks = len(needs) - 1
    count = blocks + 1 if wanted < 0 or wanted > blocks else wanted
    end = blocks + (count > blocks)
    layers = [n for g in found for n in g.layers]
    assert layers == list(range(end - count, end))
    if sum(needs[n] for n in layers) > sum(r for r in room if r > 0):
        ranked = sorted(max(r, 1) for r in room)
        own = {str(i): max(r, 1) for i, r in enumerate(room)}
        largest = max(Fraction(sum(needs[n] for n in g.layers), own[g.id]) for g in found)
        mine = needs[end - count : end]
        assert all(max(shares(mine, ranked, s)) >= largest for s in splits(count, len(room)))


def test_many_layers_on_many_devices_are_quick():
    needs = [7_000_000 + 13_577 * (i * i % 97) for i in range(300)]
    found = layout(report(needs), cuda(*(200_000_000 + i for i in range(16))))
    assert found.sum() == 300
    assert len(found) >= 11


# a search


class Model:
    """Dry runs of layers of 10 bytes, with `graph` bytes on each device in use; an output layer
    that leaves the CPU needs `tied` bytes more."""

    def __init__(self, blocks: int, graph: int = 0, tied: int = 0):
        self.blocks, self.graph, self.tied = blocks, graph, tied
        self.runs: list[GPULayersList] = []

    def __call__(self, layers: GPULayersList) -> BackendMemory:
        self.runs.append(layers)
        assert len(self.runs) <= 10
        needs = [10] * (self.blocks + 1)
        needs[-1] += self.tied * any(self.blocks in g.layers for g in layers)
        return report(needs, {g.id: self.graph for g in layers})


def test_a_search_ends_when_nothing_changes():
    model = Model(4, graph=3)
    assert search(model, cuda(60)).sum() == 5
    assert [x.sum() for x in model.runs] == [0, 5]
    assert layout(model(search(model, cuda(60))), cuda(60)) == search(model, cuda(60))


def test_graphs_take_their_room():
    model = Model(4, graph=11)
    assert assigned(search(model, cuda(60))) == {"0": [0, 1, 2, 3]}
    assert [x.sum() for x in model.runs] == [0, 5, 4]


def test_a_circle_ends_with_what_fits():
    # With the output layer it does not fit; without it, it seems to.
    model = Model(4, tied=30)
    assert assigned(search(model, cuda(55))) == {"0": [0, 1, 2, 3]}
    assert len(model.runs) == 3


def test_without_devices_there_is_no_dry_run(caplog: pytest.LogCaptureFixture):
    model = Model(4)
    assert search(model, []) == GPULayersList()
    assert search(model, cuda(100), 0) == GPULayersList()
    assert not caplog.records
    assert search(model, [], 3) == GPULayersList()
    assert "there is no device" in caplog.text
    assert not model.runs


@given(
    room=ROOM,
    blocks=st.integers(0, 8),
    seed=st.integers(0, 2**32),
    wanted=st.sampled_from([None, None, -1, 3]),
)
def test_every_search_ends(room: list[int], blocks: int, seed: int, wanted: int | None):
    runs: list[GPULayersList] = []

    def erratic(layers: GPULayersList) -> BackendMemory:
        """Needs that depend on the layout in a way of their own, but always the same one."""
        runs.append(layers)
        noise = layers.hash() ^ seed
        needs = [(noise >> i) % 9 for i in range(blocks + 1)]
        return report(needs, {g.id: (noise >> 40) % 7 for g in layers})

    devices = cuda(*room)
    found = search(erratic, devices, wanted)
    assert len(runs) <= 10
    if found in runs and wanted is None:
        memory = erratic(found)
        for g in found:
            used = sum(memory.cpu.weights[n] + memory.cpu.cache[n] for n in g.layers)
            graph = next(d.graph for d in memory.gpus if d.device == g.device_id)
            assert used + graph <= room[int(g.id)]
