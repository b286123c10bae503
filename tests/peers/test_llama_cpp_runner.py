"""Models that llama.cpp runs behind the same interface: its answers are ggmodel's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ggmodel
from ggmodel.serve.requests import Detokenize, Render, Tokenize
from ggmodel.serve.runners.llama_cpp import LlamaCppRunner
from tests.serve.loops import Loop, new_loop
from tests.serve.runners.asking import GREETING, PROMPT, answered, generate, text_of

STORIES = Path(__file__).resolve().parents[2] / "examples" / "assets" / "stories.gguf"


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with new_loop() as loop:
        yield loop


@pytest.fixture(scope="module")
def peer(loop: Loop) -> Iterator[LlamaCppRunner]:
    started = loop.run(LlamaCppRunner.start(STORIES, {"parallel": 2}, name="stories"))
    yield started
    loop.run(started.close())


@pytest.fixture(scope="module")
def model() -> Iterator[ggmodel.LoadedModel]:
    with ggmodel.load(STORIES, gpu_layers=0) as model:
        yield model


def test_its_state(peer: LlamaCppRunner):
    state = peer.state
    assert (state.engine, state.architecture, state.quantization) == ("llama.cpp", "llama", "Q8_0")
    assert (state.context_length, state.parallel, state.vocabulary) == (512, 2, 1536)
    assert state.abilities == ["completion", "chat"] and state.width == 192


def test_texts(loop: Loop, peer: LlamaCppRunner, model: ggmodel.LoadedModel):
    for prompt, ids in ((PROMPT, model.tokenize(PROMPT)), (model.tokenize("A dog"), None)):
        begun, pieces, ended = loop.run(answered(peer, generate(prompt, logprobs=True)))
        expected = model.generate(prompt, temperature=0, max_tokens=16, logprobs=True)
        assert text_of(pieces) == expected.text and ended.reason == "length"
        assert [piece.id for piece in pieces] == expected.tokens
        assert begun.prompt == (ids or prompt)
        found = [piece.token.logprob for piece in pieces if piece.token is not None]
        assert found == pytest.approx(expected.logprobs, abs=0.02)


def test_a_chat(loop: Loop, peer: LlamaCppRunner, model: ggmodel.LoadedModel):
    begun, pieces, ended = loop.run(answered(peer, generate(GREETING, max_tokens=300)))
    assert begun.prompt == model.chat_prompt(GREETING.messages)
    assert text_of(pieces) and ended.reason == "stop"
    _, special, _ = loop.run(answered(peer, generate(GREETING, max_tokens=300, special=True)))
    assert text_of(special) == text_of(pieces) + "<|eos|>"


def test_tokens(loop: Loop, peer: LlamaCppRunner, model: ggmodel.LoadedModel):
    found = loop.run(peer.tokenize(Tokenize("hello<|end|>")))
    assert found.ids == model.tokenize("hello<|end|>")
    assert loop.run(peer.detokenize(Detokenize(found.ids[1:4]))).text == "hello"
    assert loop.run(peer.render(Render(GREETING))).text.endswith("<|assistant|>")
