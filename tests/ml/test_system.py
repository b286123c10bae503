"""Cores and memory, read from files in the kernel's format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ggmodel.ml import SystemInfo, system_info
from ggmodel.ml.system import available_cores, total_memory

GIB = 1 << 30
MEMINFO = """\
MemTotal:       16777216 kB
MemFree:         1048576 kB
MemAvailable:    8388608 kB
Buffers:          262144 kB
Cached:           786432 kB
SwapTotal:       4194304 kB
SwapFree:        2097152 kB
HugePages_Total:       0
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, {"proc/meminfo": MEMINFO})
    return tmp_path


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


def test_this_machine():
    info = system_info()
    assert info.thread_count == available_cores() >= 1
    assert 0 < info.free_memory <= info.total_memory
    assert info.free_swap >= 0


def test_without_limits(root: Path):
    info = system_info(root)
    assert info == SystemInfo(info.thread_count, 16 * GIB, 8 * GIB, 2 * GIB)


def test_an_old_kernel(root: Path):
    text = "".join(x for x in MEMINFO.splitlines(True) if "Available" not in x)
    write(root, {"proc/meminfo": text})
    assert system_info(root).free_memory == 2 * GIB


def test_without_proc(tmp_path: Path):
    info = system_info(tmp_path)
    assert info.total_memory == info.free_memory > 0


def in_groups(
    root: Path, files: Mapping[str, object], groups: str = "0::/", folder: str = "sys/fs/cgroup"
) -> SystemInfo:
    """The system as a process of these control groups sees it.

    Args:
        files: below the folder.
        groups: the text of /proc/self/cgroup.
    """
    below = {f"{folder}/{name}": value for name, value in files.items()}
    write(root, {"proc/self/cgroup": groups, **below})
    return system_info(root)


def test_a_control_group_limits_memory(root: Path):
    files = {
        "memory.max": 4 * GIB,
        "memory.current": 3 * GIB,
        # Cached files can be dropped; tmpfs (also part of "file") cannot.
        "memory.stat": f"file {2 * GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}",
        "memory.swap.max": GIB,
        "memory.swap.current": GIB // 4,
    }
    info = in_groups(root, files)
    assert (info.total_memory, info.free_memory) == (4 * GIB, 5 * GIB // 2)
    assert info.free_swap == 3 * GIB // 4


def test_the_tightest_of_nested_groups_counts(root: Path):
    files = {
        "outer/memory.max": 6 * GIB,
        "outer/memory.current": 5 * GIB,
        "outer/inner/memory.max": "max",
        "outer/inner/memory.current": GIB,
    }
    info = in_groups(root, files, "0::/outer/inner")
    assert (info.total_memory, info.free_memory) == (6 * GIB, GIB)


def test_all_memory_alone_is_the_same_figure(root: Path):
    files = {"b/memory.max": 6 * GIB, "memory/a/memory.limit_in_bytes": 5 * GIB}
    info = in_groups(root, files, "4:memory:/a\n0::/b")
    assert total_memory(root) == info.total_memory == 5 * GIB
    info = in_groups(root, {"memory.max": 4 * GIB}, "4:memory:/a\n0::/b")
    assert total_memory(root) == info.total_memory == 4 * GIB


def test_the_machine_may_be_tighter_than_the_group(root: Path):
    info = in_groups(root, {"memory.max": 64 * GIB, "memory.current": GIB})
    assert (info.total_memory, info.free_memory) == (16 * GIB, 8 * GIB)


def test_a_group_above_its_limit_has_nothing_free(root: Path):
    memory = {"memory.max": GIB, "memory.current": 2 * GIB}
    info = in_groups(root, memory | {"memory.swap.max": 0, "memory.swap.current": 1})
    assert (info.free_memory, info.free_swap) == (0, 0)


def test_groups_of_version_1(root: Path):
    files = {
        "a/b/memory.limit_in_bytes": 4 * GIB,
        "a/b/memory.usage_in_bytes": 3 * GIB,
        "a/b/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}",
        "memory.limit_in_bytes": (1 << 63) - 4096,
        "memory.usage_in_bytes": 9 * GIB,
    }
    groups = "5:cpu,cpuacct:/\n4:memory:/a/b\n0::/"
    info = in_groups(root, files, groups, "sys/fs/cgroup/memory")
    assert (info.total_memory, info.free_memory) == (4 * GIB, 2 * GIB)


@pytest.mark.usefixtures("_many_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": "400000 100000"}, 4),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"inner/cpu.max": "300000 100000", "cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "nonsense"}, 64),
        ({"cpu/inner/cpu.cfs_quota_us": 800000, "cpu/inner/cpu.cfs_period_us": 100000}, 8),
        ({"cpu/inner/cpu.cfs_quota_us": -1, "cpu/inner/cpu.cfs_period_us": 100000}, 64),
    ],
)
def test_cores(root: Path, files: dict[str, object], cores: int):
    write(root, {"proc/self/cgroup": "3:cpu,cpuacct:/inner\n0::/inner"})
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert available_cores(root) == cores


@pytest.mark.usefixtures("_many_cores")
def test_a_group_outside_of_what_is_mounted(root: Path):
    write(
        root,
        {"proc/self/cgroup": "0::/../other", "sys/fs/cgroup/cpu.max": "200000 100000"},
    )
    assert available_cores(root) == 2


def test_json():
    assert SystemInfo(4, 16, 8, 2).to_json() == {
        "threads": 4,
        "total_memory": 16,
        "free_memory": 8,
        "free_swap": 2,
    }
    assert SystemInfo(4, 16, 8).to_json().keys() == {"threads", "total_memory", "free_memory"}
