"""T5 as users ask it: a text for the encoder, the decoder's text as the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import ggmodel
from ggmodel import Input
from ggmodel.errors import PromptError, PromptTooLong, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.runner import LoadedModel
from ggmodel.serve.runners.state import state_of
from ggmodel.serve.server import Server
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import Golden, load_golden
from tests.golden.t5.cases import START, VOCABULARY
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

G = "tokenizer.ggml."
WORDS = [f"▁w{i}" for i in range(VOCABULARY - 4)]
METADATA: dict[str, Any] = {
    G + "model": "t5",
    G + "pre": "default",
    G + "tokens": ["<pad>", "</s>", "<unk>", "▁", *WORDS],
    G + "scores": [0.0, 0.0, 0.0, -9.0, *(-1.0 - i / 100 for i in range(len(WORDS)))],
    G + "token_type": [3, 3, 2, 1, *[1] * len(WORDS)],
    G + "add_space_prefix": True,
    G + "remove_extra_whitespaces": True,
    G + "eos_token_id": 1,
    G + "padding_token_id": 0,
    G + "unknown_token_id": 2,
}
TEXT, IDS = "w3 w40 w7", [7, 44, 11, 1]


@pytest.fixture(scope="module")
def golden() -> Golden:
    return load_golden("t5", "published")


@pytest.fixture(scope="module")
def model(golden: Golden) -> Iterator[LoadedModel]:
    source = source_of(golden)
    arrays = {
        name: np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])
        for name, info in source.tensors.items()
    }
    whole = MemorySource({**source.metadata, **METADATA}, arrays)
    with ggmodel.load(whole, kv_type="f32", threads=1, parallel=3) as loaded:
        yield loaded


def answer(model: LoadedModel, prompt: Any, n: int = 8, **options: Any) -> list[int]:
    return model.generate(prompt, max_tokens=n, temperature=0, **options).tokens


def test_ids_are_what_the_encoder_reads(model: LoadedModel, golden: Golden):
    ids = golden.pictures["words_40"].pixels.astype(int).tolist()
    logits = model.logits(ids)
    assert logits.shape == (1, VOCABULARY)
    assert nmse(logits, golden.prompts["long"].logits[:1]) < 1e-8


def test_an_answer_goes_on_as_the_decoder_alone_does(model: LoadedModel):
    assert model.tokenize(TEXT) == IDS
    tokens = answer(model, TEXT)
    assert tokens == answer(model, IDS) and len(set(tokens)) > 1
    source = model.embeddings(np.array(IDS, np.float32), "source")
    for n in range(len(tokens)):
        assert model.logits([source, *tokens[:n]])[-1].argmax() == tokens[n]
    assert answer(model, [source, *tokens[:3]], 5) == tokens[3:]
    alone = model.logits([Input(START), *map(Input, tokens)])
    assert nmse(alone, model.logits([source, *tokens])) > 1e-4


def test_answers_in_a_batch_are_those_alone(model: LoadedModel):
    prompts = ["w1", TEXT, "w5 " * 30, "w9 w9", "w2 w80 w60"]
    each = [answer(model, prompt) for prompt in prompts]
    done = model.batch(prompts, max_tokens=8, temperature=0)
    assert [one.tokens for one in done] == each
    assert len({tuple(tokens) for tokens in each}) == len(each)
    assert [one.usage.prompt_tokens for one in done] == [2, 4, 31, 3, 4]


def test_a_text_is_encoded_once(model: LoadedModel):
    encoders = model.engine.images.encoders
    text = "w11 w12 w13 w14"
    first = model.generate(text, max_tokens=4, temperature=0)
    runs = encoders.recorded + encoders.replayed
    again = model.generate(text, max_tokens=4, temperature=0)
    assert (again.tokens, encoders.recorded + encoders.replayed) == (first.tokens, runs)
    model.generate("w21 w22 w23 w24", max_tokens=1)
    assert encoders.recorded + encoders.replayed == runs + 1


def test_a_text_may_be_as_long_as_the_context(model: LoadedModel):
    assert model.context_length == 64
    assert answer(model, [7] * 63 + [1], 2)
    with pytest.raises(PromptTooLong, match="the prompt has 65 tokens, and the encoder reads 64"):
        answer(model, [7] * 64 + [1])
    long = [*range(10, 90), 1]
    cut = answer(model, long, truncate=True, num_keep=4)
    assert cut == answer(model, [*long[:4], *long[-60:]])


def test_an_answer_ends_with_the_context(model: LoadedModel):
    done = model.generate(TEXT, temperature=0, logit_bias={1: -100})
    assert (len(done.tokens), done.finish_reason) == (63, "length")


def test_what_an_encoder_and_a_decoder_cannot_do_is_refused(model: LoadedModel):
    for ask, reason in (
        (lambda: answer(model, TEXT, context_shift=True), "has nothing to shift"),
        (lambda: model.embed([TEXT]), "embeddings are those of an encoder alone"),
        (lambda: model.score(TEXT), "gives its tokens no probabilities"),
        (lambda: model.generate(TEXT, images=["a.png"]), "it reads text alone"),
    ):
        with pytest.raises(Unsupported, match=reason):
            ask()
    with pytest.raises(PromptError, match="token id 96 is not in the vocabulary"):
        model.generate([7, VOCABULARY])
    with pytest.raises(PromptError, match="the prompt is empty"):
        model.generate([])


def test_quantised_keys_are_refused(golden: Golden):
    with pytest.raises(Unsupported, match="q8_0 needs fused attention"):
        ggmodel.load(source_of(golden), kv_type="q8_0")


def test_the_server_answers(model: LoadedModel):
    with serving(Server(InProcessModels(InProcess(model)))) as url:
        asked = {"model": "stories", "prompt": TEXT, "max_tokens": 8, "temperature": 0}
        done = httpx.post(f"{url}/v1/completions", json=asked).json()
    assert done["choices"][0]["text"] == str(model.generate(TEXT, max_tokens=8, temperature=0))
    assert done["usage"]["prompt_tokens"] == len(IDS)


def test_a_prompt_is_text_for_clients(model: LoadedModel):
    state = state_of(model)
    assert state.kinds == [] and state.abilities == ["completion"]
