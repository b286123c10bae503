"""/v1/files, /v1/batches and /v1/messages/batches through the clients of OpenAI and Anthropic."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ggmodel import limits
from ggmodel.errors import ConfigError
from ggmodel.serve.api.anthropic import batches
from ggmodel.serve.batch import RequestFile
from ggmodel.serve.batch.jobs import Job, Jobs
from ggmodel.serve.batch.store import FileStore
from ggmodel.serve.errors import Refused
from ggmodel.serve.server import Server, Settings
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

CHAT = "/v1/chat/completions"
SECONDS = 60


def line(name: str, url: str = CHAT, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, **more}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def put(client: openai.OpenAI, *lines: Any) -> str:
    return client.files.create(file=("my.jsonl", jsonl(*lines)), purpose="batch").id


def ended(client: openai.OpenAI, id: str) -> Any:
    """The batch, when it has ended."""
    last = time.monotonic() + SECONDS
    while time.monotonic() < last:
        batch = client.batches.retrieve(id)
        if batch.status in ("completed", "failed", "cancelled"):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"the batch has not ended: {batch}")


def until(happens: Callable[[], bool]) -> None:
    last = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < last, "it does not happen"
        time.sleep(0.01)


def begin(client: openai.OpenAI, *lines: Any) -> Any:
    file = put(client, *lines)
    return client.batches.create(
        input_file_id=file, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
    )


def test_files_are_kept_and_removed(client: openai.OpenAI):
    data = jsonl(line("one"))
    file = client.files.create(file=("my.jsonl", data), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("my.jsonl", len(data), "batch")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == data
    assert file.id in [one.id for one in client.files.list(purpose="batch", limit=1)]
    assert not list(client.files.list(purpose="vision"))
    assert client.files.delete(file.id).deleted
    for ask in (client.files.retrieve, client.files.delete, client.files.content):
        with pytest.raises(openai.NotFoundError):
            ask(file.id)


def test_a_batch_is_answered(client: openai.OpenAI):
    begun = begin(client, line("good"), line("bad", max_tokens="x"), line("too"))
    assert begun.status in ("validating", "in_progress")
    batch = ended(client, begun.id)
    assert (batch.status, batch.metadata, batch.errors) == ("completed", {"a": "b"}, None)
    assert batch.expires_at is None
    assert batch.completed_at >= batch.in_progress_at >= batch.created_at
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    good, bad = (
        [json.loads(one) for one in client.files.content(id).text.splitlines()]
        for id in (batch.output_file_id, batch.error_file_id)
    )
    assert [one["custom_id"] for one in good] == ["good", "too"]
    assert good[0]["response"]["body"]["usage"]["completion_tokens"] > 0
    (wrong,) = bad
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("bad", 400)
    assert batch.id in [one.id for one in client.batches.list(limit=1)]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([line("a"), line("a")], "line 2 of my.jsonl has the custom_id of line 1"),
        ([line("a", "/v1/completions")], "'a' asks /v1/completions, not /v1/chat/completions"),
        ([{"no": "request"}], "line 1 of my.jsonl is no request"),
    ],
)
def test_a_wrong_file_fails_with_its_line(client: openai.OpenAI, lines: Any, what: str):
    batch = ended(client, begin(client, *lines).id)
    assert batch.status == "failed" and batch.failed_at
    assert what in batch.errors.data[0].message


def test_wrong_requests_are_named(client: openai.OpenAI, http: httpx.Client):
    file = put(client, line("a"))
    for changed, param in (("input_file_id", "input_file_id"), ("endpoint", "endpoint")):
        asked = {"input_file_id": file, "endpoint": CHAT, changed: "absent"}
        answer = http.post("/v1/batches", json=asked)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for param, wrong in (
        ("completion_window", "1h"),
        ("metadata", {str(i): "" for i in range(17)}),
        ("metadata", {"k" * 65: ""}),
        ("metadata", {"k": "v" * 513}),
    ):
        asked = {"input_file_id": file, "endpoint": CHAT, param: wrong}
        answer = http.post("/v1/batches", json=asked)
        assert answer.status_code == 400 and param in answer.text
    assert http.get("/v1/batches/absent").status_code == 404
    no_purpose = http.post("/v1/files", files={"file": b"x"})
    assert no_purpose.json()["error"]["param"] == "purpose"
    assert http.post("/v1/files", data={"purpose": "batch"}).status_code == 415


class Held:
    """Requests wait until they are let go."""

    def __init__(self, runner: InProcess, monkeypatch: pytest.MonkeyPatch):
        self.open, self.asked = False, 0
        generate = runner.generate

        async def slow(request: Any) -> Any:
            self.asked += 1
            if self.asked > 1:
                while not self.open:
                    await asyncio.sleep(0.01)
            async for event in generate(request):
                yield event

        monkeypatch.setattr(runner, "generate", slow)


def test_a_batch_is_cancelled(
    client: openai.OpenAI, runner: InProcess, monkeypatch: pytest.MonkeyPatch
):
    held = Held(runner, monkeypatch)
    begun = begin(client, *(line(f"r{i}") for i in range(20)))
    waiting = begin(client, line("next"))
    counts = lambda: client.batches.retrieve(begun.id).request_counts  # noqa: E731
    until(lambda: held.asked >= 8 and counts().completed >= 1)  # type: ignore[union-attr]
    assert client.batches.retrieve(waiting.id).status == "validating"  # one at a time
    assert client.batches.cancel(begun.id).status in ("cancelling", "cancelled")
    batch = ended(client, begun.id)
    assert batch.status == "cancelled" and batch.cancelling_at and batch.cancelled_at
    assert batch.request_counts.completed == 1
    assert "r0" in client.files.content(batch.output_file_id).text
    held.open = True
    assert ended(client, waiting.id).status == "completed"
    assert client.batches.cancel(waiting.id).status == "completed"


def test_others_see_nothing(serve: Callable[..., str]):
    url = serve(keys=("one", "two"))
    one, two = (
        openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for key in ("one", "two")
    )
    with one, two:
        begun = begin(one, line("a"))
        batch = ended(one, begun.id)
        assert batch.status == "completed"  # requests need no key of their own
        assert not list(two.files.list()) and not list(two.batches.list())
        for ask, id in (
            (two.files.retrieve, batch.output_file_id),
            (two.files.delete, batch.input_file_id),
            (two.batches.retrieve, batch.id),
            (two.batches.cancel, batch.id),
        ):
            with pytest.raises(openai.NotFoundError):
                ask(id)


def test_a_batch_goes_on_with_another_server(
    models: InProcessModels, runner: InProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    settings = Settings(files=str(tmp_path / "files"))
    lines = [line(f"r{i}") for i in range(5)]
    with monkeypatch.context() as patched:
        held = Held(runner, patched)
        with serving(Server(models, settings)) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
            id = begin(client, *lines).id
            until(lambda: client.batches.retrieve(id).request_counts.completed >= 1)  # type: ignore[union-attr]
            held.asked = 1
    asked = len(runner.seen)
    with serving(Server(models, settings)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
        batch = ended(client, id)
        assert batch.request_counts.completed == 5
        text = client.files.content(batch.output_file_id).text
    assert len(runner.seen) == asked + 4
    names = [json.loads(one)["custom_id"] for one in text.splitlines()]
    assert names == [f"r{i}" for i in range(5)]
    assert (tmp_path / "files").stat().st_mode & 0o077 == 0


def test_files_have_limits(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    put(client, line("a"))
    for limit in ("serve_files", "serve_files_bytes"):
        with monkeypatch.context() as patched:
            patched.setattr(limits, limit, 1)
            with pytest.raises(openai.APIStatusError) as refused:
                put(client, line("a"))
        assert refused.value.status_code == 413 and limit in str(refused.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use the folder"):
        FileStore(str(tmp_path / "file"))


def test_a_damaged_record_is_passed_over(tmp_path: Path):
    store = FileStore(str(tmp_path))
    kept = store.add("", "a", "batch", [b"data"])
    other = store.add("", "b", "batch", [b"data"])
    (tmp_path / f"{other.id}.json").write_bytes(b"{")
    (tmp_path / "file-x.json").write_text(json.dumps({"id": "../x"}))
    again = FileStore(str(tmp_path))
    assert again.of("") == [kept]
    again.drop(kept)
    assert FileStore(str(tmp_path)).of("") == []


def test_files_that_are_written_at_a_time_share_the_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    store = FileStore(str(tmp_path))

    def meanwhile() -> Iterator[bytes]:
        yield b"a"
        store.add("", "b", "batch", [b"b"])

    for limit in ("serve_files", "serve_files_bytes"):
        with monkeypatch.context() as patched:
            patched.setattr(limits, limit, 1)
            with pytest.raises(Refused, match=limit):
                store.add("", "a", "batch", meanwhile())
        (kept,) = store.of("")
        assert {one.name for one in tmp_path.iterdir()} == {kept.id, f"{kept.id}.json"}
        store.drop(kept)
    assert not [*tmp_path.iterdir()]


def test_files_are_read_beside_the_loop(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch):
    numbered, in_loop = RequestFile._numbered, list[bool]()

    def noting(self: RequestFile) -> Iterator[tuple[int, bytes]]:
        for one in numbered(self):
            in_loop.append(asyncio._get_running_loop() is not None)
            yield one

    monkeypatch.setattr(RequestFile, "_numbered", noting)
    assert ended(client, begin(client, line("a"), line("b")).id).status == "completed"
    assert len(in_loop) >= 6 and not any(in_loop)


def test_a_batch_that_ends_is_not_cancelled(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch):
    split, begun, let_go = Jobs._split, threading.Event(), threading.Event()

    def waiting(self: Jobs, job: Job) -> None:
        begun.set()
        assert let_go.wait(SECONDS)
        split(self, job)

    monkeypatch.setattr(Jobs, "_split", waiting)
    batch = begin(client, {"no": "request"})
    assert begun.wait(SECONDS)
    assert client.batches.cancel(batch.id).status == "finalizing"
    let_go.set()
    assert ended(client, batch.id).status == "failed"


def test_a_batch_is_answered_once_though_its_server_ends(
    models: InProcessModels, runner: InProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    killed = threading.Event()

    def kill(self: Jobs, job: Job) -> None:
        killed.set()
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Jobs, "_split", kill)
        with serving(Server(models, Settings(files=str(tmp_path)))) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
            id = begin(client, line("good"), line("bad", max_tokens="x")).id
            assert killed.wait(SECONDS)
    asked = len(runner.seen)
    with serving(Server(models, Settings(files=str(tmp_path)))) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
        batch = ended(client, id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 1)
        assert "bad" in client.files.content(batch.error_file_id).text
    assert len(runner.seen) == asked
    assert not [*tmp_path.glob("*.answers*")]


def test_answers_without_room_leave_nothing(
    models: InProcessModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(limits, "serve_files", 1)
    with serving(Server(models, Settings(files=str(tmp_path)))) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
        batch = ended(client, begin(client, line("a")).id)
        assert batch.status == "failed" and "serve_files" in batch.errors.data[0].message
    file = batch.input_file_id
    assert {one.name for one in tmp_path.iterdir()} == {file, f"{file}.json", f"{batch.id}.batch"}


def test_batches_make_room_for_those_of_their_client(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    url = serve(keys=("one", "two"))
    one, two = (
        openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for key in ("one", "two")
    )
    with one, two:
        asked: Any = {"endpoint": CHAT, "completion_window": "24h"}
        own, other = put(one, line("a")), put(two, line("a"))
        first = ended(one, one.batches.create(**asked, input_file_id=own).id)
        monkeypatch.setattr(limits, "serve_files", 1)
        with pytest.raises(openai.RateLimitError):
            two.batches.create(**asked, input_file_id=other)
        assert one.batches.retrieve(first.id) == first
        second = one.batches.create(**asked, input_file_id=own)
        assert [one.id for one in one.batches.list()] == [second.id]


# Anthropic's


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", timeout=30, max_retries=0) as found:
        yield found


def request(name: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    return {
        "custom_id": name,
        "params": {"model": "stories", "messages": messages, "max_tokens": 3, **more},
    }


def over(client: anthropic.Anthropic, id: str) -> Any:
    last = time.monotonic() + SECONDS
    while time.monotonic() < last:
        batch = client.messages.batches.retrieve(id)
        if batch.processing_status == "ended":
            return batch
        time.sleep(0.02)
    raise AssertionError(f"the batch has not ended: {batch}")


def test_messages_are_answered(claude: anthropic.Anthropic):
    asked = [request("good"), request("bad", model="absent")]
    begun = claude.messages.batches.create(requests=asked)
    assert begun.processing_status == "in_progress" and begun.results_url is None
    assert begun.request_counts.processing == 2
    batch = over(claude, begun.id)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (1, 1, 0)
    good, bad = claude.messages.batches.results(begun.id)
    assert good.custom_id == "good" and good.result.type == "succeeded"
    assert good.result.message.usage.output_tokens > 0
    assert bad.custom_id == "bad" and bad.result.type == "errored"
    assert bad.result.error.error.type == "not_found_error"
    assert begun.id in [one.id for one in claude.messages.batches.list(limit=1)]
    assert claude.messages.batches.delete(begun.id).id == begun.id
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(begun.id)


def test_messages_are_cancelled(
    claude: anthropic.Anthropic, runner: InProcess, monkeypatch: pytest.MonkeyPatch
):
    held = Held(runner, monkeypatch)
    monkeypatch.setattr(batches, "_PIECE", 5)  # results take several pieces
    begun = claude.messages.batches.create(requests=[request(f"r{i}") for i in range(12)])
    counts = lambda: claude.messages.batches.retrieve(begun.id).request_counts  # noqa: E731
    until(lambda: held.asked >= 8 and counts().succeeded >= 1)
    for refused in (claude.messages.batches.delete, claude.messages.batches.results):
        with pytest.raises(anthropic.AnthropicError):
            refused(begun.id)
    claude.messages.batches.cancel(begun.id)
    batch = over(claude, begun.id)
    assert (batch.request_counts.succeeded, batch.request_counts.canceled) == (1, 11)
    kinds = [one.result.type for one in claude.messages.batches.results(begun.id)]
    assert kinds == ["succeeded"] + ["canceled"] * 11


def test_a_refused_batch_keeps_no_file(
    http: httpx.Client, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any, **fields: Any) -> Job:
        raise Refused("the server keeps too many batches", 429)

    monkeypatch.setattr(Jobs, "create", full)
    before = [one.id for one in client.files.list()]
    answer = http.post("/v1/messages/batches", json={"requests": [request("a")]})
    assert answer.status_code == 429
    assert [one.id for one in client.files.list()] == before


@pytest.mark.parametrize(
    ("requests", "what"),
    [
        ([], "requests: give from 1"),
        ([request("a"), request("a")], "the same custom_id"),
        ([request("a", stream=True)], r"requests[0].params.stream"),
    ],
)
def test_wrong_batches_of_messages(http: httpx.Client, requests: Any, what: str):
    answer = http.post("/v1/messages/batches", json={"requests": requests})
    assert answer.status_code == 400 and what in answer.json()["error"]["message"]
