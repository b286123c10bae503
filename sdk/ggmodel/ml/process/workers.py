"""The child's connections to workers, through ggml's RPC backend."""

from __future__ import annotations

import logging
from typing import Any

from ...errors import DeviceLost, Unsupported
from ...native import lib, prefix, proc
from ..ggml.connections import watch

_ADD_SERVER = "ggml_backend_rpc_add_server"


class Workers:
    """Adds workers to the devices of this process.

    Raises:
        Unsupported: this ggml has no RPC backend.
    """

    def __init__(self) -> None:
        registry = lib.ggml_backend_reg_by_name(b"RPC")
        if not registry:
            raise Unsupported(
                f"workers need ggml's RPC backend, which the one in {prefix} lacks; "
                "`make native` builds one that has it, set GGMODEL_GGML to that"
            )
        self._add = proc(registry, _ADD_SERVER, "ggml_backend_reg_t(*)(const char *)")
        self._buffers: list[Any] = []
        self._messages = _LastMessage()
        watch()

    def connect(self, endpoint: str) -> None:
        """Adds a worker's devices; waits while it serves another client.

        Raises:
            DeviceLost: it has another version of ggml, or no devices.
        """
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
        self._buffers.append(buffer)


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
