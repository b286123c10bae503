"""The option `gpu_layers`: its spellings, and the layers that it means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import ConfigError
from ...ml import DeviceInfo, GPULayers, GPULayersList, without_duplicates
from .gpu_split import DryRun, search

GPULayersOption = int | str | Mapping[str, int | Iterable[int]] | GPULayersList

_ALLOWED = (
    "'auto', a number of layers (-1 is all), or layers by device, such as 'CUDA0=0-15,CUDA1=16-32' "
    "or {'CUDA0': range(16), 'CUDA1': range(16, 33)}"
)


@dataclass(frozen=True)
class GPURequest:
    """The layers wanted on devices; as many as fit without count and names.

    Attributes:
        count: number of layers, placed by the layout; negative is all.
        named: device by name or "LIBRARY:id", and its layers or their number.
    """

    count: int | None = None
    named: tuple[tuple[str, int | Sequence[int]], ...] | None = None

    @property
    def automatic(self) -> bool:
        """Whether ggmodel chooses the layout, and may take fewer layers."""
        return self.count is None and self.named is None


def parse_gpu_layers(value: object) -> GPURequest:
    """Reads "auto", a number, "CUDA0=0-15,CUDA1=16-32", a mapping of devices to layers or to
    numbers of layers, or a `GPULayersList`.

    Raises:
        ConfigError: another value; the message lists the allowed ones.
    """
    if isinstance(value, GPULayersList):
        return GPURequest(named=tuple((f"{g.library}:{g.id}", g.layers) for g in value))
    if isinstance(value, Mapping):
        return GPURequest(
            named=tuple((_name(k, value), _layers(v, value)) for k, v in value.items())
        )
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return GPURequest(count=value)
    if isinstance(value, str):
        text = value.strip()
        if text == "auto":
            return GPURequest()
        if re.fullmatch(r"-1|[0-9]{1,9}", text):
            return GPURequest(count=int(text))
        if "=" in text:
            return GPURequest(named=tuple(_assignment(part, value) for part in text.split(",")))
    raise _refused(value)


def choose_layers(
    request: GPURequest,
    dry_run: DryRun,
    devices: Sequence[DeviceInfo],
    block_count: int,
    *,
    overhead: int = 0,
    backoff: float = 0.0,
) -> GPULayersList:
    """The requested layers: named ones as they are, others by `search`.

    Raises:
        ConfigError: an unknown device or layer is named.
    """
    if request.named is not None:
        return named_layers(request.named, devices, block_count)
    once = without_duplicates(devices)  # several libraries may drive one device
    return search(dry_run, once, request.count, overhead=overhead, backoff=backoff)


def named_layers(
    named: Iterable[tuple[str, int | Sequence[int]]],
    devices: Sequence[DeviceInfo],
    block_count: int,
) -> GPULayersList:
    """The layers of named devices, checked.

    A number takes that many of the model's last layers, in the order of the devices; all layers
    include the output layer.

    Raises:
        ConfigError: an unknown device or layer, or a device named twice.
    """
    given = [(_device(name, devices), layers) for name, layers in named]
    found = [device.device_id for device, _ in given]
    if len(set(found)) < len(found):
        twice = next(d for d, _ in given if found.count(d.device_id) > 1)
        raise ConfigError(f"gpu_layers names {twice.name} twice")
    counts = [layers for _, layers in given if isinstance(layers, int)]
    if counts and len(counts) < len(given):
        raise ConfigError("gpu_layers: give each device its layers, or each a number of layers")
    total = sum(counts)
    start = max(total, block_count) - total
    placed = []
    for device, layers in given:
        if isinstance(layers, int):
            layers = range(start, start + layers)
            start = layers.stop
        if layers and not 0 <= layers[0] <= layers[-1] <= block_count:
            wrong = layers[0] if layers[0] < 0 else layers[-1]
            raise ConfigError(
                f"gpu_layers gives {device.name} layer {wrong}; the model has 0 to "
                f"{block_count - 1}, and {block_count} is its output layer"
            )
        placed.append(GPULayers(device.id, device.library, tuple(layers)))
    return GPULayersList(placed)


def _device(name: str, devices: Sequence[DeviceInfo]) -> DeviceInfo:
    for device in devices:
        if name.casefold() in (device.name.casefold(), _qualified(device).casefold()):
            return device
    known = ", ".join(f"{d.name} ({_qualified(d)})" for d in devices) or "none"
    raise ConfigError(f"gpu_layers: there is no device {name!r}; there is {known}")


def _qualified(device: DeviceInfo) -> str:
    return f"{device.library}:{device.id}"


def _name(key: object, value: object) -> str:
    if isinstance(key, str):
        return key
    raise _refused(value)


def _layers(layers: object, value: object) -> int | Sequence[int]:
    """A number, or layers in ascending order."""
    if isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0:
        return layers
    # A range may have any length, so it stays a range until it is checked against the model.
    if isinstance(layers, range):
        return layers if layers.step > 0 else layers[::-1]
    if isinstance(layers, Iterable) and not isinstance(layers, (str, bytes)):
        numbers = list(layers)
        if all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            return tuple(sorted(numbers))
    raise _refused(value)


def _assignment(text: str, value: str) -> tuple[str, int | Sequence[int]]:
    """ "CUDA0=0-15" or "CUDA0=16"."""
    found = re.fullmatch(r"\s*(.+?)\s*=\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", text)
    if found is None:
        raise _refused(value)
    name, first, last = found[1], int(found[2]), found[3]
    if last is None:
        return name, first
    if int(last) < first:
        raise _refused(value)
    return name, range(first, int(last) + 1)


def _refused(value: object) -> ConfigError:
    return ConfigError(f"gpu_layers is {value!r:.80}; give {_ALLOWED}")
