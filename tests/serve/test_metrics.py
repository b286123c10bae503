"""Numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import ggmodel
from ggmodel.serve.metrics import Metrics
from ggmodel.serve.pool import ListedModel
from ggmodel.serve.requests import Embed, Finished, Rows, Steps
from ggmodel.serve.runners.work import Work
from tests.serve.standin import InProcess


def test_numbers_for_prometheus(client: openai.OpenAI, http: httpx.Client):
    def number(name: str) -> float:
        lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name)]
        return float(lines[0].split()[-1]) if lines else 0.0

    name = 'ggmodel_completion_tokens_total{model="stories"}'
    before = number(name)
    client.completions.create(
        model="stories", prompt="Once", max_tokens=5, logit_bias={"1": -100, "4": -100}
    )
    assert number(name) == before + 5
    assert number('ggmodel_first_token_seconds_count{model="stories"}') > 0
    assert number('ggmodel_sequences{model="stories"}') == 4
    assert number('ggmodel_requests_total{path="/v1/completions",status="200"}') > 0
    http.get("/v1/models/absent")
    assert number('ggmodel_requests_total{path="/v1/models/{model:path}",status="404"}') > 0
    assert not number('ggmodel_requests_total{path="/v1/models/absent"')


def test_numbers_of_other_servers(client: openai.OpenAI, http: httpx.Client):
    asked: Any = {"max_tokens": 5, "logit_bias": {"1": -100, "4": -100}}
    client.completions.create(model="stories", prompt="Once upon a time", **asked)
    numbers = dict(
        line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#"
    )
    own, llama, vllm = (
        {name.removeprefix(prefix): value for name, value in numbers.items() if prefix in name}
        for prefix in ("ggmodel_", "llamacpp:", "vllm:")
    )
    model, other = '{model="stories"}', '{model_name="stories"}'
    assert llama["tokens_predicted_total"] == own[f"completion_tokens_total{model}"]
    assert vllm[f"generation_tokens_total{other}"] == own[f"completion_tokens_total{model}"]
    assert float(llama["prompt_tokens_total"]) == float(
        vllm[f"prompt_tokens_total{other}"]
    ) - float(vllm[f"prefix_cache_hits_total{other}"])
    assert vllm[f"num_requests_running{other}"] == llama["requests_processing"] == "0.0"
    assert vllm[f"kv_cache_usage_perc{other}"] == llama["kv_cache_usage_ratio"] == "0.0"
    count = own[f"first_token_seconds_count{model}"]
    assert vllm[f"time_to_first_token_seconds_count{other}"] == count
    assert vllm['time_to_first_token_seconds_bucket{le="+Inf",model_name="stories"}'] == count
    assert float(vllm[f"inter_token_latency_seconds_count{other}"]) >= 4
    assert 'request_success_total{finished_reason="length",model_name="stories"}' in vllm
    assert float(llama["n_tokens_max"]) >= 9
    assert llama["n_decode_total"] == own[f"steps_total{model}"]
    assert float(llama["n_decode_total"]) >= 5 and float(llama["n_busy_slots_per_decode"]) >= 1


def test_positions_that_answers_take(runner: InProcess):
    metrics = Metrics()
    model = ListedModel("stories", "", 0.0, 1, state=runner.state)
    answer = metrics.under_way.begin("stories", 500, {})
    answer.decoded = 12

    def number(name: str) -> float:
        lines = metrics.page([model]).decode().splitlines()
        (line,) = [one for one in lines if one.startswith((name + "{", name + " "))]
        return float(line.split()[-1])

    assert number("ggmodel_kv_cache_tokens") == number("llamacpp:kv_cache_tokens") == 512
    assert number("ggmodel_kv_cache_usage") == number("vllm:kv_cache_usage_perc") == 0.25
    metrics.under_way.end("stories", answer)
    assert number("ggmodel_kv_cache_usage") == 0


def test_averages_need_no_answer():
    metrics = Metrics()
    began = [1.0, 1.5, 2.5]
    for reused in (0, 10):
        finished = Finished("stop", 10, 2, None, reused, 0.0 if reused else 2.0, 1.0)
        metrics.generated("m", finished, began)
    lines = metrics.page([]).decode().splitlines()
    assert "llamacpp:prompt_tokens_seconds 5.0" in lines
    assert "llamacpp:predicted_tokens_seconds 2.0" in lines
    assert 'ggmodel_token_gap_seconds_sum{model="m"} 2.0' in lines
    assert 'ggmodel_answer_seconds_sum{model="m"} 3.0' in lines


def test_numbers_of_llama_server_are_of_all_models():
    metrics = Metrics()
    for model, seconds in (("a", 2.0), ("b", 1.0)):
        finished = Finished(
            "stop", 10, 3, None, 4, seconds, 1.0, drafts=2, steps=Steps(model, 4, 6)
        )
        metrics.generated(model, finished, [1.0, 1.5, 2.5])
    metrics.read("a", Rows(b"", 2, 0, [1, 2], Steps("a", 5, 15)))
    lines = metrics.page([]).decode().splitlines()
    assert "llamacpp:prompt_tokens_total 15.0" in lines
    assert "llamacpp:prompt_tokens_cached_total 8.0" in lines
    assert "llamacpp:tokens_predicted_total 6.0" in lines
    assert "llamacpp:prompt_tokens_seconds 6.0" in lines  # of the faster model
    assert "llamacpp:n_tokens_max 13.0" in lines
    assert "# TYPE llamacpp:n_tokens_max counter" in lines
    assert "llamacpp:spec_decode_num_drafts_total 4.0" in lines
    assert 'vllm:spec_decode_num_drafts_total{model_name="a"} 2.0' in lines
    assert "llamacpp:n_decode_total 9.0" in lines
    assert 'ggmodel_step_sequences_total{model="a"} 15.0' in lines
    assert "llamacpp:n_busy_slots_per_decode 3.0" in lines  # of the busier model


def test_steps_are_counted_once_whichever_answers_tell_them():
    metrics = Metrics()
    # Answers of two processes: the second of "p" comes late, one between was cancelled.
    for told in (("p", 4, 6), ("p", 9, 15), ("p", 7, 12), ("q", 1, 2), ("p", 10, 16), ("", 0, 0)):
        metrics.read("a", Rows(b"", 1, 0, [1], Steps(*told)))
    lines = metrics.page([]).decode().splitlines()
    assert 'ggmodel_steps_total{model="a"} 11.0' in lines
    assert 'ggmodel_step_sequences_total{model="a"} 18.0' in lines


def test_answers_that_are_dropped_lose_no_steps(stories: ggmodel.LoadedModel):
    metrics, work = Metrics(), Work(stories)
    steps, _ = stories.engine.computed
    for dropped in (True, False):
        rows = work.embed(Embed(["a dog"]), lambda: None)
        if not dropped:
            metrics.read("a", rows)
    lines = metrics.page([]).decode().splitlines()
    assert f'ggmodel_steps_total{{model="a"}} {steps + 2.0}' in lines


def test_texts_to_embed_are_counted_in_all_formats(http: httpx.Client, stories: Any):
    def numbers() -> list[float]:
        lines = http.get("/metrics").text.splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines)
        names = ("prompt_tokens", "steps", "step_sequences")
        return [float(found.get(f'ggmodel_{n}_total{{model="stories"}}', 0)) for n in names]

    texts = ["a dog", "two cats"]
    asked = {"input": texts, "inputs": texts, "model": "stories"}
    http.post("/embed", json=asked).raise_for_status()  # tells the steps before this test
    for path in ("/v1/embeddings", "/embedding", "/embed", "/api/embed"):
        before = numbers()
        http.post(path, json=asked).raise_for_status()
        tokens = sum(map(stories.length, texts))
        assert np.subtract(numbers(), before).tolist() == [tokens, 1, 2], path


@pytest.mark.parametrize(("path", "option"), [("/metrics", "metrics"), ("/slots", "slots")])
def test_numbers_and_slots_can_be_left_out(serve: Callable[..., str], path: str, option: str):
    answer = httpx.get(serve(**{option: False}) + path, timeout=30)
    assert answer.status_code == 501
    assert f"--no-{option}" in answer.json()["error"]["message"]


def test_numbers_have_the_model_s_own_name(
    http: httpx.Client, runner: InProcess, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "name", "my-own")
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    more = {"model": "stories", "max_tokens": 1, "options": {"num_predict": 1}, "stream": False}
    for path, asked in (
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/chat/completions", chat),
        ("/v1/messages", chat),
        ("/v1/responses", {"input": "Hi"}),
        ("/api/chat", chat),
        ("/api/generate", {"prompt": "Once"}),
        ("/completion", {"prompt": "Once"}),
    ):
        http.post(path, json=asked | more).raise_for_status()
    numbers = http.get("/metrics").text
    assert 'ggmodel_first_token_seconds_count{model="my-own"} 7.0' in numbers
