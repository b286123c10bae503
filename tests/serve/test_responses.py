"""/v1/responses through OpenAI's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import openai
import pytest

from ggmodel import limits
from ggmodel.chat.replies import CallArguments, CallBegun, Content, Reasoning
from ggmodel.serve.answers import ParsedToken
from ggmodel.serve.api.openai.response_output import Output
from tests.serve.standin import InProcess

ASKED: Any = {"model": "stories", "input": "A story, please.", "temperature": 0}


def test_answers_with_counts(client: openai.OpenAI):
    found = client.responses.create(**ASKED, max_output_tokens=9)

    assert found.output_text
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage is not None
    assert found.usage.output_tokens == 9


def test_an_answer_tells_the_options_that_were_used(client: openai.OpenAI, runner: InProcess):
    found = client.responses.create(model="stories", input="Hi", max_output_tokens=1, top_p=0.5)
    assert (found.temperature, found.top_p) == (runner.state.sampling["temperature"], 0.5)
    assert found._request_id and found._request_id.startswith("req_")


def test_the_events_of_a_stream_build_the_same_answer(client: openai.OpenAI):
    whole = client.responses.create(**ASKED, max_output_tokens=9)

    events = list(client.responses.create(**ASKED, max_output_tokens=9, stream=True))

    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == text
    assert last.response.completed_at is None


@pytest.mark.parametrize("mebibytes", [1, 2.5])
def test_long_fields_arrive_whole(client: openai.OpenAI, mebibytes: float):
    metadata = {"note": "é\n" * int(mebibytes * 2**18)}
    whole = client.responses.create(**ASKED, max_output_tokens=3, metadata=metadata)
    asked = {**ASKED, "max_output_tokens": 3, "metadata": metadata}
    events = list(client.responses.create(**asked, stream=True))

    assert whole.metadata == metadata
    first, last = events[0], events[-1]
    assert first.type == "response.created" and last.type == "response.incomplete"
    assert first.response.metadata == last.response.metadata == metadata


def test_the_clients_own_accumulator_takes_the_events(client: openai.OpenAI):
    schema = {"type": "string", "enum": ["yes", "no"]}
    form: Any = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    with client.responses.stream(**ASKED, text=form) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text in ('"yes"', '"no"')
    assert final.status == "completed"
    assert final.completed_at is not None and final.completed_at >= final.created_at


def test_a_conversation_goes_on_from_a_kept_answer(client: openai.OpenAI, runner: InProcess):
    first = client.responses.create(**ASKED, max_output_tokens=5, instructions="Be kind.")

    again = {**ASKED, "input": "And then?"}
    client.responses.create(**again, max_output_tokens=5, previous_response_id=first.id)

    messages = runner.seen[-1].prompt.messages
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == first.output_text

    assert client.responses.retrieve(first.id).output_text == first.output_text
    (item,) = client.responses.input_items.list(first.id).data
    assert item.type == "message"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**again, previous_response_id=first.id)


def test_what_is_not_to_be_kept_is_not(client: openai.OpenAI):
    found = client.responses.create(**ASKED, max_output_tokens=3, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(found.id)


def test_keys_do_not_see_each_others_answers(serve: Callable[..., str]):
    url = serve(keys=("one", "two"))
    one, two = (
        openai.OpenAI(base_url=f"{url}/v1", api_key=k, max_retries=0) for k in ("one", "two")
    )
    with one, two:
        found = one.responses.create(**ASKED, max_output_tokens=3)
        assert one.responses.retrieve(found.id).id == found.id
        with pytest.raises(openai.NotFoundError):
            two.responses.retrieve(found.id)


def test_the_oldest_answers_are_dropped(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_stored", 2)
    first, *others = [client.responses.create(**ASKED, max_output_tokens=1) for _ in range(3)]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    for one in others:
        assert client.responses.retrieve(one.id).id == one.id


@pytest.mark.usefixtures("tools_in_template")
def test_calls_and_their_results_become_messages(client: openai.OpenAI, runner: InProcess):
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "The sky?"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "sky"}'},
        {"type": "function_call", "call_id": "c2", "name": "feel", "arguments": "{"},
        {"type": "function_call_output", "call_id": "c2", "output": "cold"},
    ]
    client.responses.create(**{**ASKED, "input": items}, max_output_tokens=1)

    user, model, tool = runner.seen[-1].prompt.messages
    assert user["content"] == "The sky?"
    assert model["reasoning_content"] == "Hm."
    assert [call["function"]["name"] for call in model["tool_calls"]] == ["look", "feel"]
    assert (tool["role"], tool["name"]) == ("tool", "feel")


def test_tokens_of_a_conversation_are_counted(client: openai.OpenAI):
    found = client.responses.create(**ASKED, max_output_tokens=1)
    counted = client.responses.input_tokens.count(model="stories", input=ASKED["input"])
    assert found.usage is not None
    assert counted.input_tokens == found.usage.input_tokens


WRONG: Any = [
    ({"input": 5}, "input"),
    ({"input": []}, "messages"),
    ({"input": [{"type": "call_of_a_computer"}]}, "input[0].type"),
    ({"input": [{"type": "message", "role": 5}]}, "input[0].role"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id"),
    ({"tools": [{"type": "frobnicate"}]}, "tools[0].type"),
    ({"background": True, "store": False}, "background"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=[str(c)[:40] for c, _ in WRONG])
def test_wrong_fields_are_named(http: httpx.Client, change: Any, param: str):
    answer = http.post("/v1/responses", json={**ASKED, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_items_follow_each_other_in_the_order_of_the_answer():
    output = Output({})
    events: list[Any] = []
    for delta in (
        Reasoning("Hm"),
        Reasoning("m."),
        Content("I look."),
        CallBegun(0, "c1", "look"),
        CallArguments(0, '{"at":'),
        CallArguments(0, '"sky"}'),
        CallBegun(1, "c2", "feel"),
        CallArguments(1, "{}"),
    ):
        events += output.take(ParsedToken([delta], None))
    events += output.end("completed")

    items, told = msgspec.to_builtins(output.items), msgspec.to_builtins(events)
    assert [one["type"] for one in items] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert output.message()["reasoning_content"] == "Hmm."
    assert output.message()["content"] == "I look."
    assert [call["arguments"] for call in items[2:]] == ['{"at":"sky"}', "{}"]
    done = [one for one in told if one["type"] == "response.output_item.done"]
    assert [one["output_index"] for one in done] == [0, 1, 2, 3]
    assert {one["item"]["status"] for one in done} == {"completed"}


def test_the_oldest_turns_are_left_out(client: openai.OpenAI):
    turns: Any = [
        {"role": role, "content": text}
        for i in range(60)
        for role, text in (("user", f"The dog barked {i} times."), ("assistant", "It did."))
    ]
    asked = {**ASKED, "input": [*turns, {"role": "user", "content": "And?"}]}

    found = client.responses.create(**asked, max_output_tokens=9, truncation="auto")

    assert found.usage is not None
    assert 512 - 9 - 40 < found.usage.input_tokens <= 512 - 9
    assert found.truncation == "auto"
    with pytest.raises(openai.BadRequestError, match='truncation "auto"'):
        client.responses.create(**asked, max_output_tokens=9)
