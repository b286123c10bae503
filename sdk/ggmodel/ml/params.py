"""Options of backends."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ..errors import ConfigError, Unsupported
from .gpu_layers import GPULayersList


class FlashAttention(enum.IntEnum):
    """Whether attention runs as one fused op; AUTO lets the backend decide."""

    AUTO = -1
    OFF = 0
    ON = 1

    @classmethod
    def parse(cls, value: str | int | FlashAttention) -> FlashAttention:
        """ "auto", "on", "off" or the number."""
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        if isinstance(value, int) and value in (-1, 0, 1):
            return cls(value)
        raise Unsupported(f"flash_attention is 'auto', 'on' or 'off', not {value!r}")


class Optimize(enum.Enum):
    """The choice where each of two arrangements of a weight is faster at something: SPEED keeps
    both where memory allows, MEMORY keeps one."""

    SPEED = "speed"
    MEMORY = "memory"

    @classmethod
    def parse(cls, value: str | Optimize) -> Optimize:
        """ "speed" or "memory"."""
        try:
            return cls(value)
        except ValueError:
            raise Unsupported(f"optimize is 'speed' or 'memory', not {value!r}") from None


_KINDS: dict[str, type] = {
    "alloc_memory": bool,
    "num_threads": int,
    "gpu_layers": GPULayersList,
    "flash_attention": FlashAttention,
    "optimize": Optimize,
    "rpc": tuple,
    "tensor_overrides": tuple,
}


@dataclass(frozen=True)
class BackendParams:
    """Options for loading and executing a model.

    Attributes:
        alloc_memory: False only measures the memory that would be needed.
        num_threads: CPU threads; 0 lets the backend choose.
        gpu_layers: the layers of each device; all others stay on the CPU.
        flash_attention: the fused attention op.
        optimize: speed or memory, where one costs the other.
        rpc: workers on other machines, "host:port", whose devices are used like this machine's.
        tensor_overrides: pairs of a regular expression and a device's name: weights whose names
            match lie there, whatever their layer. The first match counts.

    Raises:
        ConfigError: a value of the wrong type, in a tuple too, or a negative number of threads.
    """

    alloc_memory: bool = True
    num_threads: int = 0
    gpu_layers: GPULayersList = field(default_factory=GPULayersList)
    flash_attention: FlashAttention = FlashAttention.AUTO
    optimize: Optimize = Optimize.SPEED
    rpc: tuple[str, ...] = ()
    tensor_overrides: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise ConfigError(f"{name} is {value!r:.80}; it must be of type {kind.__name__}")
        if self.num_threads < 0:
            raise ConfigError(f"num_threads is {self.num_threads}; give 1 or more, 0 chooses")
        for address in self.rpc:
            if not isinstance(address, str):
                raise ConfigError(f'rpc: {address!r:.80} is no worker "host:port"')
        for pair in self.tensor_overrides:
            if not (isinstance(pair, tuple) and [*map(type, pair)] == [str, str]):
                raise ConfigError(f"tensor_overrides: {pair!r:.80} is no pattern with a device")
