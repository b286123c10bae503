"""/v1/chat/completions through OpenAI's client."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import httpx
import openai
import pytest

from ggmodel.bounds import limits
from ggmodel.errors import ConfigError, Error, PromptError, TemplateError, Unsupported
from ggmodel.serve.errors import problem_of
from tests.serve.standin import InProcess

ASK: Any = [{"role": "user", "content": "Tell me a story about a dog."}]
CHAT = "/v1/chat/completions"
GREEDY: Any = {"model": "stories", "messages": ASK, "temperature": 0, "max_tokens": 12}


def test_answers_with_counts(client: openai.OpenAI):
    found = client.chat.completions.create(**GREEDY)

    (choice,) = found.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == 12
    assert found.usage.total_tokens == found.usage.prompt_tokens + 12
    assert found.model == "stories"


def test_a_stream_has_the_same_text_and_its_counts_last(client: openai.OpenAI):
    whole = client.chat.completions.create(**GREEDY)

    chunks = list(
        client.chat.completions.create(
            **GREEDY, stream=True, stream_options={"include_usage": True}
        )
    )

    *pieces, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == whole.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_choices_differ_by_their_seeds_and_come_again(client: openai.OpenAI):
    asked = {**GREEDY, "temperature": 1.5, "seed": 7, "n": 3}

    first, again = (client.chat.completions.create(**asked) for _ in range(2))

    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    assert first.usage is not None
    assert first.usage.completion_tokens == 36


def test_a_stream_of_several_choices_has_the_text_of_each(client: openai.OpenAI):
    asked = {**GREEDY, "temperature": 1.5, "seed": 7, "n": 2}
    whole = client.chat.completions.create(**asked)

    texts = ["", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""

    assert texts == [choice.message.content for choice in whole.choices]


def test_stop_ends_the_text_before_it(client: openai.OpenAI):
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content or ""
    end = whole.split()[3]

    found = client.chat.completions.create(**GREEDY, stop=[end])

    assert found.choices[0].finish_reason == "stop"
    assert found.choices[0].message.content == whole[: whole.index(end)]


def test_log_probabilities_of_the_answer(client: openai.OpenAI):
    found = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)

    logprobs = found.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    for one in logprobs.content:
        assert one.logprob == one.top_logprobs[0].logprob  # greedy
        assert len(one.top_logprobs) == 3
    data = b"".join(bytes(one.bytes or []) for one in logprobs.content)
    assert data.decode() == found.choices[0].message.content


def test_log_probabilities_in_a_stream_are_the_same(client: openai.OpenAI):
    asked = {**GREEDY, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked).choices[0].logprobs

    streamed = [
        one
        for chunk in client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        for one in (choice.logprobs and choice.logprobs.content) or ()
    ]

    assert whole is not None
    assert [(one.token, one.top_logprobs) for one in streamed] == [
        (one.token, one.top_logprobs) for one in whole.content or ()
    ]


def test_logit_bias_rules_a_token_out(client: openai.OpenAI, http: httpx.Client):
    first = client.chat.completions.create(**GREEDY, logprobs=True).choices[0]
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    word = first.logprobs.content[0].token
    ids = http.post("/tokenize", json={"content": word}).json()["tokens"]

    found = client.chat.completions.create(**GREEDY, logit_bias={str(ids[0]): -100})

    assert found.choices[0].message.content
    assert not found.choices[0].message.content.startswith(word)
    text = http.post(CHAT, json={**GREEDY, "logit_bias": {word: False}}).json()
    assert text["choices"][0]["message"]["content"] == found.choices[0].message.content


def test_an_answer_goes_on_if_its_end_is_ignored(http: httpx.Client):
    asked = {**GREEDY, "max_tokens": 300, "ignore_eos": True}
    for path, ask in ((CHAT, asked), ("/v1/completions", {**asked, "prompt": "Once"})):
        found = http.post(path, json=ask).json()
        assert found["usage"]["completion_tokens"] == 300
        assert found["choices"][0]["finish_reason"] == "length"


def test_templates_know_the_date(http: httpx.Client):
    asked = {**GREEDY, "chat_template": "{{ date_string }}, {{ datetime }}"}
    days = {datetime.now().strftime("%d %b %Y, %b %d %Y")}
    told = http.post("/apply-template", json=asked).json()["prompt"]
    days.add(datetime.now().strftime("%d %b %Y, %b %d %Y"))  # it may have been midnight
    assert told in days
    own = {**asked, "chat_template_kwargs": {"date_string": "today"}}
    assert http.post("/apply-template", json=own).json()["prompt"].startswith("today, ")
    counts = [http.post(f"{CHAT}/input_tokens", json=one).json() for one in (asked, own)]
    assert counts[0]["input_tokens"] > counts[1]["input_tokens"]


def test_a_schema_is_obeyed(client: openai.OpenAI):
    schema = {
        "type": "object",
        "properties": {"dog": {"enum": ["yes", "no"]}},
        "required": ["dog"],
        "additionalProperties": False,
    }
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }

    found = client.chat.completions.create(**{**GREEDY, "max_tokens": 60}, response_format=form)

    assert json.loads(found.choices[0].message.content or "")["dog"] in ("yes", "no")
    assert found.choices[0].finish_reason == "stop"


def test_json_objects(client: openai.OpenAI):
    found = client.chat.completions.create(
        **{**GREEDY, "max_tokens": 5}, response_format={"type": "json_object"}
    )

    assert (found.choices[0].message.content or "").startswith("{")


def test_an_answer_that_has_begun_goes_on(client: openai.OpenAI, runner: InProcess):
    messages = [*ASK, {"role": "assistant", "content": "Once"}]

    client.chat.completions.create(**{**GREEDY, "messages": messages})

    assert runner.seen[-1].prompt.continues is True


def test_tools_reach_the_template_unless_none_may_be_called(
    client: openai.OpenAI, runner: InProcess
):
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {}}}

    client.chat.completions.create(**GREEDY, tools=[tool])
    assert runner.seen[-1].prompt.tools[0]["function"]["name"] == "look"

    client.chat.completions.create(**GREEDY, tools=[tool], tool_choice="none")
    assert runner.seen[-1].prompt.tools is None


@pytest.mark.usefixtures("tools_in_template")
def test_history_with_calls_is_rendered_whatever_their_arguments(
    client: openai.OpenAI, runner: InProcess
):
    calls = [
        {"id": "1", "type": "function", "function": {"name": "look", "arguments": text}}
        for text in ('{"at": "sky"}', '{"at": ', "", "[1]")
    ]
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "blue"},
        {"role": "user", "content": "And?"},
    ]

    client.chat.completions.create(**{**GREEDY, "messages": messages})

    sent = runner.seen[-1].prompt.messages
    arguments = [call["function"]["arguments"] for call in sent[1]["tool_calls"]]
    assert arguments == [{"at": "sky"}, {"arguments": '{"at": '}, {}, {"arguments": "[1]"}]
    assert sent[2]["name"] == "look"


OWN: Any = {"role": "assistant", "content": "Once"}


@pytest.mark.parametrize(
    ("how", "goes_on"), [("continue_final_message", True), ("add_generation_prompt", False)]
)
def test_two_answers_at_the_end_need_a_word(
    http: httpx.Client, runner: InProcess, how: str, goes_on: bool
):
    asked = {**GREEDY, "messages": [*ASK, OWN, OWN], how: True}
    http.post("/v1/chat/completions", json=asked).raise_for_status()
    assert runner.seen[-1].prompt.continues is goes_on


WRONG: Any = [
    ({"messages": 3}, "messages"),
    ({"messages": ...}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop": 5}, "stop"),
    ({"logit_bias": {"dog": "much"}}, "logit_bias[]"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 20: 1}}, "logit_bias"),
    ({"logit_bias": [[2**63, 1]]}, "logit_bias"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
    ),
    ({"messages": [*ASK, OWN, OWN]}, "messages"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=[str(c)[:40] for c, _ in WRONG])
def test_wrong_fields_are_named(http: httpx.Client, change: Any, param: str):
    asked = {name: value for name, value in (GREEDY | change).items() if value is not ...}
    answer = http.post(CHAT, json=asked)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param in error["message"]


def test_roles_are_the_usual_ones_and_those_of_the_template(http: httpx.Client):
    def ask(role: str, **more: Any) -> httpx.Response:
        messages = [{"role": role, "content": "Hi"}]
        return http.post(CHAT, json={"messages": messages, "max_tokens": 1, **more})

    refused = ask("robot")
    assert refused.status_code == 400
    assert "'robot'" in refused.text and "system, user, assistant, tool" in refused.text
    template = "{% if messages[0].role == 'robot' %}{{ messages[0].content }}{% endif %}"
    assert ask("robot", chat_template=template).status_code == 200
    assert ask("bot", chat_template=template).status_code == 400
    assert ask("developer").status_code == 200


def test_errors_of_the_model_have_a_status_in_streams_too(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**{**GREEDY, "temperature": -1}, stream=True)


def test_unknown_fields_are_ignored(http: httpx.Client):
    assert http.post("/v1/chat/completions", json={**GREEDY, "x": 1}).status_code == 200


def test_an_unknown_model_is_404(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError, match="no model is called 'gpt-4o'"):
        client.chat.completions.create(**{**GREEDY, "model": "gpt-4o"})


def test_a_prompt_beyond_the_context_is_400(client: openai.OpenAI):
    messages: Any = [{"role": "user", "content": "dog " * 2000}]
    with pytest.raises(openai.BadRequestError, match="context size of 512") as refused:
        client.chat.completions.create(**{**GREEDY, "messages": messages})
    assert refused.value.code == "context_length_exceeded"
    assert 'shorten it, ask for truncation "auto"' in refused.value.message
    assert "truncate=" not in refused.value.message


TURNS: Any = [
    {"role": role, "content": text}
    for i in range(60)
    for role, text in (("user", f"The dog barked {i} times."), ("assistant", "It did."))
]
SYSTEM: Any = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("extra", [{"truncation": "auto"}, {"truncate": True}])
def test_the_oldest_turns_are_left_out(client: openai.OpenAI, http: httpx.Client, extra: Any):
    asked = {**GREEDY, "messages": [SYSTEM, *TURNS, *ASK]}

    found = client.chat.completions.create(**asked, extra_body=extra)

    kept = next(
        [SYSTEM, *TURNS[start:], *ASK]
        for start in range(0, len(TURNS), 2)
        if http.post("/tokenize", json={"messages": [SYSTEM, *TURNS[start:], *ASK]}).json()["count"]
        <= 512 - 12
    )
    expected = client.chat.completions.create(**{**GREEDY, "messages": kept})
    assert found.usage and expected.usage
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    assert found.choices[0].message.content == expected.choices[0].message.content
    for said in ({}, {"truncation": "disabled"}, {"truncation": None, "truncate": False}):
        with pytest.raises(openai.BadRequestError, match="truncation"):
            client.chat.completions.create(**asked, extra_body=said)


def test_a_last_turn_beyond_the_context_is_400(client: openai.OpenAI):
    asked = {**GREEDY, "messages": [SYSTEM, *TURNS, {"role": "user", "content": "dog " * 900}]}
    with pytest.raises(openai.BadRequestError, match="size of 512; shorten it, or") as refused:
        client.chat.completions.create(**asked, extra_body={"truncation": "auto"})
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unsupported("it has no images; give them with mmproj= (--mmproj)"), "it has no images"),
        (TemplateError("no template; pass template= with one; or use a"), "no template; or use a"),
        (ConfigError("no prompt; write it and use generate()"), "no prompt"),
        (ConfigError("x is 1; it must be 2"), "x is 1; it must be 2"),
        (PromptError("give images=[ITEM]"), "give images=[ITEM]"),
    ],
)
def test_clients_are_told_no_python(error: Error, said: str):
    assert problem_of(error).message == said


def test_images_for_a_blind_model_are_400(client: openai.OpenAI):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: Any = [{"role": "user", "content": [part]}]
    with pytest.raises(openai.BadRequestError, match="image"):
        client.chat.completions.create(**{**GREEDY, "messages": messages})


def test_images_of_a_request_have_a_limit_together(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "serve_items_bytes", 5)
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for count, message in (
        (1, "image"),
        (2, r"content\[1\].* 6 bytes .*serve_items_bytes"),
        (1, "image"),
    ):
        messages: Any = [{"role": "user", "content": [part] * count}]
        with pytest.raises(openai.BadRequestError, match=message) as refused:
            client.chat.completions.create(**{**GREEDY, "messages": messages})
        assert ("serve_items_bytes" in str(refused.value)) == (count == 2)


def test_a_client_that_goes_away_ends_its_request(url: str, runner: InProcess):
    asked = {**GREEDY, "max_tokens": None, "stream": True, "logit_bias": {"1": -100, "4": -100}}
    with httpx.Client(base_url=url) as http:
        with http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            next(answer.iter_lines())
        # The runner notices at its next step.
        for _ in range(500):
            if runner.running == 0:
                break
            time.sleep(0.01)
    assert runner.running == 0
