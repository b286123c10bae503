"""Options of backends, and the placement of a model's layers on devices.

A weight is placed and counted with a layer by whole segments of its dotted name.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from ..errors import ConfigError, Unsupported
from .arguments import checked_call
from .devices import DeviceID, DeviceInfo

if TYPE_CHECKING:
    from fractions import Fraction

    from ..gguf_file.values import KeyValues

INPUT = -1  # the input: system memory, immovable

_INPUTS = frozenset({"token_embd", "position_embd", "token_types", "token_embd_norm"})
_STACKS = {"enc", "dec"}


def blocks_of(keys: KeyValues) -> int:
    """The number of layers of a file: of an encoder and a decoder the larger."""
    count = keys.get("block_count", int) or 0
    return max(count, keys.get("decoder_block_count", int) or count)


def layer_of(name: str, block_count: int) -> int:
    """The layer of a weight: its block's number, `INPUT`, or `block_count`, the output layer.

    Only a leading `blk.N` is a layer number, or one behind `enc.` or `dec.`; other integers in a
    name are not.
    """
    head, *rest = name.split(".")
    if head in _STACKS and rest:
        head, *rest = rest
    if head in _INPUTS:
        return INPUT
    if head == "blk" and rest and rest[0].isdecimal():
        return min(int(rest[0][:20]), block_count)  # Python refuses thousands of digits
    return block_count


@dataclass(frozen=True)
class GPULayers(DeviceID):
    """The layers on one device.

    Attributes:
        layers: their numbers, ascending, each once; `block_count` is the output layer.
    """

    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in self.layers):
            raise ConfigError(f"device {self.id}: layers are numbers, not {self.layers!r:.80}")
        object.__setattr__(self, "layers", tuple(sorted(set(self.layers))))
        if self.layers and self.layers[0] < 0:
            raise ConfigError(f"device {self.id}: layer {self.layers[0]}; layers count from 0")

    @property
    def device_id(self) -> DeviceID:
        """The device."""
        return DeviceID(self.id, self.library)

    def first_layer(self) -> int:
        """The lowest layer; `sys.maxsize` if there is none."""
        return self.layers[0] if self.layers else sys.maxsize

    def __str__(self) -> str:
        """ "ID:0 Layers:5(10..14)", or "ID:0 Layers:3[1 4 7]" where some are left out."""
        if not self.layers:
            return ""
        first, last, count = self.layers[0], self.layers[-1], len(self.layers)
        contiguous = last - first + 1 == count
        which = f"({first}..{last})" if contiguous else f"[{' '.join(map(str, self.layers))}]"
        return f"ID:{self.id} Layers:{count}{which}"


class GPULayersList(tuple[GPULayers, ...]):
    """The layers on each of several devices.

    Raises:
        ConfigError: a layer is on two devices.
    """

    __slots__ = ()

    @checked_call()
    def __new__(cls, devices: Iterable[GPULayers] = ()) -> GPULayersList:
        self = super().__new__(cls, devices)
        if not all(isinstance(g, GPULayers) for g in self):
            raise ConfigError(f"a GPULayersList holds GPULayers, not {devices!r:.80}")
        twice = [n for n, count in Counter(n for g in self for n in g.layers).items() if count > 1]
        if twice:
            raise ConfigError(f"layer {min(twice)} is on more than one device: {self}")
        return self

    def sum(self) -> int:
        """Layers on all devices."""
        return sum(len(g.layers) for g in self)

    def in_order(self) -> GPULayersList:
        """The devices by their first layer, those without any last."""
        return GPULayersList(sorted(self, key=GPULayers.first_layer))

    def hash(self) -> int:
        """64 bits that identify the assignment, the same in every process. The order of devices
        and devices without layers do not matter."""
        used = sorted((g.library, g.id, g.layers) for g in self if g.layers)
        digest = hashlib.blake2b(json.dumps(used).encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "little")

    def __str__(self) -> str:
        """ "12[ID:0 Layers:5(0..4) ID:1 Layers:7(5..11)]"; the sum is left out when zero."""
        return f"{self.sum() or ''}[{' '.join(map(str, self))}]"


def gpu_layers_from_split(
    devices: Sequence[DeviceInfo],
    block_count: int,
    num_gpu_layers: int,
    *,
    main_gpu: int | None = None,
    tensor_split: Sequence[float] = (),
) -> GPULayersList:
    """The assignment for a number of layers and shares of the devices.

    The layers go to the devices in ascending order, each device taking its share. The output
    layer is last: num_gpu_layers = block_count + 1 includes it.

    Args:
        devices: the GPUs.
        block_count: the model's layers, the output layer not counted.
        num_gpu_layers: how many layers, the last ones, go to the devices; negative is all.
        main_gpu: the index of the one device to use where there is no split; None uses them all.
        tensor_split: a share for each device, in any unit; none, or all zero, is by free memory.

    Raises:
        ConfigError: an invalid share or index.
    """
    shares = _shares(devices, main_gpu, tensor_split)
    if num_gpu_layers < 0:
        num_gpu_layers = block_count + 1
    start = max(0, block_count - num_gpu_layers)
    count = min(start + num_gpu_layers, block_count + 1) - start
    ends = list(accumulate(shares))
    layers: list[list[int]] = [[] for _ in devices]
    if devices:
        for i in range(count):
            # The first device whose share ends beyond this layer; the last one's ends at the sum.
            device = next(d for d, end in enumerate(ends) if i * ends[-1] < end * count)
            layers[device].append(start + i)
    return GPULayersList(
        GPULayers(d.id, d.library, tuple(own))
        for d, own in zip(devices, layers, strict=True)
        if own
    )


def _shares(
    devices: Sequence[DeviceInfo], main_gpu: int | None, tensor_split: Sequence[float]
) -> list[Fraction]:
    if main_gpu is not None and not 0 <= main_gpu < len(devices):
        raise ConfigError(f"main_gpu is {main_gpu}; there are {len(devices)} devices")
    if any(not math.isfinite(share) or share < 0 for share in tensor_split):
        raise ConfigError(f"tensor_split {list(tensor_split)}: shares are 0 or more")
    if any(tensor_split[len(devices) :]):
        raise ConfigError(
            f"tensor_split {list(tensor_split)} has more shares than the {len(devices)} devices"
        )
    from fractions import Fraction  # slow to import

    if any(tensor_split):
        # Exact and as written, so that ten times 0.1 are the ten tenths of a whole.
        shares = [Fraction(repr(float(share))) for share in tensor_split]
        return [*shares, *[Fraction(0)] * len(devices)][: len(devices)]
    if main_gpu is not None:
        return [Fraction(i == main_gpu) for i in range(len(devices))]
    free = [Fraction(d.free_memory) for d in devices]
    return free if any(free) else [Fraction(1)] * len(devices)


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
    "deterministic": bool,
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
        deterministic: sums have one order, whatever is computed beside them; on the CPU alone.
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
    deterministic: bool = False
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
