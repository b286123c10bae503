"""RPC workers: one lends the devices of this machine to models on another one.

The TCP connections of ggml's RPC backend are watched from outside.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from ...errors import ConfigError, NativeError, Unsupported
from ...native import ffi, lib, prefix, proc
from ...platforms.processes import ENDING
from ...platforms.sockets import connections, own_port
from ..devices import DeviceInfo
from ..system import available_cores
from .hardware import by_name, discover

_INTERVAL = 0.5  # seconds
_KEEP_ALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2}
# Unanswered attempts in a row; the waits between them double from 0.2 seconds on.
_ATTEMPTS = 4


def watch() -> None:
    """From now on about four seconds of silence end any TCP connection of this process. Without
    that, the system waits for hours for a machine that vanished."""
    threading.Thread(target=_watch, name="ggmodel-connections", daemon=True).start()


def _watch() -> None:
    while True:
        for _, end in connections():
            with suppress(OSError), end:  # closed since
                tend(end)
        time.sleep(_INTERVAL)


def tend(end: socket.socket) -> None:
    """Turns keep-alive probes on, and ends a connection whose packets go unanswered.

    Accepted connections inherit the options of the listening socket (tcp(7)).
    """
    if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
        return
    # Probes go out on idle connections only. TCP_USER_TIMEOUT would watch the others, too, but
    # also end those whose other end is too busy to read.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if sys.platform == "linux":
        # tcpi_retransmits and tcpi_probes; each answer resets them.
        resent, probes = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 4)[2:]
        if max(resent, probes) >= _ATTEMPTS:
            end.shutdown(socket.SHUT_RDWR)


_REFUSALS = {
    errno.EADDRINUSE: "the port is in use; choose another one, or end the program that has it",
    errno.EADDRNOTAVAIL: "this machine has no such address; 0.0.0.0 stands for all that it has",
    errno.EACCES: "this user may not have that port; choose one above 1023",
}


@dataclass(frozen=True)
class Worker:
    """The devices to serve and the address; made by `prepare`.

    Attributes:
        address: the IPv4 address to listen at.
        port: the TCP port.
        devices: in the order in which clients see them.
        n_threads: compute threads of a CPU among them.
    """

    address: str
    port: int
    devices: tuple[DeviceInfo, ...]
    n_threads: int

    @property
    def endpoint(self) -> str:
        """The address for clients: "127.0.0.1:50052"."""
        return f"{self.address}:{self.port}"

    @property
    def exposed(self) -> bool:
        """Whether other machines can connect. The protocol knows no authentication."""
        return _exposed(self.address)

    def serve(self) -> NoReturn:
        """Serves one client after the other until the process ends.

        Takes over the process: interrupts end it at once, and ggml's standard output goes to
        standard error.
        """
        # Python's handlers would wait for the C function to return, which it never does.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for number in ENDING:
            if callable(signal.getsignal(number)):  # nohup ignores one
                signal.signal(number, signal.SIG_DFL)
        sys.stdout.flush()
        os.dup2(2, 1)
        handles = [by_name(device) for device in self.devices]
        start = proc(_rpc(), "ggml_backend_rpc_start_server")
        array = ffi.new("ggml_backend_dev_t[]", handles)
        watch()  # else a client whose machine vanished would keep the others waiting
        # No folder for ggml's cache of tensors: it would take a truncated file for a whole one.
        start(self.endpoint.encode(), ffi.NULL, self.n_threads, len(handles), array)
        raise NativeError(f"ggml's server at {self.endpoint} ended; its reason is printed above")


def prepare(
    host: str = "127.0.0.1", port: int = 50052, devices: Sequence[str] = (), threads: int = 0
) -> Worker:
    """Chooses devices and checks the address.

    Args:
        host: a name or IPv4 address of this machine; 0.0.0.0 is all of its addresses.
        port: 1 to 65535.
        devices: names as `ggmodel devices` prints them; by default all GPUs, or the CPU where
            there are none.
        threads: CPU threads, at most one a core; 0 chooses, see `default_threads`.
    """
    if not 1 <= port <= 65535:
        raise ConfigError(f"the port is {port}; it must lie between 1 and 65535")
    _rpc()
    chosen = _choose(devices)
    address = _resolve(host)
    _try_to_bind(address, port)
    cores = min(available_cores(), lib.GGML_MAX_N_THREADS)
    threads = min(threads or default_threads(cores, _exposed(address)), cores)
    return Worker(address, port, chosen, threads)


def default_threads(cores: int, exposed: bool) -> int:
    """CPU threads of a worker: all cores for other machines, one less for clients on this one.

    ggml's threads wait for each other in a spin after every op, and its server never changes their
    number. The client itself, or its tunnel, is busy while the worker computes: if it takes a core
    from one thread, all of them stand still until the system gives that core back.
    """
    return cores if exposed else max(1, cores - 1)


def _exposed(address: str) -> bool:
    return not ipaddress.ip_address(address).is_loopback


def _rpc() -> Any:
    """The registry entry of the RPC backend."""
    entry = lib.ggml_backend_reg_by_name(b"RPC")
    if not entry:
        raise Unsupported(
            f"this ggml ({prefix}) has no RPC backend; `ggmodel ggml build` builds one that has it"
        )
    return entry


def _choose(names: Sequence[str]) -> tuple[DeviceInfo, ...]:
    """The devices of these names, or the default ones."""
    # Accelerators work on the CPU's memory, but a client would take them for GPUs.
    accelerator = lib.GGML_BACKEND_DEVICE_TYPE_ACCEL
    there = {
        device.name: device
        for device in discover(cpu=True)
        if lib.ggml_backend_dev_type(by_name(device)) != accelerator
    }
    for name in names:
        if name not in there:
            raise ConfigError(f"no device {name!r} here; there is {', '.join(there)}")
    if names:
        return tuple(there[name] for name in dict.fromkeys(names))
    gpus = tuple(device for device in there.values() if device.library != "CPU")
    return gpus or tuple(there.values())


def _resolve(host: str) -> str:
    """The numeric IPv4 address, which is all that ggml's server takes."""
    try:
        addresses = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(
            f"{host!r} is no name or address that IPv4 knows; a worker listens at an IPv4 address "
            "of its machine, such as 127.0.0.1, or at 0.0.0.0, which stands for all of them"
        ) from None
    return str(addresses[0][4][0])


def _try_to_bind(address: str, port: int) -> None:
    """Gives the reason why the address cannot be used; ggml's server has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        own_port(probe)  # as the server does
        try:
            probe.bind((address, port))
        except OSError as error:
            reason = _REFUSALS.get(error.errno or 0, error.strerror)
            raise ConfigError(f"cannot listen at {address}:{port}: {reason}") from None
