"""A server that is started again goes on from the prefixes on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server
from tests.serve.conftest import ASSETS, serving

TEXT = "Once upon a time, there was a little fox named Pip. He lived in a green forest. " * 5


def asked(folder: Path, text: str) -> tuple[int, str]:
    """The cached tokens and the answer of a server that lives for one request."""
    options: dict[str, Any] = {"prefix_store": str(folder), "threads": 1, "deterministic": True}
    pool = ModelPool({"stories": str(ASSETS / "stories.gguf")}, options=options, stores=False)
    body = {"prompt": text, "max_tokens": 8, "temperature": 0}
    with serving(Server(pool)) as url, httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(100):  # the digest of the model is made in the background, once
            answer = client.post("/v1/completions", json=body).json()
            if any(folder.glob("*/*.0")):
                break
            time.sleep(0.05)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]


def test_a_restart(tmp_path: Path):
    _, text = asked(tmp_path, TEXT)
    cached, again = asked(tmp_path, TEXT)
    assert cached > 100 and again == text
    cached, _ = asked(tmp_path, "Another beginning. " + TEXT)
    assert not cached
