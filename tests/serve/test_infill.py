"""Texts between two others: /infill, and the suffixes of OpenAI's and Ollama's APIs."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import ggmodel
from ggmodel.serve.infill import fill_tokens
from ggmodel.serve.requests import State
from tests.serve.standin import InProcess

BEFORE, AFTER = "Once upon a time", " lived in a house."
TOKENS = {"pre": 10, "suf": 11, "mid": 12, "rep": 13, "sep": 14}
ASKED: Any = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 4, "temperature": 0}


class Filling(InProcess):
    """A model whose vocabulary has the tokens.

    Attributes:
        tokens: their ids.
    """

    tokens = TOKENS

    @property
    def state(self) -> State:
        found = super().state
        found.metadata |= {f"tokenizer.ggml.fim_{k}_token_id": id for k, id in self.tokens.items()}
        return found


@pytest.fixture
def filling(runner: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.setattr(runner, "__class__", Filling)
    return runner


@pytest.fixture
def ids(stories: ggmodel.LoadedModel) -> Any:
    """`ids(text)` gives the tokens of a text."""
    return lambda text: stories.tokenize(text, add_special=False)


def asked(http: httpx.Client, runner: InProcess, path: str, body: Any) -> list[int]:
    """The prompt that a request has made."""
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return runner.seen[-1].prompt


def test_the_order_of_parts(http: httpx.Client, filling: InProcess, ids: Any):
    extra = [{"filename": "a.py", "text": "A cat."}, {"text": "A dog."}]
    found = asked(http, filling, "/infill", {**ASKED, "prompt": " there", "input_extra": extra})
    others = [13, *ids("myproject\n"), 14, *ids("a.py\n"), *ids("A cat.")]
    others += [14, *ids("tmp\n"), *ids("A dog."), 14, *ids("filename\n")]
    assert found == [*others, 0, 10, *ids(BEFORE), *ids(" there"), 11, *ids(AFTER), 12]


def test_an_answer_has_the_text_of_its_prompt(http: httpx.Client, filling: InProcess):
    whole = http.post("/infill", json=ASKED).json()
    assert BEFORE in whole["prompt"] and AFTER in whole["prompt"]
    lines = http.post("/infill", json={**ASKED, "stream": True}).text.split("data: ")
    assert json.loads(lines[-1])["prompt"] == whole["prompt"]


def test_other_apis_have_suffixes(http: httpx.Client, filling: InProcess, ids: Any):
    wanted = asked(http, filling, "/infill", ASKED)
    text = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 4}
    assert asked(http, filling, "/v1/completions", text) == wanted
    own = {"model": "stories", **text, "stream": False, "options": {"num_predict": 4}}
    assert asked(http, filling, "/api/generate", own) == wanted
    empty = asked(http, filling, "/api/generate", {**own, "prompt": ""})
    assert empty[-len(ids(AFTER)) - 4 :] == [0, 10, 11, *ids(AFTER), 12]


def test_texts_without_a_token_between_them(
    http: httpx.Client, filling: InProcess, ids: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Filling, "tokens", {k: TOKENS[k] for k in ("pre", "suf", "mid")})
    found = asked(http, filling, "/infill", {**ASKED, "input_extra": [{"text": "A cat."}]})
    start = [*ids("\n\n--- snippet ---\n\n"), *ids("A cat.")]
    assert found == [*start, 0, 10, *ids(BEFORE), 11, *ids(AFTER), 12]


@pytest.mark.parametrize("long", ["input_prefix", "input_suffix", "input_extra"])
def test_what_is_near_is_kept(http: httpx.Client, filling: InProcess, ids: Any, long: str):
    text = " ".join(f"word {i}" for i in range(400))
    body = {**ASKED, long: [{"text": text}] if long == "input_extra" else text}
    found = asked(http, filling, "/infill", body)
    assert len(found) == 512 - 4
    before, after = found[found.index(10) + 1 : found.index(11)], found[found.index(11) + 1 : -1]
    if long == "input_prefix":
        assert before == ids(text)[-len(before) :] and after == ids(AFTER)
    elif long == "input_suffix":
        assert after == ids(text)[: len(after)] and before == ids(BEFORE)
    else:
        assert (before, after) == (ids(BEFORE), ids(AFTER))
    assert len(before) + len(after) > 350 or long == "input_extra"


def test_both_are_long(http: httpx.Client, filling: InProcess):
    text = "a cat and a dog " * 200
    found = asked(http, filling, "/infill", {**ASKED, "input_prefix": text, "input_suffix": text})
    before, after = found.index(11) - found.index(10), len(found) - found.index(11) - 1
    assert before / after == pytest.approx(3, abs=0.1)


def test_a_long_answer_leaves_room_for_the_texts(http: httpx.Client, filling: InProcess, ids: Any):
    wanted = [0, 10, *ids(BEFORE), 11, *ids(AFTER), 12]
    assert asked(http, filling, "/infill", {**ASKED, "n_predict": 4096})[-len(wanted) :] == wanted
    text = {"model": "stories", "prompt": BEFORE, "suffix": AFTER, "stream": False}
    found = asked(http, filling, "/api/generate", {**text, "options": {"num_predict": 4096}})
    assert found[-len(wanted) :] == wanted


def test_an_answer_and_a_stream(http: httpx.Client, filling: InProcess):
    found = http.post("/infill", json=ASKED).json()
    assert (found["tokens_predicted"], found["stop"]) == (4, True)
    streamed = http.post("/infill", json={**ASKED, "stream": True}).text
    assert streamed.count("data: ") == 5


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("/infill", {"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
        ("/infill", {"input_extra": [{"filename": 5, "text": "x"}]}, "input_extra[0].filename"),
        ("/infill", {"input_prefix": None}, "input_prefix"),
        ("/infill", {"prompt": 3}, "prompt"),
        ("/v1/completions", {"prompt": [1, 2], "suffix": "x"}, "suffix"),
        ("/v1/completions", {"prompt": "x", "suffix": "x", "echo": True}, "suffix"),
    ],
)
def test_wrong_fields_are_named(http: httpx.Client, path: str, change: Any, field: str):
    answer = http.post(path, json={**ASKED, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_models_without_the_tokens_say_so(http: httpx.Client):
    answer = http.post("/infill", json=ASKED)
    assert answer.status_code == 400
    assert "no token for prefix" in answer.json()["error"]["message"]


def test_tokens_are_known_by_their_spelling(filling: InProcess):
    state = filling.state
    state.metadata = {"tokenizer.ggml.suffix_token_id": 7}
    state.special_ids = {"<|fim_prefix|>": 5, "<|fim_suffix|>": 6, "<|file_sep|>": 8}
    assert fill_tokens(state) == {"prefix": 5, "suffix": 7, "file": 8}
