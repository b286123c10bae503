"""/v1/responses with `background`, through OpenAI's client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
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
from ggmodel.serve.requests import TokenEvent
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
        events = None
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


def streamed(client: openai.OpenAI) -> Any:
    return client.responses.create(**ASKED, stream=True)


def again(client: openai.OpenAI, id: str, after: int | None = None) -> Any:
    """Its events, after one of them."""
    options: Any = {} if after is None else {"starting_after": after}
    return client.responses.retrieve(id, stream=True, **options)


def numbers(events: Any) -> list[int]:
    return [one.sequence_number for one in events]


def test_events_are_streamed_and_taken_up_again(client: openai.OpenAI, held: asyncio.Event):
    with streamed(client) as stream:
        id, kept = None, []
        held.set()
        for event in stream:
            kept.append(event)
            if event.type == "response.created":
                id = event.response.id
                assert event.response.background and event.response.status == "in_progress"
            if event.sequence_number == 4:
                break  # the client leaves
    assert id is not None and numbers(kept) == [0, 1, 2, 3, 4]

    rest = [*again(client, id, 4)]
    assert numbers(rest) == [*range(5, 5 + len(rest))]
    assert rest[-1].type == "response.incomplete" and rest[-1].response.usage.output_tokens == 9
    found = ended(client, id)
    assert found == rest[-1].response
    every = [*again(client, id)]
    assert every == [*kept, *rest]
    texts = [one.delta for one in every if one.type == "response.output_text.delta"]
    assert "".join(texts) == found.output_text
    assert not [*again(client, id, every[-1].sequence_number)]
    assert client.responses.create(
        model="stories", input="On.", previous_response_id=id, max_output_tokens=2
    ).output_text


def test_several_follow_an_answer_that_has_not_begun(client: openai.OpenAI, held: asyncio.Event):
    with streamed(client) as first:
        held.set()
        id = next(iter(first)).response.id
        with again(client, id) as second:
            assert numbers(second)[1:] == numbers(first)


def test_streams_of_answers_that_end_early(
    client: openai.OpenAI, runner: InProcess, monkeypatch: pytest.MonkeyPatch
):
    generate = runner.generate

    async def failing(request: Any) -> Any:
        async with aclosing(generate(request)) as events:
            async for one in events:
                yield one
                if isinstance(one, TokenEvent):
                    raise ComputeError("the model made no sense")

    monkeypatch.setattr(runner, "generate", failing)
    events = [*streamed(client)]
    assert events[-1].type == "response.failed"
    assert "no sense" in events[-1].response.error.message
    assert numbers(events) == [*range(len(events))]
    id = events[0].response.id
    assert [*again(client, id)] == events

    async def endless(request: Any) -> Any:
        async for one in generate(request):
            yield one
            await asyncio.sleep(0.3)

    monkeypatch.setattr(runner, "generate", endless)
    with streamed(client) as stream:
        id = next(iter(stream)).response.id
        assert client.responses.cancel(id).status == "cancelled"
        assert "response.completed" not in [one.type for one in stream]  # it ends
    assert client.responses.retrieve(id).status == "cancelled"


def test_what_has_no_events(
    client: openai.OpenAI, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    plain = client.responses.create(**ASKED)
    with pytest.raises(openai.BadRequestError, match="has events"):
        again(client, plain.id)
    events = [*streamed(client)]
    path = f"/v1/responses/{events[0].response.id}?stream=true&starting_after="
    for wrong in ("x", "1.5", "9999999999", "-1"):
        assert http.get(path + wrong).status_code == 400
    assert http.get("/v1/responses/absent?stream=true").status_code == 404
    answer = http.get(path.replace("stream=true", "stream=false"))
    assert answer.json()["status"] == "incomplete"

    size = len(answer.content) + 2000  # of the answer, and not of its events too
    monkeypatch.setattr(limits, "serve_stored_bytes", size)
    long = [*streamed(client)]
    assert long[-1].type == "response.incomplete"
    with pytest.raises(openai.BadRequestError, match="has events"):
        again(client, long[0].response.id)
