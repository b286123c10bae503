"""Sampling that a file advises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

import ggmodel
from ggmodel.convert import convert
from ggmodel.errors import FormatError
from ggmodel.gguf_file import MemorySource
from ggmodel.names import Defaults, ResolvedModel
from ggmodel.runner.sampling import Sampler
from ggmodel.serve.requests import Request
from ggmodel.serve.runners.llama_http import body_of
from tests.convert.folders import write_golden

ADVICE: dict[str, Any] = {"temp": 1.4, "top_k": 7, "top_p": 0.6, "min_p": 0.01}
PENALTIES: dict[str, Any] = {"penalty_repeat": 1.5, "penalty_last_n": 9}
NAMES = {"temp": "temperature", "penalty_repeat": "repeat_penalty"}
NAMES |= {"penalty_last_n": "repeat_last_n"}
OPTIONS: dict[str, Any] = {"kv_type": "f32", "context_length": 64, "threads": 1}


def keys(advice: dict[str, Any]) -> dict[str, Any]:
    return {f"general.sampling.{name}": value for name, value in advice.items()}


def named(advice: dict[str, Any]) -> dict[str, Any]:
    return {NAMES.get(name, name): value for name, value in advice.items()}


@pytest.mark.parametrize("advice", [ADVICE, PENALTIES, {**ADVICE, **PENALTIES}], ids=len)
def test_advice_holds_where_a_request_says_nothing(
    source: MemorySource, vary: Any, advice: dict[str, Any]
):
    request: dict[str, Any] = {"seed": 3, "max_tokens": 20}
    with ggmodel.load(source, **OPTIONS) as model:
        plain = model.generate([1, 2], **request).tokens
        wanted = model.generate([1, 2], **request, **named(advice)).tokens
        hot: dict[str, Any] = {**request, **named(advice), "temperature": 3.0}
        other = model.generate([1, 2], **hot).tokens
        own = model.generate([1, 2], max_tokens=20, sampler=Sampler(seed=3)).tokens
    assert own == plain != wanted != other
    with ggmodel.load(vary(source, metadata=keys(advice)), **OPTIONS) as model:
        assert model.generate([1, 2], **request).tokens == wanted
        assert model.generate([1, 2], **request, temperature=3.0).tokens == other
        assert model.generate([1, 2], max_tokens=20, sampler=Sampler(seed=3)).tokens == plain


def test_a_store_knows_better_than_its_file():
    store = Defaults(system="Be brief.", options={"top_k": 3, "stop": ["x"]})
    found = store.over({"top_k": 7, "top_p": 0.6})
    assert found.options == {"top_k": 3, "top_p": 0.6, "stop": ["x"]}
    assert found.system == "Be brief."


def test_a_model_of_a_store_has_both(
    source: MemorySource, vary: Any, write_gguf: Any, tmp_path: Path
):
    path = write_gguf(tmp_path / "a.gguf", vary(source, metadata=keys(ADVICE)))
    store = Defaults(options={"top_k": 3})
    with ggmodel.load(ResolvedModel("a", "a store", path, defaults=store), **OPTIONS) as model:
        assert model.defaults.options == pytest.approx({**named(ADVICE), "top_k": 3})


def test_a_checkpoint_advises_in_its_generation_config(tmp_path: Path):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "generation_config.json").write_text('{"top_k": 7, "repetition_penalty": 1.5}')
    with ggmodel.load(tmp_path, **OPTIONS) as model:
        assert model.defaults.options == {"top_k": 7, "repeat_penalty": 1.5}


@pytest.mark.parametrize("text", ['{"temperature": 1, "top_p": 1}', '{"temperature": 1.0}'])
def test_numbers_have_the_type_of_their_key(tmp_path: Path, text: str):
    """JSON makes integers of them, too."""
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "generation_config.json").write_text(text)
    convert(tmp_path, tmp_path / "a.gguf")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    kinds = [field.types for key, field in fields.items() if key.startswith("general.sampling")]
    assert kinds and all(kind == [gguf.GGUFValueType.FLOAT32] for kind in kinds)


@pytest.mark.parametrize("value", ["1e39", "1e-50"])
def test_numbers_that_are_none_in_their_type(tmp_path: Path, value: str):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "generation_config.json").write_text(f'{{"repetition_penalty": {value}}}')
    convert(tmp_path, tmp_path / "a.gguf")
    for source in (tmp_path, tmp_path / "a.gguf"):
        with pytest.warns(UserWarning, match="penalty_repeat of the file is ignored: repeat_pen"):
            ggmodel.load(source, **OPTIONS).close()


@pytest.mark.parametrize("value", ["1" + "0" * 400, "true", '"x"', "[1]"])
def test_no_numbers(tmp_path: Path, value: str):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "generation_config.json").write_text(f'{{"repetition_penalty": {value}}}')
    with pytest.raises(FormatError, match=r"generation_config\.json"):
        convert(tmp_path, tmp_path / "a.gguf")
    with pytest.raises(FormatError, match=r"generation_config\.json"):
        ggmodel.load(tmp_path, **OPTIONS)


def test_all_tokens_are_kept_below_one(source: MemorySource, vary: Any):
    """As llama.cpp reads the key."""
    with ggmodel.load(vary(source, metadata=keys({"top_k": -1})), **OPTIONS) as model:
        assert model.defaults.options == {"top_k": 0}


def test_llama_server_is_left_to_follow_it():
    request = Request("Once", {"top_p": 0.3})
    body = body_of(request, keys({"top_p": 0.6, "top_k": 7}))
    assert body["top_p"] == 0.3 and "top_k" not in body and body["temperature"] == 0.8
    assert body_of(request, {})["top_k"] == 40


@pytest.mark.parametrize(
    ("advice", "warned"),
    [
        ({"top_p": 3.0}, r"general.sampling.top_p .* ignored: top_p is 3.0; it must lie from 0"),
        ({"temp": "hot"}, r"general.sampling.temp .* ignored: temperature is 'hot'"),
        ({"temp": "x" * 3_000_000}, r"temp of the file is ignored: temperature is 'xxx.{,200}$"),
        ({"top_p": True}, r"general.sampling.top_p .* ignored: top_p is True; it must be a number"),
        ({"mirostat": 2}, r"general.sampling.mirostat .* ignored: ggmodel has no such way"),
        ({"xtc_probability": 0.5}, r"general.sampling.xtc_probability .* ignored"),
        ({"sequence": "top_k;temp"}, r"general.sampling.sequence .* ignored"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_advice_that_cannot_be_followed(
    source: MemorySource, vary: Any, advice: dict[str, Any], warned: str
):
    told = vary(source, metadata=keys({"top_k": 7, **advice}))
    with pytest.warns(UserWarning, match=warned):
        model = ggmodel.load(told, **OPTIONS)
    with model:
        assert model.defaults.options == {"top_k": 7}
        assert len(model.generate([1, 2], max_tokens=3).tokens) == 3
