"""The devices of this machine, found and tried in processes that they may take down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ComputeError, DeviceLost
from ..devices import VISIBLE_DEVICES, DeviceInfo, get_visible_devices_env
from .conversation import NoAnswer
from .runner_process import RunnerProcess

_PATIENCE = 30.0  # seconds; a sleeping device takes several to wake


@dataclass(frozen=True)
class LocalDevices:
    """This machine's ggml and the devices that work with it.

    Attributes:
        ggml: see `native.describe`.
        found: the CPU and accelerators included.
        left_out: name → why, for those that end or stop a process that uses them.
    """

    ggml: dict[str, Any]
    found: list[DeviceInfo]
    left_out: dict[str, str] = field(default_factory=dict)


def local_devices(timeout: float = _PATIENCE) -> LocalDevices:
    """Looks for devices in a process of its own, and tries each that may be listed and crash when
    used (`DeviceInfo.needs_init_validation`) in another one.

    Args:
        timeout: seconds for each process.

    Raises:
        ComputeError: no devices can be listed, not even with those hidden that can be.
    """
    left_out: dict[str, str] = {}
    try:
        ggml, devices = _asked({}, "local_devices", timeout=timeout)
    except ComputeError as error:
        left_out[", ".join(VISIBLE_DEVICES)] = str(error)
        hidden = dict.fromkeys(VISIBLE_DEVICES.values(), "")
        try:
            ggml, devices = _asked(hidden, "local_devices", timeout=timeout)
        except ComputeError as again:
            raise ComputeError(f"ggml cannot list this machine's devices: {again}") from None
    for device in devices:
        if device.needs_init_validation():
            alone = get_visible_devices_env([device], must_filter=True)
            device.add_init_validation(alone)
            try:
                _asked(alone, "initialise", device.library, timeout=timeout)
            except ComputeError as error:
                left_out[device.name] = str(error)
    return LocalDevices(ggml, [d for d in devices if d.name not in left_out], left_out)


def _asked(environment: Mapping[str, str], kind: str, *args: Any, timeout: float) -> Any:
    with RunnerProcess(environment=environment) as runner:
        try:
            return runner.request(kind, *args, timeout=timeout)
        except NoAnswer:
            raise ComputeError(f"its process did not answer in {timeout:g} s") from None
        except DeviceLost:
            raise ComputeError(f"its process {runner.post_mortem}") from None
