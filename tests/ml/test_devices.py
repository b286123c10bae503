"""Devices: comparing, grouping, environment, JSON, discovery through runners."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ggmodel.errors import ComputeError
from ggmodel.ml import (
    BaseRunner,
    DeviceComparison,
    DeviceID,
    DeviceInfo,
    FilteredRunnerDiscovery,
    RunnerDiscovery,
    by_free_memory,
    by_library,
    by_performance,
    flash_attention_supported,
    get_devices_from_runner,
    get_visible_devices_env,
    library_paths,
    refresh_free_memory,
    without_duplicates,
)

MIB = 1 << 20
GIB = 1 << 30
PCI = "0000:c1:00.0"
OTHER_PCI = "0000:c2:00.0"


def device(id: str = "0", library: str = "CUDA", **more: Any) -> DeviceInfo:
    return DeviceInfo(id, library, **more)


def names(devices: list[DeviceInfo]) -> list[str]:
    return [d.library + d.id for d in devices]


def test_identity_is_part_of_a_device():
    assert device("3", name="CUDA3").device_id == DeviceID("3", "CUDA")
    assert isinstance(device(), DeviceID)


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (device(pci_id=PCI), device(pci_id=OTHER_PCI), DeviceComparison.UNIQUE),
        (device(pci_id=PCI), device(), DeviceComparison.UNIQUE),
        (device("0"), device("1"), DeviceComparison.UNIQUE),
        # Ids are unique within a library only.
        (device("0"), device("0", "Vulkan"), DeviceComparison.UNIQUE),
        (device("0"), device("0"), DeviceComparison.SAME_BACKEND),
        (device("0", pci_id=PCI), device("1", pci_id=PCI), DeviceComparison.SAME_BACKEND),
        (device(pci_id=PCI), device("0", "Vulkan", pci_id=PCI), DeviceComparison.DUPLICATE),
    ],
)
def test_compare(a: DeviceInfo, b: DeviceInfo, result: DeviceComparison):
    assert a.compare(b) is result
    assert b.compare(a) is result


def test_the_values_of_a_comparison():
    assert list(DeviceComparison) == [0, 1, 2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cuda_v9", "cuda_v12"),
        ("cuda_v12", "cuda_v13"),
        ("cuda_v12.4", "cuda_v12.10"),
        ("cuda_v12", "cuda_v12.1"),
        ("cuda_jetpack5", "cuda_jetpack6"),
    ],
)
def test_the_other_is_better_in_a_newer_version(old: str, new: str):
    a, b = (device(library_path=("/usr/my_lib", f"/usr/my_lib/{v}")) for v in (old, new))
    assert a.is_better(b)
    assert not b.is_better(a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("/x/cuda_v12",), ("/x/cuda_v12",)),
        (("/x/cuda_v12",), ("/x/rocm_v13",)),
        (("/x/cuda_v12",), ("/x/cuda_jetpack13",)),
        (("/x/vulkan",), ("/x/cuda_v12",)),
        ((), ("/x/cuda_v12",)),
        ((), ()),
    ],
)
def test_none_is_better_where_versions_do_not_compare(a: tuple[str, ...], b: tuple[str, ...]):
    one, other = device(library_path=a), device(library_path=b)
    assert not one.is_better(other)
    assert not other.is_better(one)


def test_versions_as_text():
    assert device(compute_major=8, compute_minor=6).compute() == "8.6"
    assert device(library="ROCm", compute_major=0x9, compute_minor=0x0A).compute() == "gfx90a"
    assert device(library="ROCm", compute_major=0x11, compute_minor=0x00).compute() == "gfx1100"
    assert device().compute() == ""
    assert device(driver_major=12, driver_minor=4).driver() == "12.4"
    assert device().driver() == ""


def test_minimum_memory():
    assert device().minimum_memory() == 457 * MIB
    assert device(library="Metal").minimum_memory() == 512 * MIB


def test_preferred_library():
    assert device().preferred_library(device(library="Vulkan"))
    assert device(library="ROCm").preferred_library(device(library="Vulkan"))
    assert not device(library="Vulkan").preferred_library(device())
    assert not device(library="Vulkan").preferred_library(device(library="SYCL"))


@pytest.mark.parametrize(
    ("library", "needed"),
    [("CUDA", True), ("ROCm", True), ("Vulkan", False), ("Metal", False), ("CPU", False)],
)
def test_init_validation(library: str, needed: bool):
    assert device(library=library).needs_init_validation() is needed
    env = {"PATH": "/bin"}
    device(library=library).add_init_validation(env)
    assert env == {"PATH": "/bin", "GGML_CUDA_INIT": "1"}


def test_groups_are_in_the_order_first_seen():
    devices = [
        device("0", "Vulkan", integrated=True),
        device("0", "CUDA"),
        device("1", "Vulkan"),
        device("1", "CUDA"),
    ]
    assert [names(g) for g in by_library(devices)] == [["Vulkan0", "Vulkan1"], ["CUDA0", "CUDA1"]]
    assert [names(g) for g in by_performance(devices)] == [
        ["Vulkan0"],
        ["CUDA0", "Vulkan1", "CUDA1"],
    ]
    assert by_library([]) == by_performance([]) == []


def test_by_free_memory():
    ordered = [
        device("0", integrated=True, free_memory=8 * GIB),
        device("1", integrated=True, free_memory=64 * GIB),
        device("2", free_memory=2 * GIB),
        device("3", free_memory=24 * GIB),
    ]
    shuffled = ordered.copy()
    random.Random(1).shuffle(shuffled)
    assert shuffled != ordered
    assert by_free_memory(shuffled) == ordered


@pytest.mark.parametrize(
    ("found", "supported"),
    [
        (device(library="CPU"), True),
        (device(library="cpu"), True),
        (device(library="Metal"), True),
        (device(library="ROCm"), True),
        (device(library="Vulkan"), True),
        (device(library="Vulkan", description="llvmpipe (LLVM 15.0.6, 256 bits)"), False),
        (device(library="SYCL"), False),
        (device(compute_major=7, compute_minor=0), True),
        (device(compute_major=7, compute_minor=2), False),
        (device(compute_major=7, compute_minor=5), True),
        (device(compute_major=12, compute_minor=0), True),
        # The driver's version does not matter.
        (device(compute_major=6, compute_minor=1, driver_major=12), False),
        (device(compute_major=8, compute_minor=0, driver_major=6), True),
        (device(), False),
    ],
)
def test_flash_attention(found: DeviceInfo, supported: bool):
    assert flash_attention_supported([found]) is supported
    assert flash_attention_supported([device(library="CPU"), found]) is supported


def test_visible_devices():
    devices = [
        device("0", filter_id="2"),
        device("GPU-1a2b"),
        device("0", "ROCm", filter_id="1"),
        device("1", "ROCm"),
        device("0", "Vulkan"),
        device("0", "CPU"),
    ]
    assert get_visible_devices_env(devices) == {"ROCR_VISIBLE_DEVICES": "1,1"}
    assert get_visible_devices_env(devices, must_filter=True) == {
        "CUDA_VISIBLE_DEVICES": "2,GPU-1a2b",
        "ROCR_VISIBLE_DEVICES": "1,1",
    }
    assert get_visible_devices_env([], must_filter=True) == {}


def test_library_paths():
    a = device("0", library_path=("/lib", "/lib/cuda_v12"))
    b = device("1", library_path=("/lib", "/lib/vulkan"))
    assert library_paths([a, b, a]) == ["/lib", "/lib/cuda_v12", "/lib/vulkan"]
    assert library_paths([]) == []


# duplicates


def test_of_two_libraries_the_preferred_one_drives_a_device():
    vulkan, other = device("0", "Vulkan", pci_id=PCI), device("1", "Vulkan", pci_id=OTHER_PCI)
    cuda = device("0", pci_id=PCI)
    assert without_duplicates([vulkan, other, cuda]) == [cuda, other]
    assert without_duplicates([cuda, vulkan, other]) == [cuda, other]


def test_of_two_general_libraries_the_first_drives_a_device():
    devices = [device("0", "Vulkan", pci_id=PCI), device("0", "SYCL", pci_id=PCI)]
    assert without_duplicates(devices) == devices[:1]


def of_version(version: str, *ids: str) -> list[DeviceInfo]:
    paths = ("/lib", f"/lib/cuda_{version}")
    return [device(i, pci_id=f"0000:0{i}:00.0", library_path=paths) for i in ids]


def test_the_newest_version_that_drives_all_devices_is_taken():
    v9, v12, v13 = of_version("v9", "0", "1"), of_version("v12", "0", "1"), of_version("v13", "1")
    assert without_duplicates([*v9, *v13, *v12]) == v12
    assert without_duplicates([*v12, *v9]) == v12


def test_where_none_drives_all_of_them_each_device_gets_the_newest():
    v12, v13 = of_version("v12", "0", "1"), of_version("v13", "1", "2")
    assert without_duplicates([*v12, *v13]) == [v12[0], *v13]


def test_devices_without_any_folder_stay():
    devices = [device("0"), device("1"), device("0", "RPC")]
    assert without_duplicates([*devices, devices[1]]) == devices


# JSON

FULL = DeviceInfo(
    "0",
    "CUDA",
    name="CUDA0",
    description="NVIDIA H200",
    filter_id="3",
    integrated=True,
    pci_id=PCI,
    total_memory=139 * GIB,
    free_memory=138 * GIB,
    compute_major=9,
    compute_minor=0,
    driver_major=12,
    driver_minor=4,
    library_path=("/lib", "/lib/cuda_v12"),
)


def test_json_has_the_key_names_of_the_interface():
    assert FULL.to_json() == {
        "id": "0",
        "backend": "CUDA",
        "name": "CUDA0",
        "description": "NVIDIA H200",
        "filter_id": "3",
        "integration": True,
        "pci_id": PCI,
        "total_memory": 139 * GIB,
        "free_memory": 138 * GIB,
        "ComputeMajor": 9,
        "ComputeMinor": 0,
        "driver_major": 12,
        "driver_minor": 4,
        "LibraryPath": ["/lib", "/lib/cuda_v12"],
    }


def test_json_leaves_empty_values_out():
    assert DeviceInfo("0").to_json() == {
        "id": "0",
        "name": "",
        "description": "",
        "total_memory": 0,
        "ComputeMajor": -1,
        "ComputeMinor": -1,
        "LibraryPath": [],
    }


def test_json_tells_capability_0_from_an_unknown_one():
    shown = json.loads(json.dumps(device(compute_major=0, compute_minor=0).to_json()))
    assert shown["ComputeMajor"] == shown["ComputeMinor"] == 0


# runners


class Silent:
    """A runner that only has a port."""

    def __init__(self, exited: bool = False):
        self.exited = exited

    def get_port(self) -> int:
        return 4711

    def has_exited(self) -> bool:
        return self.exited


class Runner(Silent):
    """A runner with a model on some devices, whose free memory it knows."""

    def __init__(self, *sees: DeviceInfo, active: list[DeviceID] | None = None):
        super().__init__()
        self.sees, self.active, self.asked = list(sees), active or [], 0

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        self.asked += 1
        return self.sees

    def get_active_device_ids(self) -> list[DeviceID]:
        return self.active


class Dead(Runner):
    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        raise ComputeError("gone")


def test_protocols():
    assert isinstance(Silent(), BaseRunner) and not isinstance(Silent(), RunnerDiscovery)
    assert isinstance(Runner(), RunnerDiscovery) and isinstance(Runner(), FilteredRunnerDiscovery)


def test_devices_from_a_runner():
    assert get_devices_from_runner(Runner(FULL)) == [FULL]
    with pytest.raises(ComputeError, match="port 4711 does not answer"):
        get_devices_from_runner(Silent(), timeout=1)
    with pytest.raises(ComputeError, match="ended"):
        get_devices_from_runner(Silent(exited=True))


A, B = device("0", free_memory=1), device("1", free_memory=1)


def with_free(info: DeviceInfo, free: int) -> DeviceInfo:
    return device(info.id, free_memory=free)


def test_active_runners_are_asked_for_free_memory_first():
    idle = Runner(with_free(A, 5), with_free(B, 5))
    on_a = Runner(with_free(A, 7), active=[A.device_id])
    also_on_a = Runner(with_free(A, 9), active=[A.device_id])
    refreshed = refresh_free_memory(
        [A, B], [idle, on_a, also_on_a], lambda: [with_free(A, 3), with_free(B, 4)]
    )
    assert refreshed == [with_free(A, 7), with_free(B, 4)]
    assert (idle.asked, on_a.asked, also_on_a.asked) == (0, 1, 0)


def test_nothing_is_discovered_when_runners_know_everything():
    def discover() -> list[DeviceInfo]:
        raise AssertionError

    runner = Runner(with_free(A, 7), with_free(B, 8), active=[B.device_id])
    assert refresh_free_memory([A, B], [runner], discover) == [with_free(A, 7), with_free(B, 8)]


def test_old_figures_stay_where_nobody_knows():
    assert refresh_free_memory([A, B]) == [A, B]
    assert refresh_free_memory([A], [Dead(active=[A.device_id])]) == [A]
