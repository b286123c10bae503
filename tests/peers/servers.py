"""llama.cpp's server and ours on the same file, and how their answers differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.serving import running

ROOT = Path(__file__).resolve().parents[2]
PEER = Path(__file__).with_name("llama_cpp_process.py")
STORIES = ROOT / "examples" / "assets" / "stories.gguf"
EMBEDDING = ROOT / "tests" / "golden" / "gemma3" / "converted" / "embedding.gguf"
# Both keep keys and values as f16, and add numbers in another order. Neither uses flash attention:
# ggml's rounds sums of values to f16, ours does not.
LOGPROB = 0.02
COORDINATE = 0.01  # of vectors of length 1
GREEDY: Any = {"temperature": 0, "seed": 1}
PROMPT = "Once upon a time there was a"
ASK: Any = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me about a fox."},
]


class Both(NamedTuple):
    """Clients of both servers."""

    ours: httpx.Client
    theirs: httpx.Client

    def post(self, path: str, body: Any) -> tuple[Any, Any]:
        """Both answers, which have status 200."""
        found = [client.post(path, json=body) for client in self]
        assert [one.status_code for one in found] == [200, 200], [one.text for one in found]
        return found[0].json(), found[1].json()


@contextmanager
def both(file: Path, embedding: bool = False) -> Iterator[Both]:
    """Both servers, with room for two sequences."""
    options = ("--parallel", "2", "--threads", "1", "--gpu-layers", "0", "--flash-attention", "off")
    with (
        peer(file, "embedding" if embedding else "text") as address,
        running(str(file), *options) as mine,
        httpx.Client(base_url=mine.url, timeout=60) as ours,
        # It closes a connection after a stream without saying so, and after five idle seconds.
        httpx.Client(
            base_url=address, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)
        ) as theirs,
    ):
        ours.post("/models/load", json={"model": file.stem}).raise_for_status()
        yield Both(ours, theirs)


@contextmanager
def peer(file: Path, *options: str) -> Iterator[str]:
    """The address of llama.cpp's server. It has a process of its own, since a second ggml in one
    process takes functions of the first.

    Args:
        options: of llama_cpp_process.py, its KIND first.
    """
    command = [sys.executable, PEER, str(file), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        address = next((one for one in lines if one.startswith(b"http://")), b"")
        try:
            assert address, f"llama.cpp ended with status {process.wait(60)}"
            yield address.decode().strip()
        except httpx.TransportError as error:
            ended = process.poll()  # None while it runs
            asked = f"{error.request.url}, llama.cpp at {address.decode().strip()}"
            raise AssertionError(
                f"{error} ({asked}); llama.cpp's process ended with {ended}"
            ) from error
        finally:
            process.kill()


def shape(value: Any) -> Any:
    """The keys and types of JSON; one entry stands for a list, and numbers are alike."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value[:1]]
    return "number" if type(value) in (int, float) else type(value).__name__


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Places in JSON: "+" those that only ours has, "-" those that only theirs has, "~" those where
    types differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            inner = f"{place}.{key}"
            if key not in theirs:
                yield f"+{inner}"
            elif key not in ours:
                yield f"-{inner}"
            else:
                yield from differences(ours[key], theirs[key], inner)
    elif isinstance(ours, list) and isinstance(theirs, list):
        if ours and theirs:
            yield from differences(ours[0], theirs[0], f"{place}[]")
    elif shape(ours) != shape(theirs):
        yield f"~{place}"


def events(text: str) -> list[Any]:
    """The events of a stream."""
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]
