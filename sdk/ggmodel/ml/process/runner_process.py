"""Runner processes: one for a backend, and those that try the devices of this machine.

Workers' addresses are parsed and probed here. Devices are tried in processes that they may take
down.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...bounds import limits
from ...errors import Busy, ComputeError, ConfigError, DeviceLost, Error, GraphError, Unsupported
from ...resources import Closing, as_error, closed_on_error
from ..devices import VISIBLE_DEVICES, DeviceID, DeviceInfo, get_visible_devices_env
from .conversation import Child, Conversation, NoAnswer
from .protocol import Silence

_SLACK = 0.2  # seconds
_SILENCE = (
    "no answer within {:g} s; its machine is off or behind a firewall, or other clients wait for it"
)
_ENDPOINT = re.compile(r"([^\s:\[\]/@]+):([0-9]{1,5})")


def parse_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """The endpoints, checked.

    Raises:
        ConfigError: one is not "host:port" with a port from 1 to 65535, or occurs twice.
    """
    if isinstance(endpoints, str):
        raise ConfigError(f"workers are a list of 'host:port', not the string {endpoints!r}")
    for endpoint in endpoints:
        match = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise ConfigError(
                f"worker {endpoint!r}: it must be 'host:port', a name or an IPv4 address and a "
                "port from 1 to 65535"
            )
        if list(endpoints).count(endpoint) > 1:
            raise ConfigError(f"worker {endpoint} is given twice")
    return tuple(endpoints)


def unreachable(endpoints: Sequence[str], timeout: float) -> dict[str, str]:
    """The endpoints that cannot be connected to, and why.

    A worker that serves a client accepts two more, which wait; after that it answers nobody.

    Args:
        timeout: seconds, for all together.
    """
    reasons = {e: _SILENCE.format(timeout) for e in endpoints}

    def probe(endpoint: str) -> None:
        reasons[endpoint] = _reason(endpoint, timeout)

    threads = [threading.Thread(target=probe, args=(e,), daemon=True) for e in endpoints]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout + _SLACK
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))  # looking up a name has no timeout
    return {endpoint: reasons[endpoint] for endpoint in endpoints if reasons[endpoint]}


def _reason(endpoint: str, timeout: float) -> str:
    host, _, port = endpoint.rpartition(":")
    # IPv4 as in ggml.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout)
        try:
            probe.connect((host, int(port)))
        except TimeoutError:
            return _SILENCE.format(timeout)
        except ConnectionRefusedError:
            return f"connection refused; start it with `ggmodel worker --port {port}` there"
        except OSError as error:  # unknown names included
            return (error.strerror or str(error)).lower()
    return ""


_REACH = 2.0  # seconds until a worker must have accepted a connection
_GREET = 2.0  # seconds until it must have answered; one that serves another client never does
_PROBE = 0.75  # seconds for finding out which worker is gone

log = logging.getLogger("ggmodel.ml")


class Recorded(Protocol):
    """A graph in the process.

    Attributes:
        ended: it can run no more.
    """

    ended: bool


class RunnerProcess(Conversation, Closing):
    """A child process that makes backends, computes with them, and looks for devices.

    If it ends, this process lives on, and further requests raise `DeviceLost`. Several threads may
    use it, one after the other. It is a `FilteredRunnerDiscovery`, and a context manager that
    closes itself.

    Args:
        rpc: workers, "host:port", whose devices its backends may use. It stays connected until it
            is closed; a worker serves one client at a time.
        environment: variables that its process gets beside this one's.

    Attributes:
        rpc: the same.
        pid: of the process.

    Raises:
        ConfigError: an endpoint is malformed or given twice.
        DeviceLost: a worker cannot be reached, or is another version of ggml.
        Busy: a worker serves another client.
        Unsupported: this ggml has no RPC backend, or no Python process can be started here.
    """

    def __init__(self, rpc: Sequence[str] = (), environment: Mapping[str, str] | None = None):
        self.rpc = parse_endpoints(rpc)
        for endpoint, reason in unreachable(self.rpc, _REACH).items():
            raise DeviceLost(f"worker {endpoint} cannot be reached: {reason}")
        try:
            self._child = Child(environment or {})
        except OSError as error:
            shortage = as_error(error)
            raise (
                shortage
                if shortage is not error
                else Unsupported(
                    f"workers need a Python process beside this one, which cannot start: {error}; "
                    "load the model without rpc, or with the command ggmodel"
                )
            ) from error
        self.pid = self._child.process.pid
        super().__init__(self._child.socket)
        self._lost = ""
        self._silent: Silence | None = None  # as long as no answer comes
        self._closed, self._port = False, 0
        self._graphs: weakref.WeakValueDictionary[int, Recorded] = weakref.WeakValueDictionary()
        self._active: dict[int, list[DeviceID]] = {}
        self._end = weakref.finalize(self, self._child.end, self._lock)
        with closed_on_error(self):
            self._connect()

    def _connect(self) -> None:
        if self.rpc:
            self.request("use_workers", limits.worker_silence_seconds)
        for endpoint in self.rpc:
            try:
                self.request("connect", endpoint, timeout=_GREET)
            except NoAnswer:
                self._child.process.kill()
                raise Busy(
                    f"worker {endpoint} does not answer within {_GREET:g} s: it is in use by "
                    "another client, as it serves one at a time, or it hangs; wait until that one "
                    "has closed its model, or start another worker on another port there"
                ) from None

    def _note_ended(self, numbers: list[int]) -> None:
        for number in numbers:
            graph = self._graphs.pop(number, None)
            if graph is not None:
                graph.ended = True

    def _note_silence(self, silence: Silence | None) -> None:
        self._silent = silence
        if silence is not None and not silence.given_up:
            log.warning("RPC worker %s is silent for %.0f s; the timeout is %.0f s", *silence)

    # what is in the process

    def watch(self, number: int, graph: Recorded) -> None:
        """Sets a graph's `ended` once it can run no more."""
        self._graphs[number] = graph

    def drop(self, number: int) -> None:
        super().drop(number)
        self._active.pop(number, None)

    def occupy(self, number: int, devices: list[DeviceID]) -> None:
        """Records the devices of a backend."""
        self._active[number] = devices

    # life

    def check(self) -> None:
        """Raises the error of every request, if the process is unusable.

        Raises:
            DeviceLost: the process has ended.
            GraphError: it was closed, or belongs to the process that this one was forked from.
        """
        if self.forked:
            raise GraphError(
                "this model was loaded before the process forked: the process that computes it "
                "belongs to the parent; load it again here, or start processes with 'spawn'"
            )
        if self._closed:
            raise GraphError("the process that computed is closed; start another one")
        if self._lost:
            raise DeviceLost(self._lost)

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that started it, and cannot use it."""
        return self._child.home != os.getpid()

    @property
    def post_mortem(self) -> str:
        """How it ended, and its last message; a process that still runs is ended first."""
        return self._child.post_mortem()

    @property
    def usable(self) -> bool:
        """Whether it takes requests, as far as is known."""
        return not self._closed and not self._lost and not self.forked

    def _lose(self) -> Error:
        """The error for a process that has ended or whose messages are torn."""
        if self._closed:  # by another thread
            return GraphError("the process that computed was closed")
        reason = f"the process that computed {self._child.post_mortem()}"
        silent = self._silent
        away = unreachable(self.rpc, _PROBE)
        if away:
            gone = "; ".join(f"worker {e} is gone: {why}" for e, why in away.items())
            reason = f"{gone} ({reason})"
        elif silent is not None and silent.given_up and not self._child.killed:
            reason = (
                f"worker {silent.endpoint} is connected and silent for {silent.allowed:.0f} s, as "
                "if it hung; a slow one needs more time: ggmodel.limits.worker_silence_seconds"
            )
        elif self.rpc and not self._child.killed:
            which = f"worker {self.rpc[0]}"
            if len(self.rpc) > 1:
                which = f"one of the workers {', '.join(self.rpc)}"
            reason = f"the connection to {which} was lost ({reason})"
        self._lost = f"{reason}; load the model again"
        return DeviceLost(self._lost)

    def close(self) -> None:
        """Ends the process, by force if it takes a moment; idempotent."""
        if not self.forked:
            self._closed = True
            self._end()

    # discovery

    def devices(self) -> list[DeviceInfo]:
        """The devices of its ggml, workers' included, with their present memory."""
        return self.request("devices")

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        """`devices`.

        Args:
            timeout: seconds.

        Raises:
            ComputeError: it did not answer in time.
        """
        try:
            return self.request("devices", timeout=timeout)
        except NoAnswer:
            raise ComputeError(f"the process did not list its devices in {timeout:g} s") from None

    def get_active_device_ids(self) -> list[DeviceID]:
        """The devices of its backends, each once; returns at once."""
        return list(dict.fromkeys(d for ids in list(self._active.values()) for d in ids))

    def get_port(self) -> int:
        """The port of this machine at which `RunnerAtPort` may ask, as another process does; 0 once
        the process has ended. The first call opens it, and waits for a request under way."""
        if not self.usable or self.has_exited():
            return 0
        self._port = self._port or self.request("listen")
        return self._port

    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self._child.process.poll() is not None


