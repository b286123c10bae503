"""A process of llama.cpp's server: python llama_cpp_process.py FILE EMBEDDING

Prints the server's address, and serves until the standard input ends. EMBEDDING is 1 for a model
that gives vectors, else 0.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def run(file: str, embedding: bool) -> None:
    xllamacpp: Any = importlib.import_module("xllamacpp")  # of the extra `peers`
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.hostnames, parameters.port = file, ["127.0.0.1"], 0
    parameters.n_parallel, parameters.n_ctx, parameters.warmup = 2, 1024, False
    parameters.n_batch = parameters.n_ubatch = 256  # with more there is no room for other files
    parameters.use_jinja, parameters.ui, parameters.embedding = True, False, embedding
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    disabled = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.flash_attn_type = disabled
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2] == "1")
