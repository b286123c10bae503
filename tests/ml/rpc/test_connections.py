"""The connections of workers and their clients."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from ggmodel.ml.ggml.worker import tend


@pytest.mark.slow
def test_an_end_that_is_too_busy_to_read_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        busy, _ = server.accept()
    data, read = bytes(32 << 20), 0

    def send() -> None:
        with contextlib.suppress(OSError):  # the connection was ended: too little arrives
            client.sendall(data)

    sender = threading.Thread(target=send, daemon=True)
    with client, busy:
        sender.start()
        end = time.monotonic() + 6
        while time.monotonic() < end:
            tend(client)
            time.sleep(0.1)
        busy.settimeout(10)
        while read < len(data) and (piece := busy.recv(1 << 20)):
            read += len(piece)
        sender.join(10)
    assert read == len(data)
    assert not sender.is_alive()
