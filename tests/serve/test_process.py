"""`ggmodel serve` as people run it: processes, sockets, signals."""

from __future__ import annotations

import base64
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.children import import_path
from tests.serving import Running, running

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
ASK: Any = {"messages": [{"role": "user", "content": "A story, please."}], "temperature": 0}
LONG: Any = {**ASK, "stream": True, "logit_bias": {"1": -100, "4": -100}}  # to the context's end
CHAT = "/v1/chat/completions"
SILENCE = 3.0
IMPATIENT = {"GGMODEL_LIMIT_RUNNER_SILENCE_SECONDS": str(SILENCE)}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(str(ASSETS / "stories.gguf"), f"eyes={ASSETS / 'shapes.gguf'}") as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """`start(*arguments)` starts another server."""
    with ExitStack() as stack:
        yield lambda *a, **v: stack.enter_context(running(*a, **v))


def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", timeout=60, max_retries=0)


def test_models_are_loaded_when_asked(server: Running):
    with client(server) as asking:
        assert [one.id for one in asking.models.list()] == ["stories", "eyes"]
        found = asking.chat.completions.create(model="stories", **ASK, max_tokens=5)
        assert found.choices[0].message.content
        assert found.usage is not None
        assert found.usage.completion_tokens == 5
        with pytest.raises(openai.NotFoundError):
            asking.chat.completions.create(model="others", **ASK)


def test_pictures_are_seen(server: Running):
    data = base64.b64encode((ASSETS / "scene.png").read_bytes()).decode()
    link = f"data:image/png;base64,{data}"
    parts: Any = [
        {"type": "image_url", "image_url": {"url": link}},
        {"type": "text", "text": "What is this?"},
    ]
    with client(server) as asking:
        found = asking.chat.completions.create(
            model="eyes", messages=[{"role": "user", "content": parts}], max_tokens=5, temperature=0
        )
        plain = asking.chat.completions.create(
            model="eyes",
            messages=[{"role": "user", "content": "What is this?"}],
            max_tokens=5,
            temperature=0,
        )
    assert found.choices[0].message.content
    assert found.usage is not None
    assert plain.usage is not None
    assert found.usage.prompt_tokens > plain.usage.prompt_tokens


def test_a_runner_that_dies_ends_its_requests_and_is_started_again(server: Running):
    with client(server) as asking:
        stream = asking.chat.completions.create(model="stories", **LONG)
        next(iter(stream))
        known = server.runners()
        for runner in known:
            os.kill(runner, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="process"):
            for _ in stream:
                pass
        found = asking.chat.completions.create(model="stories", **ASK, max_tokens=3)
        assert found.choices[0].message.content
    assert not set(known) & set(server.runners())


def test_a_client_that_goes_away_frees_its_sequence(server: Running):
    def waiting() -> float:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        (line,) = [one for one in lines if one.startswith('ggmodel_requests_running{model="stor')]
        return float(line.split()[-1])

    for _ in range(8):  # more than there are sequences
        with httpx.stream("POST", f"{server.url}{CHAT}", json=LONG, timeout=30) as answer:
            next(answer.iter_lines())
    end = time.monotonic() + 10
    while waiting() and time.monotonic() < end:
        time.sleep(0.01)
    assert waiting() == 0


def test_half_requests_hold_nobody_up(server: Running):
    address = httpx.URL(server.url)
    assert address.port is not None
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n"
    with ExitStack() as stack:
        for n in range(200):
            one = socket.create_connection((address.host, address.port), 10)
            stack.enter_context(one)
            one.sendall(f"{head}\r\n{{".encode() if n % 2 else head[: n % 40].encode())
        found = httpx.post(f"{server.url}{CHAT}", json={**ASK, "max_tokens": 2}, timeout=30)
    assert found.status_code == 200


