"""llama-server's own endpoints, and its paths for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ggmodel.errors import TokenizerError
from tests.serve.standin import InProcess

TEXT = "Once upon a time there was a"
ASKED: Any = {"prompt": TEXT, "n_predict": 8, "temperature": 0}


def test_a_text_goes_on(http: httpx.Client):
    found = http.post("/completion", json={**ASKED, "return_tokens": True}).json()

    assert found["content"]
    assert len(found["tokens"]) == 8
    assert (
        http.post("/detokenize", json={"tokens": found["tokens"]}).json()["content"]
        == (found["content"])
    )
    assert (found["stop"], found["stop_type"], found["stopping_word"]) == (True, "limit", "")
    assert found["tokens_predicted"] == found["timings"]["predicted_n"] == 8
    assert found["generation_settings"]["n_predict"] == 8


def test_a_stream_has_the_same_text(http: httpx.Client):
    whole = http.post("/completion", json={**ASKED, "n_probs": 3}).json()

    text = http.post("/completion", json={**ASKED, "n_probs": 3, "stream": True}).text
    *parts, last = [json.loads(line[6:]) for line in text.splitlines() if line]

    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [one for part in parts for one in part["completion_probabilities"]] == (
        whole["completion_probabilities"]
    )
    assert all(len(one["top_logprobs"]) == 3 for one in whole["completion_probabilities"])
    assert not any(part["stop"] for part in parts)
    assert last["stop"] is True
    assert last["timings"]["predicted_n"] == 8


def test_probabilities_after_sampling(http: httpx.Client):
    asked = {**ASKED, "n_probs": 5, "post_sampling_probs": True}
    drawn = {**asked, "temperature": 0.7, "top_k": 3, "top_p": 1.0, "seed": 4}
    found = http.post("/completion", json=drawn).json()["completion_probabilities"]
    assert len(found) == 8
    for one in found:
        assert len(one["top_probs"]) == 3  # as many as top_k leaves
        assert sum(top["prob"] for top in one["top_probs"]) == pytest.approx(1)
        assert one["prob"] in [top["prob"] for top in one["top_probs"] if top["id"] == one["id"]]
        assert "logprob" not in one
    greedy = http.post("/completion", json=asked).json()["completion_probabilities"]
    assert [(one["prob"], len(one["top_probs"])) for one in greedy] == [(1, 1)] * 8


def test_lists_of_prompts_have_lists_of_answers(http: httpx.Client):
    ids = http.post("/tokenize", json={"content": TEXT, "add_special": True}).json()["tokens"]
    found = http.post("/completion", json={**ASKED, "prompt": [TEXT, ids]}).json()
    assert found[0]["content"] == found[1]["content"]
    mixed = http.post("/completion", json={**ASKED, "prompt": [ids[0], "Once", ids[2]]}).json()
    assert mixed["content"]


def test_ids_go_on_without_a_vocabulary(
    http: httpx.Client, runner: InProcess, monkeypatch: pytest.MonkeyPatch
):
    async def detokenize(request: Any) -> Any:
        raise TokenizerError("this model holds no vocabulary")

    asked = {"prompt": [1, 2], "n_predict": 4, "temperature": 0}
    wanted = http.post("/completion", json=asked).json()
    assert wanted["prompt"]
    monkeypatch.setattr(runner, "detokenize", detokenize)
    found = http.post("/completion", json=asked).json()
    assert (found["prompt"], found["content"]) == ("", wanted["content"])
    lines = http.post("/completion", json={**asked, "stream": True}).text.split("data: ")
    assert json.loads(lines[-1])["stop"] is True


def test_a_stop_word_is_told(http: httpx.Client):
    word = http.post("/completion", json=ASKED).json()["content"].split()[1]
    found = http.post("/completion", json={**ASKED, "stop": [word]}).json()
    assert found["stop_type"] in ("word", "eos")  # a runner need not tell which
    assert word not in found["content"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"n_probs": 999}, "n_probs"),
        ({"prompt": ["a", "b"], "stream": True}, "stream"),
        ({"n_predict": "x"}, "n_predict"),
    ],
)
def test_wrong_fields_are_named(http: httpx.Client, change: Any, param: str):
    answer = http.post("/completion", json={**ASKED, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_tokens_that_are_ruled_out_are_told(http: httpx.Client):
    for ignored in (True, False):
        found = http.post("/completion", json={**ASKED, "ignore_eos": ignored}).json()
        biases = found["generation_settings"]["logit_bias"]
        assert bool(biases) == ignored
        assert all(one["bias"] is None for one in biases)  # −∞


def test_a_chat_is_counted(http: httpx.Client):
    asked = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 4}
    answer = http.post("/chat/completions", json=asked).json()
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        count = http.post(path, json=asked).json()
        assert count["input_tokens"] == answer["usage"]["prompt_tokens"]


def test_models_are_listed_without_a_version(http: httpx.Client):
    assert http.get("/models").json() == http.get("/v1/models").json()


def test_abilities_of_models_stand_beside_openais_list(http: httpx.Client, runner: InProcess):
    listed = http.get("/v1/models").json()
    (model,) = listed["models"]
    assert model["name"] == listed["data"][0]["id"] == "stories"
    assert "completion" in model["capabilities"]
    assert "multimodal" not in model["capabilities"]


@pytest.mark.parametrize("verbose", [True, False, None])
def test_a_verbose_chat_tells_its_prompt(http: httpx.Client, verbose: bool | None):
    asked = {"messages": [{"role": "user", "content": "Hello fox"}], "max_tokens": 2}
    answer = http.post("/v1/chat/completions", json={**asked, "verbose": verbose}).json()
    assert ("__verbose" in answer) is bool(verbose)
    if verbose:
        assert "Hello fox" in answer["__verbose"]["prompt"]
        assert answer["__verbose"]["generation_settings"]["n_predict"] == 2


def test_a_server_that_logs_bodies_tells_prompts(serve: Callable[..., str]):
    asked: Any = {"messages": [{"role": "user", "content": "Hello fox"}], "max_tokens": 2}
    url = f"{serve(verbose=True)}/v1/chat/completions"
    assert "__verbose" in httpx.post(url, json=asked, timeout=30).json()
    assert "__verbose" not in httpx.post(url, json={**asked, "verbose": False}, timeout=30).json()


def test_templates_of_firefunction_get_a_text_of_tools(http: httpx.Client):
    template, messages = "{{ 'tools: ' + functions + '.' }}", [{"role": "user", "content": "Hi"}]
    asked = {"chat_template": template, "messages": messages}
    assert http.post("/apply-template", json=asked).json()["prompt"] == "tools: ."


def test_prompts_that_are_too_long_are_told_in_its_words(http: httpx.Client):
    answer = http.post("/completion", json={"prompt": "dog " * 600})
    assert answer.status_code == 400
    assert "exceeds the available context size of 512" in answer.json()["error"]["message"]


def test_a_prompt_without_the_beginning_of_an_answer(http: httpx.Client):
    asked = {"messages": [{"role": "user", "content": "Hello"}]}
    whole = http.post("/apply-template", json=asked).json()["prompt"]
    short = http.post("/apply-template", json={**asked, "add_generation_prompt": False}).json()
    assert whole == short["prompt"] + "<|assistant|>"


def test_texts_in_objects(http: httpx.Client):
    plain = http.post("/completion", json=ASKED).json()["content"]
    parts = [{"type": "text", "text": "Once upon"}, {"type": "text", "text": TEXT[9:]}]
    for given in ({"prompt_string": TEXT}, {"content": parts}, [{"prompt_string": TEXT}]):
        assert http.post("/completion", json={**ASKED, "prompt": given}).json()["content"] == plain
    image = {"prompt_string": TEXT, "multimodal_data": ["AAAA"]}
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:,a"}}]}
    for wrong in (image, picture, {"content": TEXT}, {}, [1, {"prompt_string": TEXT}]):
        found = http.post("/completion", json={**ASKED, "prompt": wrong})
        assert found.status_code == 400 and "prompt" in found.json()["error"]["message"]


def test_fields_of_an_answer_are_chosen(http: httpx.Client):
    fields = ["content", "generation_settings/n_predict", "prompt", "absent", "content/x"]
    found = http.post("/completion", json={**ASKED, "response_fields": fields})
    whole = http.post("/completion", json={**ASKED, "response_fields": []}).json()
    assert found.json() == {
        "content": whole["content"],
        "generation_settings/n_predict": 8,
        "prompt": whole["prompt"],
    }
    assert "x-ggmodel-warnings" not in found.headers
    assert whole["prompt"].endswith(TEXT) and whole["prompt"] != TEXT  # with the first token
    lines = http.post("/completion", json={**ASKED, "stream": True, "response_fields": ["stop"]})
    assert lines.text.strip().rpartition("\n")[2] == 'data: {"stop":true}'
