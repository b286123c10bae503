"""The child's connections to workers, through ggml's RPC backend."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...errors import DeviceLost, Unsupported
from ...native import ffi, lib, prefix, proc
from ..ggml.memory import Arena
from ..ggml.worker import watch
from .protocol import Silence
from .watchdog import Watchdog

_ADD_SERVER = "ggml_backend_rpc_add_server"


class Workers:
    """Adds workers to the devices of this process.

    Args:
        silence: seconds, `Limits.worker_silence_seconds`.
        tell: sends a message to the parent.

    Attributes:
        watchdog: limits their silence.

    Raises:
        Unsupported: this ggml has no RPC backend.
    """

    def __init__(self, silence: float, tell: Callable[[Silence], None]) -> None:
        self.watchdog = Watchdog(silence, tell, self._wait)
        registry = lib.ggml_backend_reg_by_name(b"RPC")
        if not registry:
            raise Unsupported(
                f"workers need ggml's RPC backend, which the one in {prefix} lacks; "
                "`ggmodel ggml build` builds one that has it"
            )
        self._add = proc(registry, _ADD_SERVER, "ggml_backend_reg_t(*)(const char *)")
        self._bytes: list[tuple[Any, ...]] = []  # on each worker, as tensors; their arenas
        self._messages = _LastMessage()
        watch()

    def connect(self, endpoint: str) -> None:
        """Adds a worker's devices; waits while it serves another client.

        Raises:
            DeviceLost: it has another version of ggml, or no devices.
        """
        self.watchdog.add(endpoint, lambda: self._connect(endpoint))

    def _connect(self, endpoint: str) -> None:
        with self._messages:
            registry = self._add(endpoint.encode())
            if not registry:
                reason = self._messages.text or "ggml gives no reason"
                raise DeviceLost(
                    f"worker {endpoint} cannot be used: {reason}; is it a `ggmodel worker` with "
                    "the same version of ggml?"
                )
            lib.ggml_backend_register(registry)
            # The connection lives only while a buffer lies there; without one, another client
            # could take the worker between two uses.
            kind = lib.ggml_backend_dev_buffer_type(lib.ggml_backend_reg_dev_get(registry, 0))
            buffer = lib.ggml_backend_buft_alloc_buffer(kind, 1)
        if not buffer:
            raise DeviceLost(f"worker {endpoint} has no memory left")
        arena = Arena(1)
        byte = lib.ggml_new_tensor_1d(arena.ctx, lib.GGML_TYPE_I8, 1)
        lib.ggml_backend_tensor_alloc(buffer, byte, lib.ggml_backend_buffer_get_base(buffer))
        self._bytes.append((byte, arena))

    def _wait(self) -> None:
        """Waits until every worker has computed all that it was sent: it does one after another."""
        for byte, _ in self._bytes:
            lib.ggml_backend_tensor_get(byte, ffi.new("char[1]"), 0, 1)


class _LastMessage(logging.Handler):
    """Keeps the last message of ggml within a `with` block."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage().strip() or self.text

    def __enter__(self) -> None:
        self.text = ""
        logging.getLogger("ggmodel.ggml").addHandler(self)

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("ggmodel.ggml").removeHandler(self)