def test_half_requests_are_given_up(start: Callable[..., Running]):
    server = start(GGMODEL_LIMIT_SERVE_BODY_SECONDS="0.2")
    address = httpx.URL(server.url)
    assert address.port is not None
    for begun in (b"", b"GET / HT", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET / HT"):
        with socket.create_connection((address.host, address.port), 10) as one:
            one.sendall(begun)
            end = b"x"
            while end:
                end = one.recv(1 << 16)


def test_the_end_waits_for_requests(start: Callable[..., Running]):
    server = start(str(ASSETS / "stories.gguf"), "--context-length", "200")
    text = ""
    with httpx.stream("POST", f"{server.url}{CHAT}", json=LONG, timeout=60) as answer:
        lines = answer.iter_lines()
        text += next(lines)
        runners = server.runners()
        server.process.send_signal(signal.SIGTERM)
        text += "".join(lines)
    assert text.endswith("[DONE]")
    assert '"finish_reason":"length"' in text
    assert server.process.wait(20) == 128 + signal.SIGTERM
    for runner in runners:
        assert not Path(f"/proc/{runner}").exists()


def test_ports_in_use_and_files_of_no_use_are_errors(server: Running):
    port = httpx.URL(server.url).port
    for arguments, message in (
        (["--port", str(port)], "cannot listen"),
        (["--api-key-file", "absent"], "cannot read the keys"),
        (["--only", "--pin", "nonsense"], "there is no model 'nonsense'"),
    ):
        found = subprocess.run(
            [sys.executable, "-m", "ggmodel", "serve", *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": import_path()},
        )
        assert found.returncode == 1
        assert message in found.stderr


def test_many_clients_get_the_answers_to_their_own_prompts(server: Running):
    """Scores of their own words tell: the prompt of another client would change them by units."""
    words = ("dog", "cat", "bird", "girl", "boy", "tree", "house", "ball")

    def ask(word: str) -> list[float]:
        prompt = f"Once there was a {word}, and then there was another {word}."
        asked = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}
        found = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).json()
        assert found["choices"][0]["text"] == prompt
        return found["choices"][0]["logprobs"]["token_logprobs"][1:]

    alone = {word: ask(word) for word in words}
    found: dict[str, list[float]] = {}
    threads = [threading.Thread(target=lambda w=word: found.update({w: ask(w)})) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for word in words:
        np.testing.assert_allclose(found[word], alone[word], atol=0.2)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch):
    from ggmodel.cli.serve import serve
    from ggmodel.errors import Unsupported

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(Unsupported, match=r"uvicorn: pip install .*'uvicorn<1,>="):
        serve(**{p.name: p.default for p in inspect.signature(serve).parameters.values()})


def conditions(server: Running) -> dict[str, str]:
    began = time.monotonic()
    found = httpx.get(f"{server.url}/health", timeout=10).json()
    assert found["status"] == "ok" and time.monotonic() - began < 5
    return found["models"]


def wait_for(server: Running, condition: str) -> None:
    end = time.monotonic() + 30
    while (found := conditions(server)["stories"]) != condition:
        assert time.monotonic() < end, f"{found}, never {condition}"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_runner_that_stands_still(start: Callable[..., Running]):
    server = start(str(ASSETS / "stories.gguf"), "--pin", "stories", **IMPATIENT)
    wait_for(server, "ready")
    loaded = wait_for_runner(server)
    with client(server) as asking:
        stream = asking.chat.completions.create(model="stories", **LONG)
        next(iter(stream))
        os.kill(loaded, signal.SIGSTOP)
        with pytest.raises(openai.APIError, match="silent for"):
            for _ in stream:
                pass
        found = asking.chat.completions.create(model="stories", **ASK, max_tokens=3)
        assert found.choices[0].message.content
    wait_for(server, "ready")
    assert loaded not in server.runners()


SLOW = f"""
import sys, time
from ggmodel import register
from ggmodel.models import llama

if "ggmodel.serve.runners.process" in sys.orig_argv:
    time.sleep({SILENCE} + 2)

@register("llama")
class Slow(llama.Llama):
    pass
"""


@pytest.mark.slow
def test_a_runner_that_stands_still_while_it_loads(start: Callable[..., Running], tmp_path: Path):
    """It is ended; one that loads for longer than the limit is not."""
    (tmp_path / "slow.py").write_text(SLOW)
    server = start(str(ASSETS / "stories.gguf"), "--models", str(tmp_path), **IMPATIENT)

    def ask() -> httpx.Response:
        return httpx.post(f"{server.url}{CHAT}", json={**ASK, "max_tokens": 2}, timeout=60)

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        stopped = wait_for_runner(server)
        os.kill(stopped, signal.SIGSTOP)
        assert conditions(server) == {"stories": "loading"}
        lost = asked.result()
    assert lost.status_code == 503 and "silent for" in lost.text
    assert stopped not in server.runners()
    assert conditions(server) == {"stories": "failed"}
    began = time.monotonic()
    assert ask().status_code == 200 and time.monotonic() - began > SILENCE


def wait_for_runner(server: Running) -> int:
    end = time.monotonic() + 30
    while not (found := [pid for pid in server.runners() if is_runner(pid)]):
        assert time.monotonic() < end
    return found[0]


def is_runner(pid: int) -> bool:
    return b"runners.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
