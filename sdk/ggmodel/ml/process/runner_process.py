"""The child process that runs backends for this one, seen from this one."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

from ...bounds import limits
from ...closing import Closing, closed_on_error
from ...errors import Busy, ComputeError, DeviceLost, Error, GraphError, Unsupported
from ...shortage import as_error
from ..devices import DeviceID, DeviceInfo
from .conversation import Conversation, NoAnswer
from .endpoints import parse_endpoints, unreachable
from .launch import Child
from .protocol import Silence

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
        self._closed = False
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
        """0: it listens on none."""
        return 0

    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self._child.process.poll() is not None
