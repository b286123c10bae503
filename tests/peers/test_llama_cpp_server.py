"""The same requests to llama.cpp's server and to ours, on the same files: the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmodel.convert.quantize import quantize
from ggmodel.gguf_file import open_gguf
from tests.peers.llama_server.program import INFILL, changed
from tests.peers.servers import (
    ASK,
    COORDINATE,
    EMBEDDING,
    GREEDY,
    LOGPROB,
    PROMPT,
    STORIES,
    Both,
    both,
    events,
)


@pytest.fixture(scope="module")
def stories() -> Iterator[Both]:
    with both(STORIES) as found:
        yield found


def test_chats(stories: Both):
    ours, theirs = stories.post("/v1/chat/completions", {**GREEDY, "messages": ASK})
    refusal = {"refusal": None}  # OpenAI's answers have it, llama-server's do not
    assert ours["choices"][0]["message"] == theirs["choices"][0]["message"] | refusal
    assert ours["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"] == "stop"
    assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
    # llama-server counts the token that ends the text.
    assert ours["usage"]["completion_tokens"] + 1 == theirs["usage"]["completion_tokens"]


def test_texts(stories: Both):
    asked = {**GREEDY, "prompt": PROMPT, "max_tokens": 24}
    ours, theirs = stories.post("/v1/completions", asked)
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
    assert ours["usage"]["total_tokens"] == theirs["usage"]["total_tokens"]


def test_own_completions(stories: Both):
    asked = {**GREEDY, "prompt": PROMPT, "n_predict": 24, "return_tokens": True}
    ours, theirs = stories.post("/completion", asked)
    for name in ("content", "tokens", "stop", "stop_type", "tokens_predicted", "tokens_evaluated"):
        assert ours[name] == theirs[name], name


def test_streams(stories: Both):
    asked = {**GREEDY, "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
    for path, prompt in (
        ("/v1/chat/completions", {"messages": ASK}),
        ("/v1/completions", {"prompt": PROMPT}),
    ):
        texts, counts = [], []
        for client in stories:
            found = events(client.post(path, json=asked | prompt).text)
            choices = [choice for event in found for choice in event["choices"]]
            said = [one.get("text") or one.get("delta", {}).get("content") for one in choices]
            texts.append("".join(filter(None, said)))
            counts.append(found[-1]["usage"]["total_tokens"])
            assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
        assert texts[0] and texts[0] == texts[1]
        assert counts[0] == counts[1]


def test_other_apis(stories: Both):
    asked = {**GREEDY, "messages": ASK[1:], "max_tokens": 12}
    ours, theirs = stories.post("/v1/messages", asked)
    assert ours["content"] == theirs["content"]
    assert ours["stop_reason"] == theirs["stop_reason"] == "max_tokens"
    for one in (ours["usage"], theirs["usage"]):
        one["input_tokens"] += one.pop("cache_read_input_tokens")
    for name in ("input_tokens", "output_tokens"):
        assert ours["usage"][name] == theirs["usage"][name]
    ours, theirs = stories.post("/v1/messages/count_tokens", asked)
    assert ours == theirs
    ours, theirs = stories.post(
        "/v1/responses", {**GREEDY, "input": ASK[1]["content"], "max_output_tokens": 12}
    )
    assert [one["content"][0]["text"] for one in ours["output"]] == (
        [one["content"][0]["text"] for one in theirs["output"]]
    )
    assert ours["usage"]["total_tokens"] == theirs["usage"]["total_tokens"]


def test_a_form_is_obeyed(stories: Both):
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["fox", "hen"]}}}
    ours, theirs = stories.post(
        "/v1/chat/completions", {**GREEDY, "messages": ASK, "response_format": form}
    )
    said = [one["choices"][0]["message"]["content"] for one in (ours, theirs)]
    assert said[0] == said[1] and said[0] in ('"fox"', '"hen"')


@pytest.mark.parametrize("tokens", [5, 3])
def test_what_stands_between(tmp_path: Path, tokens: int):
    file = changed(STORIES, dict(list(INFILL.items())[:tokens]), tmp_path)
    extra = [{"filename": "a.txt", "text": "The cat was red."}, {"text": "The dog was blue."}]
    asked = {"input_prefix": PROMPT, "input_suffix": " who was happy.", "prompt": " little"}
    with both(file) as servers:
        for more in ({}, {"input_extra": extra}):
            body = {**GREEDY, **asked, **more, "n_predict": 24, "return_tokens": True}
            ours, theirs = servers.post("/infill", body)
            for name in ("content", "tokens", "tokens_evaluated", "tokens_predicted"):
                assert ours[name] == theirs[name], name


def test_slots(stories: Both):
    ours, theirs = (client.get("/slots").json() for client in stories)
    assert len(ours) == 2
    assert ours == [{name: slot[name] for name in ours[0]} for slot in theirs]


def test_biases(stories: Both):
    plain, _ = stories.post("/completion", {"prompt": PROMPT, "n_predict": 8, **GREEDY})
    word = f" {plain['content'].split()[0]}"
    for bias in ({word: -100}, [[word, False]]):
        asked = {**GREEDY, "prompt": PROMPT, "n_predict": 8, "logit_bias": bias}
        ours, theirs = stories.post("/completion", asked)
        assert ours["content"] == theirs["content"] != plain["content"]
    asked = {**GREEDY, "prompt": PROMPT, "n_predict": 300, "ignore_eos": True}
    ours, theirs = stories.post("/completion", asked)
    assert ours["tokens_predicted"] == theirs["tokens_predicted"] == 300
    assert ours["generation_settings"]["logit_bias"] and all(
        one["bias"] is None for one in ours["generation_settings"]["logit_bias"]
    )


def test_log_probabilities(tmp_path: Path):
    """Weights are in F32: for Q8_0 both sides round activations to 8 bits, and sums in another
    order round to others, which moves log-probabilities by 0.04 (root mean square)."""
    with open_gguf(STORIES) as source:
        quantize(source, tmp_path / "stories.gguf", "f32", allow_requantize=True)
    asked = {**GREEDY, "messages": ASK, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}
    with both(tmp_path / "stories.gguf") as stories:
        ours, theirs = stories.post("/v1/chat/completions", asked)
    pairs = list(
        zip(
            ours["choices"][0]["logprobs"]["content"],
            theirs["choices"][0]["logprobs"]["content"],
            strict=True,
        )
    )
    assert len(pairs) == 24
    for mine, other in pairs:
        assert mine["token"] == other["token"] and mine["bytes"] == other["bytes"]
        assert mine["logprob"] == pytest.approx(other["logprob"], abs=LOGPROB)
        assert [one["logprob"] for one in mine["top_logprobs"]] == pytest.approx(
            [one["logprob"] for one in other["top_logprobs"]], abs=LOGPROB
        )


@pytest.mark.parametrize("text", ["Hello fox", " two  spaces", "naïve 媽 🤗", "<|user|>hi<|end|>"])
@pytest.mark.parametrize("special", [False, True])
def test_tokens(stories: Both, text: str, special: bool):
    asked = {"content": text, "add_special": special, "with_pieces": True}
    ours, theirs = stories.post("/tokenize", asked)
    assert ours == theirs
    back = stories.post("/detokenize", {"tokens": [one["id"] for one in ours["tokens"]]})
    assert back[0]["content"] == back[1]["content"]


@pytest.mark.parametrize("messages", [ASK, ASK[1:]], ids=["system", "alone"])
def test_templates(stories: Both, messages: Any):
    ours, theirs = stories.post("/apply-template", {"messages": messages})
    # llama-server leaves the first token to those who tokenize the text.
    assert ours["prompt"] == "<|bos|>" + theirs["prompt"]
    ours, theirs = stories.post("/chat/completions/input_tokens", {"messages": messages})
    assert ours["input_tokens"] == theirs["input_tokens"]


def test_embeddings():
    with both(EMBEDDING, embedding=True) as servers:
        ours, theirs = servers.post("/v1/embeddings", {"input": ["a b", "c d e f g"]})
    assert ours["usage"] == theirs["usage"]
    for mine, other in zip(ours["data"], theirs["data"], strict=True):
        assert mine["index"] == other["index"]
        assert mine["embedding"] == pytest.approx(other["embedding"], abs=COORDINATE)
