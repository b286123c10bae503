"""/v1/completions and the endpoints with which evaluations work: lm-eval's local-completions."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import openai
import pytest

import ggmodel
from ggmodel.bounds import limits
from ggmodel.serve import chat_requests

TEXT = "Once upon a time there was a"


def test_a_text_goes_on(client: openai.OpenAI):
    found = client.completions.create(model="stories", prompt=TEXT, max_tokens=8, temperature=0)

    assert found.choices[0].text
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == 8


def test_the_default_length_is_that_of_openai(client: openai.OpenAI):
    found = client.completions.create(
        model="stories", prompt=TEXT, temperature=0, logit_bias={"1": -100, "4": -100}
    )
    assert found.usage is not None
    assert found.usage.completion_tokens == 16


def test_batches_have_a_choice_a_prompt_in_order(client: openai.OpenAI):
    prompts = [TEXT, "The dog", "A cat and a bird"]
    alone = [
        client.completions.create(model="stories", prompt=p, max_tokens=6, temperature=0)
        for p in prompts
    ]

    found = client.completions.create(
        model="stories", prompt=prompts, max_tokens=6, temperature=0, echo=True
    )

    texts = [p + one.choices[0].text for p, one in zip(prompts, alone, strict=True)]
    assert [choice.text for choice in found.choices] == texts
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)


def test_a_stream_has_the_text_of_the_whole(client: openai.OpenAI):
    asked: Any = {"model": "stories", "prompt": [TEXT, "The"], "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**asked, echo=True, logprobs=1)

    texts, tokens = ["", ""], [[], []]
    for chunk in client.completions.create(**asked, echo=True, logprobs=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            timings = (chunk.model_extra or {}).get("timings")
            assert (timings is not None) == (choice.finish_reason is not None)
            if choice.logprobs is not None:
                tokens[choice.index] += zip(
                    choice.logprobs.tokens or (), choice.logprobs.text_offset or (), strict=True
                )

    assert texts == [choice.text for choice in whole.choices]
    for choice, streamed in zip(whole.choices, tokens, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == [token for token, _ in streamed]


def test_a_model_is_evaluated_without_its_tokenizer(
    http: httpx.Client, stories: ggmodel.LoadedModel
):
    """As lm-eval 0.4.13 does with `local-completions` and `tokenizer_backend=remote`."""
    info = http.get("/tokenizer_info").json()
    assert info["eos_token"]
    context, ending = "Once upon a time", " there was a little dog."

    def encode(text: str) -> list[int]:
        asked = {"prompt": text, "add_special_tokens": False}
        return http.post("/tokenize", json=asked).json()["tokens"]

    whole, head = encode(context + ending), encode(context)
    other = encode("The cat sat on the bed.")
    asked = {
        "model": "stories",
        "prompt": [whole, other],
        "max_tokens": 1,
        "logprobs": 1,
        "temperature": 0,
        "seed": 1234,
        "echo": True,
    }
    found = http.post("/v1/completions", json=asked).json()

    for choice, ids, start in zip(found["choices"], (whole, other), (len(head), 1), strict=True):
        logprobs = choice["logprobs"]
        scores = logprobs["token_logprobs"][start:-1]
        np.testing.assert_allclose(scores, stories.score(ids)[start - 1 :], atol=1e-4)
        assert logprobs["token_logprobs"][0] is None
        greedy = stories.logits(ids)[:-1].argmax(-1)[start - 1 :]
        for score, top, best, id in zip(
            scores, logprobs["top_logprobs"][start:-1], greedy, ids[start:], strict=True
        ):
            assert (score == max(top.values())) == (best == id)
    assert http.post("/detokenize", json={"tokens": whole}).json()["prompt"] == context + ending


def test_the_end_of_an_answer_takes_no_score_of_the_prompt(http: httpx.Client):
    ids = http.post("/tokenize", json={"content": TEXT}).json()["tokens"]
    asked = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True, "logit_bias": {"1": 100}}

    found = http.post("/v1/completions", json=asked).json()["choices"][0]

    assert found["finish_reason"] == "stop"
    assert len(found["logprobs"]["token_logprobs"]) == len(ids) + 1


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_are_those_of_the_text(http: httpx.Client, echo: bool):
    asked = {"prompt": TEXT, "max_tokens": 5, "logprobs": 0, "temperature": 0, "echo": echo}

    found = http.post("/v1/completions", json=asked).json()["choices"][0]

    logprobs = found["logprobs"]
    for token, offset in zip(
        logprobs["tokens"][echo:], logprobs["text_offset"][echo:], strict=True
    ):
        assert found["text"][offset:].startswith(token)  # but for the beginning of the sequence


def test_an_empty_prompt_takes_no_room(http: httpx.Client):
    asked = {"prompt": "", "max_tokens": 2, "logprobs": 0, "temperature": 0, "echo": True}

    found = http.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]

    assert found["text_offset"][:2] == [0, 0]
    assert found["text_offset"][2] == len(found["tokens"][1])


def test_tokens_of_llama_server_and_vllm(http: httpx.Client):
    plain = http.post("/tokenize", json={"content": "a dog", "with_pieces": True}).json()
    assert "".join(one["piece"] for one in plain["tokens"]) == "a dog"

    found = http.post("/tokenize", json={"prompt": "a dog", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(plain["tokens"]) + 1  # with BOS
    assert found["max_model_len"] == 512
    assert found["token_strs"][1:] == [one["piece"] for one in plain["tokens"]]


def test_templates_are_rendered(http: httpx.Client, stories: ggmodel.LoadedModel):
    messages = [{"role": "user", "content": "Hello"}]
    prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert "Hello" in prompt
    assert http.post("/tokenize", json={"messages": messages}).json()["tokens"] == list(
        stories.chat_prompt(messages)
    )


WRONG: Any = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": TEXT, "logprobs": -1}, "logprobs"),
    ({"prompt": TEXT, "logprobs": 21}, "logprobs"),
    ({"prompt": TEXT, "suffix": "x"}, "suffix"),
    ({"prompt": TEXT, "best_of": 3}, "best_of"),
    ({"prompt": ["a"] * 5000}, "prompt"),
]


@pytest.mark.parametrize(("asked", "param"), WRONG, ids=[str(a)[:30] for a, _ in WRONG])
def test_wrong_fields_are_named(http: httpx.Client, asked: Any, param: str):
    answer = http.post("/v1/completions", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_numbers_that_would_break_the_logits_are_400(http: httpx.Client):
    wrong = {"repeat_penalty": 1e-300, "frequency_penalty": 1e300, "presence_penalty": -1e39}
    for name, value in wrong.items():
        answer = http.post("/v1/completions", json={"prompt": TEXT, name: value})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]


def test_token_ids_out_of_range_are_400(http: httpx.Client):
    answer = http.post("/v1/completions", json={"prompt": [5, 99999]})
    assert answer.status_code == 400
    assert "99999" in answer.json()["error"]["message"]


CHAT = {"messages": [{"role": "user", "content": TEXT}], "logprobs": True, "top_logprobs": 1}


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        # Answers of 3 tokens with two each, and the prompts' where they are echoed.
        ("/v1/completions", {"prompt": [[5] * 7] * 2, "logprobs": 1, "echo": True}, 40),
        ("/v1/completions", {"prompt": [[5] * 7] * 2, "logprobs": 1, "n": 2}, 24),
        ("/v1/completions", {"prompt": "abc", "logprobs": 1, "echo": True}, 20),
        ("/completion", {"prompt": [TEXT, TEXT], "n_probs": 1}, 12),
        ("/v1/chat/completions", {**CHAT, "n": 3}, 18),
        ("/v1/chat/completions", CHAT, 6),
    ],
)
def test_log_probabilities_are_bounded(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, most: int
):
    body = {"max_tokens": 3, **body}
    monkeypatch.setattr(limits, "serve_logprobs", most)
    assert http.post(path, json=body).status_code == 200
    monkeypatch.setattr(limits, "serve_logprobs", most - 1)
    refused = http.post(path, json=body)
    assert refused.status_code == 413
    assert f"limit serve_logprobs of {most - 1}" in refused.json()["error"]["message"]


def test_an_answer_of_any_length_is_shortened_to_the_limit_of_log_probabilities(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "serve_logprobs", 6 * 2 * 30)
    monkeypatch.setattr(chat_requests, "_SHORTEST", 30)
    asked = {**CHAT, "n": 2, "top_logprobs": 5, "temperature": 0, "seed": 1}
    counts = http.post("/v1/chat/completions", json=asked).json()["usage"]
    assert counts["completion_tokens"] == 2 * 30
    monkeypatch.setattr(chat_requests, "_SHORTEST", 31)
    assert http.post("/v1/chat/completions", json=asked).status_code == 413
