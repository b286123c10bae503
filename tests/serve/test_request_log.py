"""A line a request on standard error."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ggmodel.cli import app
from ggmodel.serve.models import ModelPool
from ggmodel.serve.monitoring import RequestLog, _Body
from ggmodel.serve.server import Server, Settings
from tests.serve.conftest import ASSETS, serving
from tests.serve.standin import InProcessModels

BEGIN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d 127\.0\.0\.1 "
SECONDS = r"\d+\.\d{3}s"


def lines_of(
    models: Any,
    capsys: pytest.CaptureFixture[str],
    *asked: tuple[str, Any],
    verbose: bool = False,
    **headers: str,
) -> list[str]:
    """The log of a server after these requests: GET, or POST of JSON."""
    server = Server(models, Settings(log_requests=True, verbose=verbose))
    with serving(server) as url, httpx.Client(base_url=url, timeout=60, headers=headers) as http:
        for path, body in asked:
            if body is None:
                http.get(path)
            else:
                http.post(path, json=body)
    return capsys.readouterr().err.splitlines()


def test_a_line_has_status_time_and_tokens(
    models: InProcessModels, capsys: pytest.CaptureFixture[str]
):
    text: Any = {"prompt": "Once upon", "max_tokens": 3, "logit_bias": {"1": -100, "4": -100}}
    lines = lines_of(
        models,
        capsys,
        ("/v1/completions", text),
        ("/health", None),
        ("/v1/completions?key=secret", {**text, "stream": True}),
        ("/nowhere", None),
    )
    tokens = r"in=[1-9]\d* out=3"
    # The line of a stream is written behind its end, perhaps after the next request's.
    absent, chat, stream = sorted(lines, key=lambda line: " POST " in line)
    assert re.fullmatch(rf"{BEGIN}POST /v1/completions 200 {SECONDS} {tokens}", chat)
    assert re.fullmatch(rf"{BEGIN}POST /v1/completions 200 {SECONDS} {tokens}", stream)
    assert re.fullmatch(rf"{BEGIN}GET /nowhere 404 {SECONDS}", absent)


def test_answers_that_nobody_waits_for_have_their_own_lines(
    models: InProcessModels, capsys: pytest.CaptureFixture[str]
):
    server = Server(models, Settings(log_requests=True))
    ask: Any = {"model": "stories", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
    requests = [{"custom_id": "a", "params": ask}, {"custom_id": "b", "params": {"model": "no"}}]
    with serving(server) as url, httpx.Client(base_url=url, timeout=60) as http:
        answer = http.post("/v1/messages/batches", json={"requests": requests})
        batch = f"/v1/messages/batches/{answer.json()['id']}"
        begun = {"model": "stories", "input": "a", "max_output_tokens": 2, "background": True}
        response = f"/v1/responses/{http.post('/v1/responses', json=begun).json()['id']}"
        last = time.monotonic() + 30
        while (
            http.get(batch).json()["processing_status"] != "ended"
            or http.get(response).json()["status"] == "in_progress"
        ):
            assert time.monotonic() < last
            time.sleep(0.02)
        error = http.get(f"{batch}/results").text.splitlines()[1]
    assert '"request_id":"req_' in error and answer.headers["request-id"] not in error
    ends = [line.partition(" POST ")[2] for line in capsys.readouterr().err.splitlines()]
    tokens = r"model=stories in=[1-9]\d* out=2"
    for expected in (
        rf"/v1/messages/batches 200 {SECONDS}",
        rf"/v1/messages 200 {SECONDS} {tokens}",
        rf"/v1/messages 400 {SECONDS}",
        rf"/v1/responses 200 {SECONDS} model=stories",
        rf"/v1/responses 200 {SECONDS} {tokens}",
    ):
        assert len([one for one in ends if re.fullmatch(expected, one)]) == 1, (expected, ends)


def test_a_line_is_one_short_line_whatever_is_asked(capsys: pytest.CaptureFixture[str]):
    ask: Any = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    wrong, long = lines_of(
        ModelPool([], stores=False),
        capsys,
        ("/v1/messages", {**ask, "model": "a b\n\x1b[2J\u202e"}),
        ("/" + "é" * 3000, None),
    )
    name = re.escape(r"model=a\x20b\n\x1b[2J\u202e")
    assert re.fullmatch(rf"{BEGIN}POST /v1/messages 404 {SECONDS} {name}", wrong)
    assert len(long) < 300 and long.isascii()


def test_bodies_are_logged_where_wanted(
    models: InProcessModels, capsys: pytest.CaptureFixture[str]
):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    content = [{"type": "text", "text": "é\x1b[2J"}, image]
    chat = {"messages": [{"role": "user", "content": content}]}
    text = {"prompt": "Once upon", "max_tokens": 3, "stream": True}
    secret = {"authorization": "Bearer secret", "x-request-id": "mine"}
    asked = ("/v1/completions", text), ("/v1/chat/completions", chat), ("/health", None)
    lines = lines_of(models, capsys, *asked, verbose=True, **secret)
    assert not any("secret" in line for line in lines)
    heads = [one for one in lines if re.match(BEGIN, one)]
    bodies = [one for one in lines if one.startswith("  mine ")]
    assert len(heads) == 2 and len(bodies) == 4 == len(lines) - 2
    ask, answer, picture, refusal = bodies
    assert ask.startswith("  mine < {") and '"prompt"' in ask
    assert answer.startswith("  mine > data: {") and r"data: [DONE]\n\n" in answer
    assert "A" * 16 + "…(5,000 characters of base64)" in picture.replace("base64,", "")
    assert "é" in picture and "\x1b" not in picture and "A" * 17 not in picture
    assert '"error"' in refusal


def test_long_and_binary_bodies_are_cut(
    models: InProcessModels, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ggmodel.serve.monitoring._KEPT_BYTES", 100_000)
    server = Server(models, Settings(log_requests=True, verbose=True))
    with serving(server) as url, httpx.Client(base_url=url, timeout=60) as http:
        http.post("/v1/completions", json={"prompt": "a b " * 50_000})
        http.post("/v1/audio/transcriptions", files={"file": b"\0" * 3000}, data={"model": "x"})
    text, _, sound, _ = [one for one in capsys.readouterr().err.splitlines() if one[0] == " "]
    assert len(text) < 9000 and re.search(r"… \(200,\d{3} bytes in all\)$", text)
    assert re.search(r" < [34],\d{3} bytes of multipart/form-data", sound)


def test_nobody_waits_for_a_terminal_that_is_full(monkeypatch: pytest.MonkeyPatch):
    full = threading.Event()

    class Stuck:
        def write(self, text: str) -> None:
            full.wait(60)

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stderr", Stuck())
    log, began = RequestLog(), time.monotonic()
    for _ in range(20_000):
        log.add("a line")
    log.close()
    assert time.monotonic() - began < 20
    assert log._lines.qsize() <= 1000
    full.set()
    log._writer.join(1)
    log.close()


@pytest.mark.parametrize(
    ("options", "logs", "bodies"),
    [
        ((), True, False),
        (("--no-log-requests",), False, False),
        (("--verbose",), True, True),
        (("--verbose", "--no-log-requests"), True, True),
    ],
)
def test_the_command_logs_what_is_wanted(
    options: tuple[str, ...], logs: bool, bodies: bool, monkeypatch: pytest.MonkeyPatch
):
    servers: list[Server] = []
    monkeypatch.setattr("ggmodel.serve.listening.listen", lambda server, *_: servers.append(server))
    CliRunner().invoke(app, ["serve", str(ASSETS / "stories.gguf"), *options])
    assert (servers[0].log is not None) is logs
    assert servers[0].settings.verbose is bodies


def test_bodies_of_many_long_words_are_shown_at_once():
    body = _Body()
    body.add({"body": (b"a" * 255 + b" ") * 4000})
    begin = time.process_time()
    assert body.shown().startswith("a" * 255 + " ")
    assert time.process_time() - begin < 0.3
