"""The cores and the memory that this process may use."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..platforms import machine

_ROOT = Path("/")
# Control groups of versions 2 and 1: limit (huge where there is none) and use of memory, and the
# prefix of its statistics.
_MEMORY = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


@dataclass(frozen=True)
class SystemInfo:
    """Cores and memory.

    Attributes:
        thread_count: threads to compute with.
        total_memory: bytes of system memory that this process may use.
        free_memory: bytes available without swapping, caches of files included.
        free_swap: bytes.
    """

    thread_count: int = 0
    total_memory: int = 0
    free_memory: int = 0
    free_swap: int = 0

    def to_json(self) -> dict[str, Any]:
        """The values under the interface's key names, zeros left out."""
        values = {
            "threads": self.thread_count,
            "total_memory": self.total_memory,
            "free_memory": self.free_memory,
            "free_swap": self.free_swap,
        }
        return {key: value for key, value in values.items() if value}


def system_info(root: Path = _ROOT) -> SystemInfo:
    """The present state: /proc/meminfo within the limits of the control groups.

    On other systems than Linux psutil tells it. A Linux without /proc tells the total memory only,
    and all of it counts as free.

    Args:
        root: the folder of /proc and /sys.
    """
    memory = _meminfo(root)
    if not memory and sys.platform != "linux":
        physical = machine.memory()
        return SystemInfo(available_cores(root), physical.total, physical.free, physical.swap)
    groups = list(_control_groups(root, "memory"))
    total = _within(groups, memory)
    free = memory.get("MemAvailable")
    if free is None:  # Linux before 3.14
        parts = [memory[k] for k in ("MemFree", "Buffers", "Cached") if k in memory]
        free = sum(parts) if parts else total
    swap = memory.get("SwapFree", 0)
    for folder in groups:
        for limit_file, used_file, prefix in _MEMORY:
            limit = _number(folder / limit_file)
            if limit is not None:
                used = _number(folder / used_file) or 0
                free = min(free, limit - used + _reclaimable(folder, prefix))
        swap_limit = _number(folder / "memory.swap.max")
        if swap_limit is not None:
            swap = min(swap, swap_limit - (_number(folder / "memory.swap.current") or 0))
    return SystemInfo(available_cores(root), total, max(0, min(free, total)), max(0, swap))


def total_memory(root: Path = _ROOT) -> int:
    """Bytes of system memory that this process may use, within the control groups' limits.

    Args:
        root: the folder of /proc and /sys.
    """
    return _within(_control_groups(root, "memory"), _meminfo(root))


def _within(groups: Iterable[Path], meminfo: Mapping[str, int]) -> int:
    """The total memory within the limits of these control groups."""
    total = meminfo.get("MemTotal") or machine.memory().total
    limits = [_number(folder / name) for folder in groups for name, _, _ in _MEMORY]
    return min([total, *(limit for limit in limits if limit is not None)])


def available_cores(root: Path = _ROOT) -> int:
    """The number of cores that this process may use, by affinity and the control groups' quotas.

    Args:
        root: the folder of /proc and /sys.
    """
    cores = machine.cores()
    for folder in _control_groups(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:  # version 1
            quota = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" or -1 is no quota
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's groups and of their parents, whose limits hold as well. Some
    may not exist: a container sees only a part."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = top / controller if controllers else top  # version 2 has one tree for all
        parts = [part for part in path.split("/") if part]
        if ".." in parts:  # a group outside of what is mounted here
            parts = []
        for n in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:n])


def _reclaimable(folder: Path, prefix: str) -> int:
    """Bytes of cached files, such as a mapped model, that a group gives up when memory is short."""
    lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
    keys = (f"{prefix}active_file", f"{prefix}inactive_file")
    return sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in keys)


def _meminfo(root: Path) -> dict[str, int]:
    """The lines of /proc/meminfo that are sizes, in bytes."""
    lines = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    return {
        line[0].rstrip(":"): int(line[1]) * 1024
        for line in lines
        if len(line) == 3 and line[2] == "kB"
    }


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
