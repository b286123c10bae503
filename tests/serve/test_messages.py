"""/v1/messages through Anthropic's client."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from ggmodel.serve.pool import ListedModel
from tests.serve.conftest import ASSETS
from tests.serve.standin import InProcessModels

ASK: Any = [{"role": "user", "content": "Tell me a story about a dog."}]
GREEDY: Any = {"model": "stories", "messages": ASK, "max_tokens": 12}
GREEDY["extra_body"] = {"temperature": 0}


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own client."""
    with anthropic.Anthropic(base_url=url, api_key="none", timeout=30, max_retries=0) as found:
        yield found


def test_answers_with_counts(claude: anthropic.Anthropic):
    found = claude.messages.create(**GREEDY)

    (block,) = found.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert block.text
    assert (found.stop_reason, found.stop_sequence) == ("max_tokens", None)
    assert found.usage.output_tokens == 12
    counted = claude.messages.count_tokens(model="stories", messages=ASK)
    read = found.usage.cache_read_input_tokens
    assert found.usage.input_tokens + (read or 0) == counted.input_tokens


def test_a_stream_has_the_same_text(claude: anthropic.Anthropic):
    whole = claude.messages.create(**GREEDY)

    with claude.messages.stream(**GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()

    assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12
    assert kinds[0] == "message_start"
    assert kinds[1] == "content_block_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_tokens_in_the_cache_are_told_at_the_end(claude: anthropic.Anthropic):
    counted = claude.messages.count_tokens(model="stories", messages=ASK).input_tokens
    claude.messages.create(**GREEDY)

    with claude.messages.stream(**GREEDY) as stream:
        first = next(iter(stream))
        final = stream.get_final_message()

    assert first.type == "message_start"
    assert first.message.usage.input_tokens == counted
    assert first.message.usage.output_tokens == 1
    read = final.usage.cache_read_input_tokens
    assert read and final.usage.input_tokens + read == counted


def test_a_system_message_and_a_beginning_of_the_answer(claude: anthropic.Anthropic):
    begun: Any = [*ASK, {"role": "assistant", "content": "Once upon a time"}]
    plain = claude.messages.count_tokens(model="stories", messages=ASK)

    told = claude.messages.count_tokens(model="stories", messages=ASK, system="Be brief.")
    longer = claude.messages.count_tokens(model="stories", messages=begun)

    assert told.input_tokens > plain.input_tokens
    assert longer.input_tokens > plain.input_tokens


def test_a_stop_string_is_told(claude: anthropic.Anthropic):
    text = claude.messages.create(**GREEDY).content[0].text  # type: ignore[union-attr]
    stop = text.split()[3]

    found = claude.messages.create(**GREEDY, stop_sequences=["never", stop])

    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", stop)
    assert stop not in found.content[0].text  # type: ignore[union-attr]


def test_results_of_tools_are_messages_of_their_own(claude: anthropic.Anthropic):
    call: Any = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    result: Any = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    history: Any = [
        *ASK,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And then?"}]},
    ]

    found = claude.messages.create(**{**GREEDY, "messages": history})

    assert found.usage.output_tokens == 12


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"messages": []}, "give at least one"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "'video' is unsup"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "source: is missing"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "'judge' is none of user, assist"),
        ({"max_tokens": None}, "max_tokens"),
        ({"tools": [{"type": "bash", "name": ""}, {"type": "x"}]}, "is unsupported; send a"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: is missing"),
        ({"tool_choice": {"type": "any"}}, "no tools to choose from"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_wrong_requests_name_the_field(http: httpx.Client, change: dict[str, Any], what: str):
    answer = http.post("/v1/messages", json={**GREEDY, **change})

    assert answer.status_code == 400
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert what in body["error"]["message"]


def test_the_length_of_an_answer_is_required(claude: anthropic.Anthropic):
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: Field required"):
        claude.post("/v1/messages", cast_to=object, body={"model": "stories", "messages": ASK})


def test_requests_have_ids(claude: anthropic.Anthropic, http: httpx.Client):
    found = claude.messages.create(**GREEDY)
    assert found._request_id and found._request_id.startswith("req_")
    with pytest.raises(anthropic.NotFoundError) as absent:
        claude.messages.create(**{**GREEDY, "model": "absent"})
    assert absent.value.request_id and absent.value.request_id != found._request_id
    assert absent.value.body["request_id"] == absent.value.request_id  # type: ignore[index]
    for own, kept in (("my-id", True), ("no id", False), ("x" * 129, False), ("\xe9", False)):
        headers = [(b"x-request-id", own.encode("latin-1"))]
        answer = http.post("/v1/messages", json={}, headers=headers)
        ids = {answer.headers["request-id"], answer.headers["x-request-id"]}
        assert ids == {answer.json()["request_id"]}
        assert (ids == {own}) is kept


@pytest.fixture
def five(models: InProcessModels, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of five models that the server lists."""
    names = [f"m{i}" for i in range(5)]

    async def listed() -> list[ListedModel]:
        return [ListedModel(name, f"/{name}.gguf", 86400.5, 1) for name in names]

    monkeypatch.setattr(models, "listed", listed)
    return names


def test_models_have_anthropics_form_for_its_clients(
    claude: anthropic.Anthropic, five: list[str], http: httpx.Client
):
    page = claude.models.list(limit=2)
    assert [one.id for one in page] == five  # all pages
    assert [one.id for one in claude.models.list(limit=2, before_id="m4")] == [
        *("m2", "m3"),
        *("m0", "m1"),
    ]
    assert (page.has_more, page.first_id, page.last_id) == (True, "m0", "m1")
    first = page.data[0]
    assert (first.type, first.display_name, first.lifecycle) == ("model", "m0", "active")
    assert first.created_at.isoformat() == "1970-01-02T00:00:00+00:00"
    last = claude.models.list(after_id="m3")
    assert ([one.id for one in last.data], last.has_more) == (["m4"], False)
    assert claude.models.retrieve("m3").id == "m3"
    assert http.get("/v1/models").json()["object"] == "list"


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "after_id=n", "before_id=n"])
def test_pages_that_do_not_exist(http: httpx.Client, five: list[str], query: str):
    answer = http.get(f"/v1/models?{query}", headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert query.partition("=")[0] in answer.json()["error"]["message"]


def test_absent_models_and_wrong_keys_have_anthropics_form(
    claude: anthropic.Anthropic, serve: Callable[..., str]
):
    with pytest.raises(anthropic.NotFoundError) as absent:
        claude.models.retrieve("absent")
    with (
        anthropic.Anthropic(base_url=serve(keys=("one",)), api_key="two", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError) as wrong,
    ):
        other.models.list()
    for error in (absent, wrong):
        assert error.value.body["type"] == "error"  # type: ignore[index]


def test_an_image_of_a_model_without_eyes(http: httpx.Client):
    data = base64.b64encode((ASSETS / "scene.png").read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]

    answer = http.post(
        "/v1/messages", json={**GREEDY, "messages": [{"role": "user", "content": content}]}
    )

    assert answer.status_code == 400
    assert "image" in answer.json()["error"]["message"]


def test_a_path_that_does_not_exist_has_this_shape(http: httpx.Client):
    answer = http.get("/v1/messages/nothing")

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


def test_a_prompt_that_is_too_long_is_said_in_anthropics_words(claude: anthropic.Anthropic):
    long: Any = [{"role": "user", "content": "dog " * 600}]
    counted = claude.messages.count_tokens(model="stories", messages=long).input_tokens
    said = f"prompt is too long: {counted} tokens > 512 maximum"
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as refused:
            claude.messages.create(**{**GREEDY, "messages": long, "stream": stream})
        assert refused.value.body["error"] == {  # type: ignore[index, call-overload]
            "type": "invalid_request_error",
            "message": said,
        }


def test_threads_are_refused_so_that_clients_send_all_messages(
    claude: anthropic.Anthropic, http: httpx.Client
):
    """Answered without the messages that the client left out, they would be wrong."""
    asked = {"model": "stories", "max_tokens": 4, "thread": {"type": "create"}}
    messages = [{"role": "user", "content": "Tell me a story."}]
    refused = http.post("/v1/messages", json={**asked, "messages": messages})
    assert refused.status_code == 400
    assert refused.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}

    thread = claude.beta.messages.thread(
        model="stories", max_tokens=4, unsupported_request_behavior="continue_unthreaded"
    )
    first = thread.send({"role": "user", "content": "Tell me a story."})
    second = thread.send({"role": "user", "content": "And then?"})
    tokens = [
        one.usage.input_tokens + (one.usage.cache_read_input_tokens or 0) for one in (first, second)
    ]
    assert tokens[1] > tokens[0] + 4
