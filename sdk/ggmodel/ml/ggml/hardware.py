"""The devices of a model, and the placement of its layers on them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from ...closing import closed_on_error
from ...errors import ConfigError
from ...native import lib
from ..devices import DeviceID, DeviceInfo
from ..node import Node
from ..params import BackendParams
from ..system import available_cores
from .discovery import discover
from .memory import Arena, Device
from .scratch import Scratch
from .threads import Threads

log = logging.getLogger("ggmodel.ml")

_CPU = DeviceInfo("0", "CPU", name="CPU")
_MOST_DEVICES = 16  # limit of ggml's scheduler, the CPU included; more end the process


def by_name(info: DeviceInfo) -> Any:
    """The `ggml_backend_dev_t` of a device."""
    return lib.ggml_backend_dev_by_name(info.name.encode())


class Hardware:
    """The CPU, and the devices that a part of the model is placed on.

    Attributes:
        cpu: the CPU. gpus: all other devices in use, in the order of their first layer.
        n_threads: the most CPU threads. threads: the pool that computes now.
        scratch: the CPU's scratch memory.
        offloads: whether a device takes over large products of weights in system memory.

    Raises:
        ConfigError: layers or weights are placed on a device, or at a layer, that does not exist.
    """

    def __init__(self, params: BackendParams, block_count: int):
        self.block_count = block_count
        handle = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
        self.cpu = Device(_CPU, handle)
        self.gpus: list[Device] = []
        # ggml's threads wait for each other in a spin: more threads than cores nearly stand still.
        cores = min(available_cores(), lib.GGML_MAX_N_THREADS)
        self.n_threads = min(params.num_threads or cores, cores)
        if params.num_threads > cores:
            log.warning("threads: %d wanted, %d used", params.num_threads, cores)
        adapts = not params.num_threads
        self.threads = Threads(self.cpu.backend, self.n_threads, adapts)
        self.scratch = Scratch(self.cpu, self.n_threads)
        with closed_on_error(self):
            self._open(params)
        self.offloads = any(_takes_over(gpu) for gpu in self.gpus)

    def _open(self, params: BackendParams) -> None:
        self._layers: dict[int, Device] = {}
        self._overrides: list[tuple[re.Pattern[str], Device]] = []
        if not any(g.layers for g in params.gpu_layers) and not params.tensor_overrides:
            return
        found = discover()
        opened: dict[DeviceID, Device] = {}

        def device(info: DeviceInfo) -> Device:
            if info.device_id not in opened:
                opened[info.device_id] = Device(info, by_name(info))
                self.gpus.append(opened[info.device_id])
            return opened[info.device_id]

        for group in params.gpu_layers.in_order():
            if not group.layers:
                continue
            info = next((d for d in found if d.device_id == group.device_id), None)
            if info is None:
                raise ConfigError(
                    f"layers are placed on device {group.library}:{group.id}; there {_names(found)}"
                )
            if group.layers[-1] > self.block_count:
                raise ConfigError(
                    f"layer {group.layers[-1]} is placed on {info.name}; the layers are 0 to "
                    f"{self.block_count}, the last one the output layer"
                )
            self._layers.update(dict.fromkeys(group.layers, device(info)))
        for pattern, name in params.tensor_overrides:
            self._overrides.append((_compiled(pattern), self._named(name, found, device)))
        if len(self.devices) > _MOST_DEVICES:
            raise ConfigError(
                f"the model is placed on {len(self.devices)} devices, the CPU included; ggml "
                f"computes on {_MOST_DEVICES} at most"
            )

    def _named(self, name: str, found: list[DeviceInfo], device: Any) -> Device:
        if name.upper() == "CPU":
            return self.cpu
        info = next((d for d in found if d.name == name), None)
        if info is None:
            raise ConfigError(
                f"weights are placed on device {name!r}; there is the CPU and {_names(found)}"
            )
        return device(info)

    @property
    def devices(self) -> list[Device]:
        """All in use, the CPU last."""
        return [*self.gpus, self.cpu]

    def of_layer(self, layer: int) -> Device:
        """The device of a layer; numbers beyond the last are the output layer's."""
        return self._layers.get(min(layer, self.block_count), self.cpu)

    def of_weight(self, node: Node, layer: int) -> Device:
        """The home of a weight that the layer reads: an override, else the layer's device."""
        wanted = (d for pattern, d in self._overrides if pattern.search(node.name))
        return self._home(node, next(wanted, self.of_layer(layer)))

    def of_state(self, node: Node, layer: int) -> Device:
        """The home of a state of the layer."""
        return self._home(node, self.of_layer(layer))

    def _home(self, node: Node, device: Device) -> Device:
        return device if device is self.cpu or device.holds(node) else self.cpu

    def close(self) -> None:
        """Frees the devices; idempotent."""
        for device in self.devices:
            device.close()
        self.threads.close()


def _names(found: Iterable[DeviceInfo]) -> str:
    names = ", ".join(f"{d.name} ({d.library}:{d.id})" for d in found)
    return f"is {names}" if names else "is none; see `ggmodel devices`"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from None


def _takes_over(device: Device) -> bool:
    """Whether the device takes over a large product of a weight in system memory."""
    with closing(Arena(8)) as arena:
        a, b = (lib.ggml_new_tensor_2d(arena.ctx, lib.GGML_TYPE_F32, 256, 512) for _ in range(2))
        return lib.ggml_backend_dev_offload_op(device.handle, lib.ggml_mul_mat(arena.ctx, a, b))
