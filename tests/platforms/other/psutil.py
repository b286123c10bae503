"""The part of psutil that ggmodel uses, with numbers of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

TOTAL, FREE, SWAP, PEAK, PRIVATE = 16 << 30, 9 << 30, 3 << 30, 123 << 20, 50 << 20


def virtual_memory() -> Any:
    return SimpleNamespace(total=TOTAL, available=FREE)


def swap_memory() -> Any:
    return SimpleNamespace(free=SWAP)


class Process:
    def memory_info(self) -> Any:
        return SimpleNamespace(peak_wset=PEAK, private=PRIVATE)

    def cpu_affinity(self) -> list[int]:
        return [0]
