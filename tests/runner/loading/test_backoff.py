"""Devices that have less room than they said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ggmodel.errors import OutOfMemory
from ggmodel.ml import AllocationStatus, BackendMemory, DeviceMemory, GPULayers, GPULayersList
from ggmodel.runner.loading.gpu_layers import with_backoff


def fewer(backoff: float) -> GPULayersList:
    """Ten layers, fewer by the backoff; none from 0.8 on."""
    count = int(10 * (1 - backoff)) if backoff < 0.75 else 0
    return GPULayersList([GPULayers("0", "CUDA", tuple(range(count)))] if count else [])


def allocator(most: int) -> tuple[list[int], Callable[[GPULayersList], int]]:
    """The list of attempts, and an allocation of at most so many layers."""
    tried: list[int] = []

    def allocate(layers: GPULayersList) -> int:
        tried.append(layers.sum())
        if layers.sum() > most:
            raise OutOfMemory(f"{layers.sum()} layers")
        return layers.sum()

    return tried, allocate


def test_the_first_attempt_mostly_does():
    tried, allocate = allocator(10)
    assert with_backoff(allocate, fewer) == 10
    assert tried == [10]


def test_fewer_layers(caplog: pytest.LogCaptureFixture):
    tried, allocate = allocator(8)
    assert with_backoff(allocate, fewer) == 8
    assert tried == [10, 9, 8]
    assert "10[ID:0 Layers:10(0..9)] do not fit, trying fewer: 10 layers" in caplog.text


def test_a_layout_is_tried_once():
    tried, allocate = allocator(5)
    assert with_backoff(allocate, lambda backoff: fewer(0.0 if backoff < 0.5 else 0.5)) == 5
    assert tried == [10, 5]


def test_the_cpu_is_the_last_resort():
    tried, allocate = allocator(0)
    assert with_backoff(allocate, fewer) == 0
    assert tried[-2:] == [3, 0]
    assert with_backoff(allocate, lambda backoff: fewer(0.0)) == 0
    with pytest.raises(OutOfMemory, match="0 layers"):
        with_backoff(allocator(-1)[1], fewer)


FAILED, UNALLOCATED = AllocationStatus.FAILED, AllocationStatus.UNALLOCATED


@pytest.mark.parametrize(("gpu", "again"), [(UNALLOCATED, False), (FAILED, True)])
def test_fewer_layers_on_devices_are_no_help_to_the_cpu(gpu: AllocationStatus, again: bool):
    tried: list[GPULayersList] = []

    def allocate(layers: GPULayersList) -> int:
        tried.append(layers)
        cpu, cuda = (DeviceMemory("", [], [], status=status) for status in (FAILED, gpu))
        raise OutOfMemory("all taken", BackendMemory(cpu, [cuda]))

    with pytest.raises(OutOfMemory):
        with_backoff(allocate, fewer)
    assert (len(tried) > 1) == again
