"""Run a model with a part of its layers on another machine.

    python examples/two_machines.py [FILE.gguf [HOST:PORT …]]

The other machine has to run `ggmodel worker --host ADDRESS`; docs/distributed.md tells how to keep
strangers out. Without an address, this script starts a worker on this machine instead. Both sides
need a ggml with RPC: `make native`, then set GGMODEL_GGML as it says.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"


@contextmanager
def worker_here() -> Iterator[str]:
    """A worker on this machine, in place of another one."""
    with socket.socket() as probe:  # finds a free port
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ggmodel", "worker", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            assert process.stderr is not None
            raise SystemExit(process.stderr.read().decode().strip())
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def tell(file: str, workers: list[str]) -> None:
    # Every worker gets a layer; the others stay here. "auto" would place as many as fit.
    layers = {f"RPC{i}": [i] for i in range(len(workers))}
    with ggmodel.load(file, rpc=workers, gpu_layers=layers) as model:
        print(model.memory, end="\n\n")
        for piece in model.stream("Once upon a time", temperature=0.7, seed=1, max_tokens=100):
            print(piece, end="", flush=True)
        print()


def main(file: str = str(STORIES), *workers: str) -> None:
    if workers:
        tell(file, list(workers))
        return
    with worker_here() as worker:
        tell(file, [worker])


if __name__ == "__main__":
    main(*sys.argv[1:])
