"""A server whose model lies on two workers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

import ggmodel
from tests.conftest import ROOT

STORIES = ROOT / "examples" / "assets" / "stories.gguf"
PATIENCE = 60  # seconds
ASK: Any = {"model": "stories", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}


@contextmanager
def serving(environment: dict[str, str], *arguments: str) -> Iterator[str]:
    """The URL of a server of the stories."""
    command = [sys.executable, "-m", "ggmodel", "serve", "--only", "--port", "0", str(STORIES)]
    with subprocess.Popen(
        [*command, "--threads", "1", "--kv-type", "f32", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()
            process.wait(PATIENCE)


def until_answered(client: openai.OpenAI) -> str:
    """The answer, once the server has one."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return client.completions.create(**ASK).choices[0].text
        except openai.InternalServerError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture
def again(worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """`again(port)` starts a worker there."""

    def start(port: int) -> Any:
        monkeypatch.setattr(sys.modules[worker.__module__], "free_port", lambda: port)
        return worker()

    return start


@pytest.mark.slow
def test_a_server_has_its_model_on_workers(
    worker: Callable[..., Any], again: Callable[[int], Any], rpc_environment: dict[str, str]
):
    with ggmodel.load(STORIES, threads=1, kv_type="f32") as model:
        expected = model.generate("Once upon a time", max_tokens=20, temperature=0)
    first, second = worker(), worker()
    rpc = ("--rpc", f"{first.endpoint},{second.endpoint}", "--gpu-layers", "RPC0=0-1,RPC1=2-4")
    with (
        serving(rpc_environment, *rpc) as url,
        openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", timeout=PATIENCE, max_retries=0
        ) as client,
    ):
        assert client.completions.create(**ASK).choices[0].text == expected
        streamed = client.completions.create(**ASK, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == expected

        # Both hold layers: without one, no answer.
        second.kill()
        with pytest.raises(openai.InternalServerError, match=second.endpoint):
            client.completions.create(**ASK)

        # The worker is started again, and so is the model.
        again(second.port)
        assert until_answered(client) == expected
