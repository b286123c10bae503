"""Files of requests and of answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ggmodel.bounds import limits
from ggmodel.errors import ConfigError, Error, FormatError, WriteError
from ggmodel.serve.batch import AnswerFile, RequestFile, answer_here
from ggmodel.serve.server import Server
from tests.serve.conftest import ASSETS
from tests.serve.standin import InProcessModels

CHAT = "/v1/chat/completions"


def request(name: str, text: str = "Once", tokens: int = 4, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": {**body, **more}}


def put(path: Path, *requests: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer(models: InProcessModels, asked: Path, target: Path, width: int = 4) -> list[int]:
    told: list[int] = []
    requests = RequestFile(asked)
    with AnswerFile(target, requests) as answers:
        asyncio.run(answer_here(requests, answers, Server(models), width, told.append))
    return told


def test_answers_come_in_the_order_of_requests(models: InProcessModels, tmp_path: Path):
    """Answers of few tokens are ready before earlier ones of many."""
    asked = [request(f"r{i}", tokens=1 + 7 * (-i % 5), temperature=0) for i in range(23)]
    told = answer(models, put(tmp_path / "asked", *asked), tmp_path / "answers")

    found = read(tmp_path / "answers")
    assert [one["custom_id"] for one in found] == [f"r{i}" for i in range(23)]
    assert told == list(range(1, 24))
    for one, wanted in zip(found, asked, strict=True):
        response = one["response"]
        assert (response["status_code"], one["error"]) == (200, None)
        counts = response["body"]["usage"]
        assert counts["completion_tokens"] == wanted["body"]["max_tokens"]
    assert not (tmp_path / "answers.part").exists()


def test_an_answer_is_the_server_s(models: InProcessModels, url: str, tmp_path: Path):
    import httpx

    wanted = request("one", temperature=0)
    answer(models, put(tmp_path / "asked", wanted), tmp_path / "answers")

    (found,) = read(tmp_path / "answers")
    served = httpx.post(url + CHAT, json=wanted["body"], timeout=30).json()
    assert found["response"]["body"]["choices"] == served["choices"]


def test_a_request_that_fails_is_an_answer(models: InProcessModels, tmp_path: Path):
    bad = request("bad", temperature="hot")
    unknown = request("unknown", model="nobody")
    answer(models, put(tmp_path / "asked", bad, request("good"), unknown), tmp_path / "answers")

    found = read(tmp_path / "answers")
    assert [one["response"]["status_code"] for one in found] == [400, 200, 404]
    assert "temperature" in found[0]["response"]["body"]["error"]["message"]


def test_a_run_goes_on_where_it_stopped(models: InProcessModels, tmp_path: Path):
    asked = put(tmp_path / "asked", *(request(f"r{i}") for i in range(6)))
    target, partial = tmp_path / "answers", tmp_path / "answers.part"
    answer(models, asked, target)
    lines = target.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(lines[:2]) + lines[2][:-9])  # it was cut off in the third
    target.unlink()

    told = answer(models, asked, target)

    assert told == [3, 4, 5, 6]
    assert target.read_bytes().splitlines(keepends=True)[:2] == lines[:2]
    assert [one["custom_id"] for one in read(target)] == [f"r{i}" for i in range(6)]


def test_a_request_that_was_changed_is_another_one(models: InProcessModels, tmp_path: Path):
    asked, target = tmp_path / "asked", tmp_path / "answers"
    answer(models, put(asked, request("r0"), request("r1")), target)
    before = target.read_bytes().splitlines(keepends=True)[0]
    (tmp_path / "answers.part").write_bytes(before)
    target.unlink()

    put(asked, request("r0", "Twice"), request("r1"))
    with pytest.raises(FormatError, match="answers to other requests"):
        answer(models, asked, target)
    assert (tmp_path / "answers.part").read_bytes() == before


def test_answers_do_not_grow_behind_a_link(tmp_path: Path):
    asked, victim = put(tmp_path / "asked", request("r0")), tmp_path / "victim"
    (tmp_path / "answers.part").symlink_to(victim)
    with pytest.raises(WriteError, match=r"answers\.part: it is a link; remove it"):
        AnswerFile(tmp_path / "answers", RequestFile(asked))
    assert not victim.exists()


def test_two_runs_do_not_write_the_same_file(models: InProcessModels, tmp_path: Path):
    asked, target = put(tmp_path / "asked", request("r0"), request("r1")), tmp_path / "answers"
    requests = RequestFile(asked)
    first, *_ = requests.lines()
    with AnswerFile(target, requests) as answers:
        answers.write(first, 200, b"{}")
        with pytest.raises(WriteError, match=r"another run writes .*answers\.part"):
            answer(models, asked, target)
    assert answer(models, asked, target) == [2]
    assert [one["custom_id"] for one in read(target)] == ["r0", "r1"]


def test_answers_to_other_requests_are_kept(models: InProcessModels, tmp_path: Path):
    put(tmp_path / "answers.part", {"custom_id": "other"})
    before = (tmp_path / "answers.part").read_bytes()
    asked = put(tmp_path / "asked", request("r0"))

    with pytest.raises(FormatError, match="answers to other requests"):
        answer(models, asked, tmp_path / "answers")
    assert (tmp_path / "answers.part").read_bytes() == before
    (tmp_path / "there").write_text("precious")
    with pytest.raises(WriteError, match="exists"):
        answer(models, asked, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "precious"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "holds no requests"),
        (["{"], "line 1 of .* is no request"),
        (["[]"], "line 1 of .* is no request"),
        ([json.dumps(request("a")), "7"], "line 2 of .* is no request"),
        ([json.dumps(request("a"))] * 2, "line 2 of .* has the custom_id of line 1"),
        ([json.dumps({**request("a"), "url": "/api/delete"})], "asks '/api/delete'"),
        ([json.dumps({**request("a"), "method": "GET"})], "POST one of"),
        ([json.dumps(request("a", stream=True))], "asks for a stream"),
        (
            [json.dumps({**request("a", background=True), "url": "/v1/responses"})],
            "asks for an answer in the background",
        ),
        ([json.dumps({**request("a"), "body": [1]})], "is no request"),
    ],
)
def test_a_file_is_checked_before_anything_is_asked(tmp_path: Path, lines: list[str], what: str):
    (tmp_path / "asked").write_text("\n".join(lines))
    with pytest.raises(Error, match=what):
        RequestFile(tmp_path / "asked")


def test_lines_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_body_bytes", 1000)
    put(tmp_path / "asked", request("a", "x" * 1000))
    with pytest.raises(FormatError, match=r"line 1 of .*serve_body_bytes"):
        RequestFile(tmp_path / "asked")
    with pytest.raises(ConfigError, match="cannot read"):
        RequestFile(tmp_path / "nothing")


@pytest.mark.slow
def test_a_killed_run_answers_every_request_once(tmp_path: Path):
    """The whole program is killed, and then one of the processes that hold models."""
    count = 120
    asked = put(tmp_path / "asked", *(request(f"r{i}", f"Story {i}", 30) for i in range(count)))
    target, partial = tmp_path / "answers", tmp_path / "answers.part"
    command = [sys.executable, "-m", "ggmodel", "batch", str(asked), str(target), "--threads", "1"]
    command += ["--model", str(ASSETS / "stories.gguf")]

    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(partial, 10)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(10)
    left = partial.read_bytes().count(b"\n")
    assert 10 <= left < count and not target.exists()

    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(partial, left + 10)
        for runner in children(second.pid):
            os.kill(runner, signal.SIGKILL)
        said, _ = second.communicate(timeout=200)
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait(10)

    assert second.returncode == 0
    assert f"{count} answers" in said
    found = read(target)
    assert [one["custom_id"] for one in found] == [f"r{i}" for i in range(count)]
    assert {one["response"]["status_code"] for one in found} == {200}


def wait_for(partial: Path, lines: int) -> None:
    """Until a file has that many lines."""
    deadline = time.monotonic() + 100
    while not partial.exists() or partial.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
