"""The memory that a model will take, told before it is loaded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Needs:
    """The memory that a model will take, in bytes.

    Attributes:
        cpu: of the CPU's. free: what the CPU has. mapped: the part that stays in the file, which
            the system counts as free even while it is in use.
        missing: device → bytes that are lacking there.
    """

    cpu: int
    free: int = 0
    mapped: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)


Admit = Callable[[Needs], Awaitable[bool]]
"""Whether a model may be loaded; False has its process look at the memory again."""
