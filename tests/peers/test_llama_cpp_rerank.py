"""Rerankers in llama.cpp's server, where `make` has built it for benchmarks, on our files: the same
scores."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import convert
from tests.convert import sentences
from tests.convert.sentences import PAIRS

PROGRAM = Path(__file__).parents[2] / ".cache" / "peer" / "bin" / "llama-server"
EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1", "-c", "512", "-ub", "512"]


@contextmanager
def serving(file: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [PROGRAM, "-m", file, "--reranking", "--port", port, "--no-webui", *EXACT]
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


@pytest.mark.skipif(not PROGRAM.is_file(), reason="llama-server is not built")
@pytest.mark.parametrize("tied", [True, False])
def test_the_probability_of_yes(tmp_path: Path, tied: bool):
    folder = sentences.qwen3(tmp_path / "Qwen3-Reranker-tiny", closing=False, tied=tied)
    convert(folder, tmp_path / "model.gguf", "f32")
    query, documents = PAIRS[0][0], [document for _, document in PAIRS]
    body = json.dumps({"query": query, "documents": documents}).encode()
    with serving(tmp_path / "model.gguf") as address:
        answer = urllib.request.urlopen(urllib.request.Request(f"{address}/rerank", body))
        results = json.load(answer)["results"]
    theirs = {one["index"]: one["relevance_score"] for one in results}
    options = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
    with ggmodel.load(tmp_path / "model.gguf", **options) as model:
        scores = model.rerank(query, documents)
    assert np.abs(scores - [theirs[i] for i in range(len(documents))]).max() < 1e-5
    assert len({round(float(score), 5) for score in scores}) == len(documents)
