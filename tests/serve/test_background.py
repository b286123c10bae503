"""/v1/responses with `background`, through OpenAI's client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from ggmodel import limits
from ggmodel.errors import ComputeError
from ggmodel.serve import background
from ggmodel.serve.bodies import Bodies
from ggmodel.serve.errors import Refused
from tests.serve.standin import InProcess

ASKED: Any = {"model": "stories", "input": "A story, please.", "max_output_tokens": 9}
ASKED["background"] = True


@pytest.fixture
def held(runner: InProcess, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Answers wait for this event, which is set from any thread."""
    event, generate = asyncio.Event(), runner.generate

    async def waiting(request: Any) -> Any:
        while not event.is_set():
            await asyncio.sleep(0.01)
        async for one in generate(request):
            yield one

    monkeypatch.setattr(runner, "generate", waiting)
    return event


def ended(client: openai.OpenAI, id: str) -> Any:
    last = time.monotonic() + 30
    while time.monotonic() < last:
        found = client.responses.retrieve(id)
        if found.status != "in_progress":
            return found
        time.sleep(0.02)
    raise AssertionError("the response has not ended")


def test_an_answer_comes_later(client: openai.OpenAI, held: asyncio.Event):
    begun = client.responses.create(**ASKED)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    assert client.responses.retrieve(begun.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="has not ended"):
        client.responses.create(model="stories", input="On.", previous_response_id=begun.id)
    held.set()
    found = ended(client, begun.id)
    assert found.status == "incomplete" and found.output_text
    assert found.usage.output_tokens == 9
    more = client.responses.create(
        model="stories", input="On.", previous_response_id=begun.id, max_output_tokens=2
    )
    assert more.output_text
    assert client.responses.cancel(begun.id).status == "incomplete"  # too late


def test_an_answer_is_cancelled(client: openai.OpenAI, held: asyncio.Event, http: httpx.Client):
    begun = client.responses.create(**ASKED)
    assert client.responses.cancel(begun.id).status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    held.set()
    usual = client.responses.create(model="stories", input="Hi", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(usual.id)
    assert http.post("/v1/responses/absent/cancel").status_code == 404
    gone = client.responses.create(**ASKED)
    client.responses.delete(gone.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(gone.id)


def test_errors_before_and_after_the_beginning(
    client: openai.OpenAI, runner: InProcess, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**{**ASKED, "model": "absent"})

    async def failing(request: Any) -> Any:
        raise ComputeError("the model made no sense")
        yield

    monkeypatch.setattr(runner, "generate", failing)
    found = ended(client, client.responses.create(**ASKED).id)
    assert found.status == "failed" and "no sense" in found.error.message


def test_answers_in_the_background_end_in_time(serve: Callable[..., str], held: asyncio.Event):
    with openai.OpenAI(base_url=f"{serve(timeout=0.3)}/v1", api_key="x") as client:
        found = ended(client, client.responses.create(**ASKED).id)
    assert found.status == "failed" and "longer" in found.error.message
    held.set()


def test_answers_count_from_their_requests_on(monkeypatch: pytest.MonkeyPatch):
    """Before their models have loaded, too: by their number, and by the memory of their bodies."""
    bodies = Bodies()

    class Reading:
        id, call = "resp_1", SimpleNamespace(body=b"12345", server=SimpleNamespace(bodies=bodies))

        async def read(self) -> None:
            await asyncio.Event().wait()

    async def run() -> None:
        answers, chat = background.Background(), Reading()
        first = asyncio.ensure_future(answers.begin(chat))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert bodies.held == 5
        with pytest.raises(Refused, match="too many"):
            await answers.begin(chat)  # type: ignore[arg-type]
        answers.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(first, 5)
        assert bodies.held == 0

    monkeypatch.setattr(background, "_MOST", 1)
    asyncio.run(run())


def test_answers_without_room(
    client: openai.OpenAI, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        patched.setattr(limits, "serve_stored_bytes", 10)
        with pytest.raises(openai.APIStatusError, match="serve_stored_bytes") as refused:
            client.responses.create(**ASKED)
        assert refused.value.status_code == 413
    begun = client.responses.create(**ASKED)
    kept = len(client.responses.with_raw_response.retrieve(begun.id).content)
    monkeypatch.setattr(limits, "serve_stored_bytes", kept + 500)  # of the body and an error
    held.set()
    found = ended(client, begun.id)
    assert found.status == "failed" and "serve_stored_bytes" in found.error.message


def test_nothing_goes_on_from_a_cancelled_answer(client: openai.OpenAI, held: asyncio.Event):
    begun = client.responses.create(**ASKED)
    client.responses.cancel(begun.id)
    held.set()
    with pytest.raises(openai.BadRequestError, match="without an answer"):
        client.responses.create(model="stories", input="On.", previous_response_id=begun.id)
