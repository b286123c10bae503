"""Options: other libraries' names, and values of the wrong type."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel import LoadedModel, LoadOptions, Sampler
from ggmodel.errors import ConfigError, Error, TokenizerError
from ggmodel.gguf_file import MemorySource
from ggmodel.runner.options import OF_LOADING
from ggmodel.runner.request_options import OF_REQUESTS, ChatOptions, RequestOptions
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_golden

STORIES = Path(__file__).parents[2] / "examples/assets/stories.gguf"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, threads=1, context_length=64) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("n_ctx", "context_length"),
        ("n_gpu_layers", "gpu_layers"),
        ("n_threads", "threads"),
        ("dtype", "type="),
        ("device", "gpu_layers"),
        ("verbose", "logging"),
        ("context_lenght", "do you mean 'context_length'"),
    ],
)
def test_loading_names_our_word(name: str, ours: str):
    given: dict[str, Any] = {name: 1}
    for function in (ggmodel.load, ggmodel.estimate):
        with pytest.raises(ConfigError, match=f"no option {name!r}; .*{ours}"):
            function(STORIES, **given)


def test_a_word_of_nobody_gets_no_hint():
    given: dict[str, Any] = {"hello": 1}
    with pytest.raises(ConfigError, match=r"^there is no option 'hello'$"):
        ggmodel.load(STORIES, **given)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("temp", "temperature"),
        ("n_predict", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("stop_strings", "use stop$"),
        ("stop_sequences", "use stop$"),
        ("response_format", r"Grammar\.json_schema"),
        ("do_sample", "temperature=0"),
        ("stream", r"stream\(prompt\)"),
        ("temprature", "do you mean 'temperature'"),
    ],
)
def test_generating_names_our_word(model: LoadedModel, name: str, ours: str):
    given: dict[str, Any] = {name: 1}
    for call in (model.generate, model.stream, model.astream):
        with pytest.raises(ConfigError, match=f"no option {name!r}.*{ours}"):
            call("Once", **given)


def test_no_word_of_ours_is_taken_for_anothers():
    assert not OF_LOADING.keys() & inspect.signature(LoadOptions).parameters.keys()
    assert not OF_REQUESTS.keys() & RequestOptions.__annotations__.keys()


def test_options_of_load_are_its_signature():
    options = inspect.signature(LoadOptions).parameters
    for function in (ggmodel.load, ggmodel.estimate):
        _, *keywords = inspect.signature(function).parameters.values()
        assert keywords == list(options.values())
    assert all(f"{name}: " in (LoadOptions.__doc__ or "") for name in options)


def test_request_options_are_those_of_the_sampler():
    own = set(inspect.signature(Sampler).parameters)
    assert own <= RequestOptions.__annotations__.keys()


@pytest.mark.parametrize(
    "option",
    [
        {"grammar": {"type": "object"}},
        {"grammar": "start: /a/"},
        {"sampler": 3},
        {"sampler": "greedy"},
        {"logit_bias": [3]},
        {"logit_bias": "a"},
    ],
    ids=str,
)
def test_values_of_the_wrong_type(model: LoadedModel, option: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*; it must be a"):
        model.generate("Once", **option)


@pytest.mark.parametrize("option", [{"variables": 3}, {"template": 3}], ids=str)
def test_chat_options_of_the_wrong_type(model: LoadedModel, option: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is 3; it must be"):
        model.chat([{"role": "user", "content": "x"}], **option)


@pytest.mark.parametrize("name", ["messages", "markers", "image_marker", "continues", "self"])
def test_variables_with_names_of_arguments(model: LoadedModel, name: str):
    messages: Any = [{"role": "user", "content": "x"}]
    option: Any = {"variables": {name: 3}}
    wrong = f"variables has '{name}', .*; leave it out"
    for ask in (model.chat, model.chat_text, model.chat_prompt):
        with pytest.raises(ConfigError, match=wrong):
            ask(messages, template="chatml", **option)
    with pytest.raises(ConfigError, match=wrong):
        model.parse_reply("hi", template="chatml", **option)


@pytest.mark.parametrize(
    "option",
    [
        {"backend": ["ggml"]},
        {"models": ["a"]},
        {"mmproj": 3},
        {"type": 8},
        {"progress": True},
        {"override_tensor": "a=CPU"},
        {"rpc": 3},
        {"strict": "yes"},
        {"threads": "many"},
        {"context_length": "long"},
        {"parallel": None},
        {"gpu_layers": None},
    ],
    ids=str,
)
def test_load_options_of_the_wrong_type(source: MemorySource, option: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is "):
        ggmodel.load(source, **option)


@pytest.mark.parametrize("source", [None, b"", 3, ["a.gguf"]])
def test_no_model(source: Any):
    with pytest.raises(ConfigError, match="give the path of a GGUF file"):
        ggmodel.load(source)


@pytest.mark.parametrize("function", [ggmodel.load, ggmodel.estimate])
@pytest.mark.parametrize("options", [{}, {"type": "q8_0"}, {"mmproj": "x.gguf"}, {"threads": -1}])
def test_a_missing_file_is_said_first(function: Any, options: dict[str, Any]):
    with pytest.raises(FileNotFoundError, match=r"nothere\.gguf does not exist") as e:
        function("nothere.gguf", **options)
    assert isinstance(e.value, Error)


def test_texts_that_are_none(model: LoadedModel):
    for text in (None, b"x", 3):
        with pytest.raises(Error, match="is a string, not"):
            model.tokenize(text)  # type: ignore[arg-type]


def warned(source: Any = STORIES, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ggmodel.load(source, threads=1, **options).close()
    assert all(w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


def test_a_context_beyond_the_training_is_said():
    (message,) = warned(context_length=600)
    assert "context_length is 600, but the model was trained with 512 positions" in message
    assert warned(context_length=512) == warned() == []


@pytest.mark.parametrize(("arch", "case"), [("llama", "longrope"), ("phi3", "long")])
def test_factors_for_long_texts_are_said(arch: str, case: str):
    source = source_of(load_golden(arch, case))
    (message,) = warned(source)
    assert "for texts of more than 16 tokens turn shorter ones" in message
    assert "load with context_length=16 for" in message
    assert warned(source, context_length=16) == []


def test_dynamic_scaling_that_is_left_out_is_said():
    golden = load_golden("llama", "plain_gqa")
    scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    source = source_of(replace(golden, config=golden.config | scaling))
    (message,) = warned(source, context_length=160)
    assert "trained with 128 positions" in message
    assert "scaling by 2 that transformers applies to longer texts is left out" in message
    assert warned(source) == []


def test_layers_on_no_gpu_are_said(monkeypatch: pytest.MonkeyPatch):
    from ggmodel.ml.ggml import hardware

    monkeypatch.setattr(hardware, "discover", list)
    (message,) = warned(gpu_layers=99)
    assert "gpu_layers is 99, but there is no GPU and no worker" in message
    assert warned(gpu_layers=0) == warned(gpu_layers="auto") == []


WRONG = ["a", b"a", None, 1.5, -3, True, [], {}, object(), [1], ["a"], {"a": 1}, complex(1)]


@pytest.mark.parametrize("name", inspect.signature(LoadOptions).parameters)
def test_any_value_of_an_option_of_load(source: MemorySource, name: str):
    for wrong in WRONG:
        with suppress(Error):
            ggmodel.load(source, **{name: wrong}).close()
        with suppress(Error):
            ggmodel.estimate(source, **{name: wrong})


@pytest.mark.parametrize("name", ChatOptions.__annotations__)
def test_any_value_of_an_option_of_a_request(model: LoadedModel, name: str):
    question = [{"role": "user", "content": "x"}]
    for wrong in WRONG:
        if (name, wrong) != ("max_tokens", None):
            options: Any = {"max_tokens": 1, name: wrong}
            for ask in (
                lambda o=options: model.generate("Once", **o),
                lambda o=options: [*model.stream("Once", **o)],
                lambda o=options: model.chat(question, **o),
            ):
                with suppress(Error):
                    ask()


METHODS = (
    "generate stream request batch logits score length tokenize detokenize embed embeddings "
    "encode_image chat chat_prompt"
).split()


@pytest.mark.parametrize("name", METHODS)
def test_any_argument_of_a_method(model: LoadedModel, name: str):
    refused = 0
    for wrong in WRONG:
        try:
            result = getattr(model, name)(wrong)
            if name == "stream":
                result.close()
        except Error:
            refused += 1
    assert refused > len(WRONG) / 2


@pytest.mark.parametrize("ids", [3, None, "a", ["a"], [[1]], [None], [1.5], object()])
def test_what_are_no_token_ids(model: LoadedModel, ids: Any):
    with pytest.raises(TokenizerError, match=r"is an integer, not|are a list of integers"):
        model.detokenize(ids)


@pytest.mark.parametrize("id", ["a", None, 1.5, [1], {}], ids=str)
def test_what_is_no_token_id(model: LoadedModel, id: Any):
    assert model.tokenizer is not None
    for ask in (model.tokenizer.token, model.tokenizer.token_bytes, model.tokenizer.is_special):
        with pytest.raises(TokenizerError, match="a token id is an integer, not"):
            ask(id)
