"""The child process: backends that serve requests over a channel."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import Cancelled, ComputeError
from ...gguf_file.types import DType
from ...platforms.processes import leave_no_core
from ...resources import closed_on_error
from ..backend import Backend, CacheConfig
from ..devices import DeviceID, DeviceInfo
from ..executable import Executable
from ..node import HostData, Node, State
from ..params import BackendParams
from ..registry import new_backend
from ..runner_discovery import answer
from ..table import Shape
from ..tensor import Tensor
from .protocol import (
    Answer,
    Channel,
    Event,
    Record,
    Request,
    Silence,
    encode,
    open_described,
    pack_error,
    unpack_graph,
)
from .watchdog import Watchdog

_FREQUENT = ("run", "value")  # after these no graph has ended
_LISTENING, _SOON = 4, 3.0  # threads that answer over HTTP; seconds for a question to come


@dataclass
class _Held:
    """A backend.

    Attributes:
        states: by the parent's uid.
        devices: in use.
    """

    backend: Backend
    states: dict[int, Node]
    devices: list[DeviceID]


@dataclass
class _Compiled:
    """A graph.

    Attributes:
        table: its inputs and ops.
        hosts: the inputs that are no feeds, whose values come with each run too, by number.
        tokens: in a batch, as far as is known; at least 1.
    """

    executable: Executable
    owner: int
    table: list[Node]
    outputs: list[Node]
    hosts: dict[int, HostData]
    tokens: int


class Service:
    """The requests, a method each. The parent numbers backends and graphs."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._sending = threading.Lock()  # log records come from any thread
        self._number = 0
        self._held: dict[int, _Held] = {}
        self._compiled: dict[int, _Compiled] = {}
        self._workers: Any = None
        self._watchdog: Watchdog | None = None
        self._end: socket.socket | None = None  # for questions over HTTP

    def serve(self) -> None:
        """Answers requests until the parent closes its end or ends."""
        while True:
            try:
                request: Request = self._channel.receive(Request)
            except (EOFError, OSError):
                return
            answer = self._answer(request)
            try:
                self.send(answer)
            except OSError:
                return

    def _answer(self, request: Request) -> Answer:
        self._number, failed = request.number, False
        watchdog = self._watchdog  # not one that the request makes
        if watchdog is not None:
            run = self._compiled.get(request.args[0]) if request.kind == "run" else None
            watchdog.begin(run.tokens if run is not None else 0)
        try:
            for number in request.dropped:
                self._drop(number)
            content = getattr(self, request.kind)(*request.args)
        except Exception as error:
            failed, content = True, pack_error(error)
        ended: list[int] = []
        if failed or request.kind not in _FREQUENT:
            ended = [n for n, c in self._compiled.items() if not c.executable.valid]
            for number in ended:
                self._drop(number)
        if watchdog is not None:
            watchdog.end()
        return Answer(request.number, failed, content, ended)

    def send(self, message: Answer | Event | Record | Silence) -> None:
        """Sends a message to the parent."""
        with self._sending:
            self._channel.send(encode(message))

    def _ask(self, event: str, *args: Any) -> Any:
        """The parent's answer to a question.

        Raises:
            Cancelled: the parent no longer waits for the request.
        """
        self.send(Event(self._number, event, args))
        go_on, answer = self._channel.receive_reply()
        if not go_on:
            raise Cancelled("the caller no longer waits for the answer")
        return answer

    def _drop(self, number: int) -> None:
        """Frees a graph or a backend; unknown numbers are ignored."""
        if number in self._compiled:
            self._compiled.pop(number).executable.close()
        elif number in self._held:
            self.close(number)

    # devices

    def devices(self) -> list[DeviceInfo]:
        """The devices that ggml knows, with their present memory."""
        from ..ggml.hardware import discover

        return discover()

    def local_devices(self) -> tuple[dict[str, Any], list[DeviceInfo]]:
        """This process's ggml, and all of its devices."""
        from ... import native
        from ..ggml.hardware import discover

        return native.describe(), discover(cpu=True)

    def initialise(self, library: str) -> None:
        """Makes the devices of a library ready to compute, which may end the process."""
        from ..ggml.hardware import by_name, discover
        from ..ggml.memory import Device

        for info in discover():
            if info.library == library:
                Device(info, by_name(info)).close()

    def use_workers(self, silence: float) -> None:
        """Loads ggml and its RPC backend.

        Args:
            silence: `Limits.worker_silence_seconds`.
        """
        from .workers import Workers

        self._workers = Workers(silence, self.send)
        self._watchdog = self._workers.watchdog

    def connect(self, endpoint: str) -> None:
        """Adds a worker; see `Workers.connect`."""
        self._workers.connect(endpoint)

    # questions over HTTP

    def listen(self) -> int:
        """The port of this machine at which `RunnerAtPort` may ask from now on."""
        if self._end is None:
            self._end = socket.create_server(("127.0.0.1", 0))
            for _ in range(_LISTENING):
                threading.Thread(target=self._listen, args=(self._end,), daemon=True).start()
        return self._end.getsockname()[1]

    def _listen(self, end: socket.socket) -> None:
        routes = {"/info": self._info, "/active": self._active, "/state": lambda: None}
        while True:
            try:
                connection, _ = end.accept()
            except OSError:  # who asked has gone, or files have run out
                time.sleep(_SOON / 10)
                continue
            with connection, suppress(Exception):  # the thread goes on to answer others
                connection.settimeout(_SOON)
                answer(connection, b"", routes)

    def _info(self) -> list[dict[str, Any]]:
        watchdog = self._watchdog
        if watchdog is not None and not watchdog.begin(timeout=_SOON):
            # All threads have one connection to a worker.
            raise ComputeError(
                "a request is under way, and devices of workers cannot be asked; ask again"
            )
        try:
            return [device.to_json() for device in self.devices()]
        finally:
            if watchdog is not None:
                watchdog.end()

    def _active(self) -> list[dict[str, str]]:
        active = {device for held in list(self._held.values()) for device in held.devices}
        return [{"id": device.id, "backend": device.library} for device in active]

    # backends

    def open(
        self, number: int, described: tuple[Any, ...], params: BackendParams, name: str
    ) -> tuple[bool, CacheConfig]:
        """Makes a backend; returns its `flash_attention` and `cache_config`."""
        source = open_described(described)
        with closed_on_error(source):
            backend = new_backend(source, params, name)
        backend.owns_source = True
        self._held[number] = _Held(backend, {}, [])
        return backend.flash_attention, backend.cache_config

    def allocate(self, number: int, graphs: list[bytes]) -> list[DeviceID]:
        """`Backend.allocate`; returns the devices in use."""
        held = self._held[number]
        held.backend.allocate(*(unpack_graph(graph, held.backend, held.states) for graph in graphs))
        held.devices = [device.device_id for device in held.backend.backend_devices()]
        return held.devices

    def load(self, number: int) -> None:
        """`Backend.load`."""
        self._held[number].backend.load(
            lambda share: self._ask("progress", share), lambda: self._ask("cancel")
        )

    def create_state(
        self,
        number: int,
        uid: int,
        ne: Shape,
        dtype: DType,
        layer: int,
        initial: bytes | None,
    ) -> None:
        """`Backend.create_state`."""
        held = self._held[number]
        node = Tensor(ne, dtype)
        node.storage = State(held.backend, layer, initial)
        held.backend.create_state(node)
        held.states[uid] = node

    def free_states(self, number: int, uids: list[int]) -> None:
        """`Backend.free_states`."""
        held = self._held[number]
        held.backend.free_states([held.states.pop(uid) for uid in uids if uid in held.states])

    def read(self, number: int, uid: int) -> np.ndarray:
        """`Backend.read` of a state."""
        held = self._held[number]
        return held.backend.read(held.states[uid])

    def write(self, number: int, uid: int, data: bytes) -> None:
        """`Backend.write` of a state."""
        held = self._held[number]
        held.backend.write(held.states[uid], data)

    def read_rows(self, number: int, uid: int, rows: np.ndarray) -> np.ndarray:
        """`Backend.read_rows`."""
        held = self._held[number]
        return held.backend.read_rows(held.states[uid], rows)

    def write_rows(self, number: int, uid: int, rows: np.ndarray, data: np.ndarray) -> None:
        """`Backend.write_rows`."""
        held = self._held[number]
        held.backend.write_rows(held.states[uid], rows, data)

    def of_backend(self, number: int, method: str, *args: Any) -> Any:
        """The result of a method of `Backend` that takes and returns plain data."""
        return getattr(self._held[number].backend, method)(*args)

    def close(self, number: int) -> None:
        """`Backend.close`."""
        for graph, compiled in list(self._compiled.items()):
            if compiled.owner == number:
                self._drop(graph)
        self._held.pop(number).backend.close()
        gc.collect()  # the backend, its tensors and a source in memory form a cycle

    # graphs

    def compile(self, number: int, owner: int, packed: bytes, places: list[int]) -> None:
        """`Backend.compile`; the outputs are given by their places in the graph's table."""
        held = self._held[owner]
        graph = unpack_graph(packed, held.backend, held.states)
        table = [*graph.inputs, *graph.schedule]
        outputs = [table[i] for i in places]
        executable = held.backend.compile(graph, tuple(outputs))
        hosts = {
            i: node.storage
            for i, node in enumerate(graph.inputs)
            if isinstance(node.storage, HostData)
        }
        tokens = max(1, graph.batch_size)
        self._compiled[number] = _Compiled(executable, owner, table, outputs, hosts, tokens)

    def run(self, number: int, values: list[np.ndarray]) -> list[np.ndarray]:
        """`Executable.run` on the values of all inputs; returns those of the outputs."""
        compiled = self._compiled[number]
        for i, storage in compiled.hosts.items():
            storage.array = values[i]
        compiled.executable.run(values)
        outputs = [compiled.executable.value(node) for node in compiled.outputs]
        if self._watchdog is not None:
            self._watchdog.ran(compiled.tokens, bool(outputs))
        return outputs

    def value(self, number: int, place: int) -> np.ndarray:
        """`Executable.value` of a node of the graph's table."""
        compiled = self._compiled[number]
        return compiled.executable.value(compiled.table[place])


class _Forward(logging.Handler):
    """Sends log records to the parent."""

    def __init__(self, service: Service):
        super().__init__()
        self._service = service

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the parent is gone
            self._service.send(Record(record.name, record.levelno, record.getMessage()))


def _connected() -> socket.socket:
    """The connection to the parent, which standard input describes: `launch._connecting`."""
    port, secret = sys.stdin.buffer.readline().split()
    end = socket.create_connection(("127.0.0.1", int(port)))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.sendall(secret)
    return end


def main(place: str, level: int) -> None:
    """Serves until the parent ends.

    Args:
        place: the descriptor of the socket, or "-" for one that is to be connected.
        level: the lowest level of forwarded log records.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too
    leave_no_core()
    end = _connected() if place == "-" else socket.socket(fileno=int(place))
    service = Service(Channel(end))
    logger = logging.getLogger("ggmodel")
    logger.setLevel(level)
    logger.addHandler(_Forward(service))
    service.serve()
    sys.stderr.flush()
    os._exit(0)  # a regular exit would talk to workers, which may be gone, and end in abort()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
