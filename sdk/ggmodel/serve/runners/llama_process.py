"""The process of llama.cpp's server: xllamacpp's in this process, or llama-server.

It ends with the process that started it: Linux sees to it; elsewhere a process of Python watches.

Lines of JSON on standard output: {"event": "ready", "port": PORT, "metadata": {…}, "control": […]},
{"event": "failed", "error": CLASS, "message": TEXT}.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import concurrency
from ...errors import ComputeError, Error, Unsupported
from ...gguf_file import open_gguf
from ...platforms.processes import CHILD
from .process import read_line, write_line
from .state import plain_metadata

_PR_SET_PDEATHSIG = 1
_WATCHER = Path(__file__).with_name("watcher.py")

_watching: list[subprocess.Popen[bytes]] = []  # whose pipes must stay open


def start_tied(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a program.

    Args:
        options: of `subprocess.Popen`.

    Raises:
        OSError: it, or its watcher, cannot be started; then it does not run.
    """
    process: Any
    if sys.platform == "linux":
        process = subprocess.Popen(command, preexec_fn=_die_with_parent, **options)
        return process
    process = subprocess.Popen(command, **CHILD, **options)
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    try:
        watcher = concurrency.start_python(
            [str(_WATCHER), str(process.pid)], stdin=subprocess.PIPE, **nowhere
        )
    except BaseException:
        process.kill()
        process.wait()
        raise
    _watching.append(watcher)
    return process


def _die_with_parent() -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, getattr(signal, "SIGKILL", 9))


PROGRAM = "llama-server"
_CONTROL = (3, 4)  # types of tokens that are for the model, or defined by its users
_MOST_CONTROL = 4096
_RANKS = 4  # the value of `pooling_type` of a model that ranks documents
_LOOK_SECONDS = 0.05

# Options of loading → llama-server's.
_ARGUMENTS = {
    "threads": "--threads",
    "batch_size": "--batch-size",
    "parallel": "--parallel",
    "mmproj": "--mmproj",
    "flash_attention": "--flash-attn",
    "cache_ram": "--cache-ram",
}


def main() -> None:
    """Serves the model of the first line of standard input: JSON, `model`, `token`, `options`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = read_line()
    running: list[subprocess.Popen[bytes]] = []
    threading.Thread(target=_end_with_input, args=(running,), daemon=True).start()
    try:
        path, options = request["model"], request["options"]
        with open_gguf(path) as source:
            metadata = plain_metadata(source.metadata)
            control = _control(source.metadata)
        kind = _kind(metadata)
        options["total_context"] = _total_context(options, metadata)
        program = shutil.which(PROGRAM)
        if program is not None:
            port = _run(program, path, request["token"], kind, options, running)
        else:
            port = _run_package(path, request["token"], kind, options)
    except Error as error:
        write_line({"event": "failed", "error": type(error).__name__, "message": str(error)})
        os._exit(1)
    ready = {"port": port, "metadata": metadata, "control": control, "kind": kind}
    write_line({"event": "ready", **ready})
    if running:
        running[0].wait()
        os._exit(1)
    threading.Event().wait()


def _end_with_input(running: list[subprocess.Popen[bytes]]) -> None:
    while sys.stdin.buffer.readline():
        pass
    for process in running:
        process.kill()
    os._exit(0)


def _kind(metadata: Mapping[str, Any]) -> str:
    """ "rerank", "embedding" or "completion", by the file's pooling."""
    pooling = metadata.get(f"{metadata.get('general.architecture')}.pooling_type", 0)
    return "rerank" if pooling == _RANKS else "embedding" if pooling else "completion"


def _control(metadata: Mapping[str, Any]) -> list[str]:
    """The texts of tokens that are no plain text."""
    tokens, types = (metadata.get(f"tokenizer.ggml.{n}") for n in ("tokens", "token_type"))
    if tokens is None or types is None:
        return []
    pairs = zip(tokens.tolist(), types.tolist(), strict=True)
    return [text for text, kind in pairs if kind in _CONTROL][:_MOST_CONTROL]


def _total_context(options: Mapping[str, Any], metadata: Mapping[str, Any]) -> int:
    """Positions of all sequences together; as many for each as ggmodel would take."""
    trained = metadata.get(f"{metadata.get('general.architecture')}.context_length", 4096)
    each = options.get("context_length") or min(int(trained), 4096)
    return each * (options.get("parallel") or 1)


def _run(
    program: str,
    path: str,
    token: str,
    kind: str,
    options: Mapping[str, Any],
    running: list[subprocess.Popen[bytes]],
) -> int:
    """Starts llama-server; its port, once it has loaded the model.

    Raises:
        ComputeError: it ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--model", path, "--host", "127.0.0.1", "--port", str(port), "--jinja"]
    command += ["--ctx-size", str(options["total_context"]), "--no-webui", "--no-warmup"]
    command += {"completion": [], "embedding": ["--embeddings"], "rerank": ["--reranking"]}[kind]
    for name, argument in _ARGUMENTS.items():
        if options.get(name) is not None:
            command += [argument, str(options[name])]
    if isinstance(options.get("gpu_layers"), int):
        command += ["--n-gpu-layers", str(options["gpu_layers"])]
    if options.get("kv_type") is not None:
        command += ["--cache-type-k", options["kv_type"], "--cache-type-v", options["kv_type"]]
    environment = {**os.environ, "LLAMA_API_KEY": token}
    process = start_tied(command, env=environment, stdin=subprocess.DEVNULL, stdout=2)
    running.append(process)
    while True:
        if process.poll() is not None:
            raise ComputeError(f"llama-server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return port
        except OSError:  # not listening yet, or still loading
            time.sleep(_LOOK_SECONDS)


def _run_package(path: str, token: str, kind: str, options: Mapping[str, Any]) -> int:
    """Starts the server of xllamacpp in threads of this process; its port.

    Raises:
        Unsupported: it is not installed. ComputeError: it cannot load the model.
    """
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")
    except ImportError:
        raise Unsupported(
            "llama.cpp is not installed: put llama-server on the path, or `pip install xllamacpp`"
        ) from None
    params: Any = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = path, ["127.0.0.1"], 0
    params.api_keys, params.ui, params.warmup, params.use_jinja = [token], False, False, True
    params.n_parallel, params.n_ctx = options.get("parallel") or 1, options["total_context"]
    params.n_batch = options.get("batch_size") or params.n_batch
    if options.get("threads"):
        params.cpuparams.n_threads = options["threads"]
    if isinstance(options.get("gpu_layers"), int):
        params.n_gpu_layers = options["gpu_layers"]
    if options.get("mmproj"):
        params.mmproj.path = options["mmproj"]
    params.embedding = kind != "completion"
    if kind == "rerank":
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    try:
        server = xllamacpp.Server(params)
    except Exception as error:
        raise ComputeError(f"llama.cpp cannot load {path}: {error}") from error
    _servers.append(server)
    return int(server.listening_address.rpartition(":")[2])


_servers: list[Any] = []


if __name__ == "__main__":
    main()