_TIMEOUT = 30.0  # seconds; a sleeping device takes several to wake


@dataclass(frozen=True)
class LocalDevices:
    """This machine's ggml and the devices that work with it.

    Attributes:
        ggml: see `native.describe`.
        devices: the CPU and accelerators included.
        left_out: name → why, for those that end or stop a process that uses them.
    """

    ggml: dict[str, Any]
    devices: list[DeviceInfo]
    left_out: dict[str, str] = field(default_factory=dict)


def local_devices(timeout: float = _TIMEOUT) -> LocalDevices:
    """Looks for devices in a process of its own, and tries each that may be listed and crash when
    used (`DeviceInfo.needs_init_validation`) in another one.

    Args:
        timeout: seconds for each process.

    Raises:
        ComputeError: no devices can be listed, not even with those hidden that can be.
    """
    left_out: dict[str, str] = {}
    try:
        ggml, devices = _request({}, "local_devices", timeout=timeout)
    except ComputeError as error:
        left_out[", ".join(VISIBLE_DEVICES)] = str(error)
        hidden = dict.fromkeys(VISIBLE_DEVICES.values(), "")
        try:
            ggml, devices = _request(hidden, "local_devices", timeout=timeout)
        except ComputeError as again:
            raise ComputeError(f"ggml cannot list this machine's devices: {again}") from None
    for device in devices:
        if device.needs_init_validation():
            alone = get_visible_devices_env([device], must_filter=True)
            device.add_init_validation(alone)
            try:
                _request(alone, "initialise", device.library, timeout=timeout)
            except ComputeError as error:
                left_out[device.name] = str(error)
    return LocalDevices(ggml, [d for d in devices if d.name not in left_out], left_out)


def _request(environment: Mapping[str, str], kind: str, *args: Any, timeout: float) -> Any:
    with RunnerProcess(environment=environment) as runner:
        try:
            return runner.request(kind, *args, timeout=timeout)
        except NoAnswer:
            raise ComputeError(f"its process did not answer in {timeout:g} s") from None
        except DeviceLost:
            raise ComputeError(f"its process {runner.post_mortem}") from None
