"""Asking runners for devices.

A runner is a process that runs models, or only looks for devices: a library that crashes then takes
nothing else down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from ..errors import ComputeError, Error, Unsupported
from .devices import DeviceID, DeviceInfo
from .runner_port import RunnerAtPort

log = logging.getLogger("ggmodel.ml")

_DISCOVERY_TIMEOUT = 30.0  # seconds; a sleeping device takes several to wake
_REFRESH_TIMEOUT = 3.0  # seconds; an old figure is better than a longer wait


@runtime_checkable
class BaseRunner(Protocol):
    """A process that runs models, or only looks for devices."""

    def get_port(self) -> int:
        """The port it listens on, on this machine; 0 for none."""
        ...

    def has_exited(self) -> bool:
        """Whether it has ended; during discovery that means that a device crashed it."""
        ...


@runtime_checkable
class RunnerDiscovery(BaseRunner, Protocol):
    """A runner that lists devices."""

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        """The libraries' devices and their free memory; may take seconds.

        Args:
            timeout: seconds.
        """
        ...


@runtime_checkable
class FilteredRunnerDiscovery(RunnerDiscovery, Protocol):
    """A runner that knows which devices its model is on."""

    def get_active_device_ids(self) -> list[DeviceID]:
        """Devices that its model uses, none before it has one; returns at once."""
        ...


def get_devices_from_runner(
    runner: BaseRunner | int, timeout: float = _DISCOVERY_TIMEOUT
) -> list[DeviceInfo]:
    """The devices that a runner sees.

    Args:
        runner: one that is no `RunnerDiscovery` is asked over HTTP at its port; a number is a port.
        timeout: seconds.

    Raises:
        ComputeError: the runner has ended, or does not answer in time.
        Unsupported: it is no `RunnerDiscovery`, and has no port.
        FormatError: what it says are no devices.
    """
    if isinstance(runner, int):
        runner = RunnerAtPort(runner)
    if not isinstance(runner, BaseRunner):
        raise Unsupported(f"{type(runner).__name__} is no runner: it has no has_exited()")
    if runner.has_exited():
        raise ComputeError("the runner ended while looking for devices: one of them crashed it")
    if isinstance(runner, RunnerDiscovery):
        return runner.get_device_infos(timeout)
    if not runner.get_port():
        raise Unsupported(
            f"{type(runner).__name__} listens on no port; give it a method "
            "get_device_infos(timeout)"
        )
    return RunnerAtPort(runner.get_port()).get_device_infos(timeout)


def refresh_free_memory(
    devices: Iterable[DeviceInfo],
    runners: Iterable[FilteredRunnerDiscovery] = (),
    discover: Callable[[], Iterable[DeviceInfo]] | None = None,
    timeout: float = _REFRESH_TIMEOUT,
) -> list[DeviceInfo]:
    """The devices with their present free memory; the old figure where no one knows it.

    Args:
        runners: asked first, if active on a device: they hold it open anyway.
        discover: called for the devices that no runner reported.
        timeout: seconds for each runner.
    """
    devices = list(devices)
    missing = {d.device_id for d in devices}
    free: dict[DeviceID, int] = {}

    def note(found: Iterable[DeviceInfo]) -> None:
        for device in found:
            if device.device_id in missing:
                missing.discard(device.device_id)
                free[device.device_id] = device.free_memory

    for runner in runners:
        if missing.isdisjoint(runner.get_active_device_ids()):
            continue
        try:
            note(runner.get_device_infos(timeout))
        except Error as error:
            log.warning("free memory: a runner did not answer: %s", error)
    if missing and discover is not None:
        note(discover())
    return [replace(d, free_memory=free.get(d.device_id, d.free_memory)) for d in devices]
