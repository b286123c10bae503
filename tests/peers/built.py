"""llama.cpp's server, where `make` has built it for benchmarks, on our files."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".cache" / "peer" / "bin" / "llama-server"
EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1", "-c", "512", "-ub", "512"]
needs_program = pytest.mark.skipif(not PROGRAM.is_file(), reason="llama-server is not built")


@contextmanager
def serving(file: Path, *options: str) -> Iterator[str]:
    """The address of a server of the file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [PROGRAM, "-m", file, *options, "--port", port, "--no-webui", *EXACT]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            assert process.poll() is None, "it does not load the file"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
