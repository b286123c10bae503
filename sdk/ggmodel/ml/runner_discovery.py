"""Device discovery by runners, also by one that is known by its port on this machine: questions
and answers over HTTP.

A runner is a process that runs models, or only looks for devices: a library that crashes then takes
nothing else down.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from ..errors import ComputeError, ConfigError, Error, FormatError, Unsupported
from .devices import DeviceID, DeviceInfo

_SOON = 3.0  # seconds for what a runner answers at once
_LONGEST, _QUESTION = 16 << 20, 4096  # bytes of an answer, and of a question


class RunnerAtPort:
    """A `FilteredRunnerDiscovery` for a process of `ggmodel runner`, or one of `ggmodel serve`.

    Args:
        port: where it listens.

    Raises:
        ConfigError: it is no port.
    """

    def __init__(self, port: int):
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 1 << 16:
            raise ConfigError(f"a runner's port is a number from 1 to 65535, not {port!r:.80}")
        self._port = port

    def get_port(self) -> int:
        return self._port

    def has_exited(self) -> bool:
        """Whether nobody listens at the port."""
        import socket  # slow to import

        try:
            socket.create_connection(("127.0.0.1", self._port), _SOON).close()
        except OSError:
            return True
        return False

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        """See `RunnerDiscovery`.

        Raises:
            ComputeError: the runner does not answer in time, or cannot list devices.
            FormatError: it says something else.
        """
        infos = self._get("/info", timeout)
        try:
            return [DeviceInfo.from_json(one) for one in infos]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise FormatError(f"{self} lists no devices: {error!r}") from None

    def get_active_device_ids(self) -> list[DeviceID]:
        """See `FilteredRunnerDiscovery`; raises as `get_device_infos`."""
        ids = self._get("/active", _SOON)
        try:
            return [DeviceID(str(one["id"]), str(one["backend"])) for one in ids]
        except (TypeError, KeyError) as error:
            raise FormatError(f"{self} lists no devices: {error!r}") from None

    def __str__(self) -> str:
        return f"the runner at port {self._port}"

    def _get(self, path: str, timeout: float) -> Any:
        from http.client import HTTPConnection, HTTPException  # slow to import

        with closing(HTTPConnection("127.0.0.1", self._port, timeout=timeout)) as connection:
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                text = answer.read(_LONGEST)
            except (OSError, HTTPException) as error:
                raise ComputeError(f"{self} does not answer: {error!r}") from None
        if answer.status != 200:
            raise ComputeError(f"{self} answers {path} with {answer.status}: {text[:200]!r}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise FormatError(f"{self} answers {path} with no JSON: {text[:80]!r}") from None


def answer(connection: Any, head: bytes, routes: Mapping[str, Callable[[], Any]]) -> None:
    """Answers a question over HTTP, such as those of `RunnerAtPort`.

    Args:
        connection: a socket, with a timeout.
        head: the bytes that were read already.
        routes: path → a function that gives the answer: plain data, or JSON as bytes.

    Raises:
        OSError: who asks has gone, or is too slow.
    """
    while b"\r\n\r\n" not in head and len(head) < _QUESTION:
        more = connection.recv(_QUESTION)
        if not more:
            return
        head += more
    path = head.partition(b" ")[2].partition(b" ")[0].decode("ascii", "replace")
    status, content = "404 Not Found", None
    if path in routes:
        try:
            status, content = "200 OK", routes[path]()
        except Error as error:
            status, content = "500 Internal Server Error", {"error": str(error)}
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    form = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"HTTP/1.0 {status}\r\n{form}\r\n\r\n".encode() + body)


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

    def note(devices: Iterable[DeviceInfo]) -> None:
        for device in devices:
            if device.device_id in missing:
                missing.discard(device.device_id)
                free[device.device_id] = device.free_memory

    for runner in runners:
        try:
            if not missing.isdisjoint(runner.get_active_device_ids()):
                note(runner.get_device_infos(timeout))
        except Error as error:
            log.warning("free memory: a runner did not answer: %s", error)
    if missing and discover is not None:
        note(discover())
    return [replace(d, free_memory=free.get(d.device_id, d.free_memory)) for d in devices]
