"""A process of llama.cpp's server: python llama_cpp_process.py FILE KIND [TEMPLATE]

Prints the server's address, and serves until the standard input ends. KIND is `text`, `embedding`
for a model that gives vectors, or `reranking`, in F32. TEMPLATE takes the place of the file's.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def run(file: str, kind: str, template: str = "") -> None:
    xllamacpp: Any = importlib.import_module("xllamacpp")  # of the extra `peers`
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.hostnames, parameters.port = file, ["127.0.0.1"], 0
    parameters.n_parallel, parameters.n_ctx, parameters.warmup = 2, 1024, False
    parameters.n_batch = parameters.n_ubatch = 256  # with more there is no room for other files
    parameters.use_jinja, parameters.ui, parameters.embedding = True, False, kind != "text"
    parameters.chat_template = template
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    disabled = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.flash_attn_type = disabled
    if kind == "reranking":
        parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
        exact = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.cache_type_k = parameters.cache_type_v = exact
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    run(*sys.argv[1:])
