"""A runner's answers are those of the model in this process."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from PIL import Image

import ggmodel
from ggmodel.concurrency import until_set
from ggmodel.errors import (
    ConfigError,
    GrammarError,
    PromptError,
    PromptTooLong,
    TemplateError,
    Unsupported,
)
from ggmodel.ml import RunnerAtPort, get_devices_from_runner
from ggmodel.serve.requests import (
    ChatParams,
    Detokenize,
    Embed,
    Event,
    Finished,
    GrammarSpec,
    PromptProgress,
    Rank,
    Render,
    Request,
    Started,
    TokenEvent,
    Tokenize,
    Transcribe,
)
from ggmodel.serve.runners.connections import Pools
from ggmodel.serve.runners.engines import GgmodelRunner
from ggmodel.serve.runners.protocol import MethodCall, pack
from tests.serve.loops import Loop
from tests.serve.runners.asking import GREETING, PROMPT, answered, generate, text_of
from tests.serve.runners.conftest import ASSETS, STORIES

END = "<|end|>"


def test_its_state(runner: GgmodelRunner, model: ggmodel.LoadedModel):
    state = runner.state
    assert (state.engine, state.path, state.architecture) == ("ggmodel", STORIES, "llama")
    assert (state.context_length, state.parallel, state.vocabulary) == (512, 8, 1536)
    assert state.abilities == ["completion", "chat", "embedding"] and state.kinds == []
    assert (state.quantization, state.width, state.trained_context) == ("Q8_0", 192, 512)
    assert state.special_tokens["eos_token"] == "<|eos|>" and "assistant" in state.template
    assert state.metadata["llama.block_count"] == 5
    assert not any(key.startswith("tokenizer.ggml.tokens") for key in state.metadata)
    assert state.nbytes == model.memory.size()
    assert (state.running, state.waiting) == (0, 0)


def test_devices_over_its_port(runner: GgmodelRunner):
    found = get_devices_from_runner(runner.port)
    assert found and {d.library for d in found} >= {"CPU"}
    at_port = RunnerAtPort(runner.port)
    assert [d.device_id for d in get_devices_from_runner(at_port)] == [d.device_id for d in found]
    assert at_port.get_active_device_ids() == [] and not at_port.has_exited()


class TestTexts:
    def test_the_same_tokens(self, loop: Loop, runner: GgmodelRunner, model: Any):
        begun, pieces, ended = loop.run(answered(runner, generate(max_tokens=40)))
        expected = model.generate(PROMPT, temperature=0, max_tokens=40)
        assert text_of(pieces) == expected.text
        assert [piece.id for piece in pieces] == expected.tokens
        assert begun.prompt == model.tokenize(PROMPT) and begun.ending == ""
        assert (ended.reason, ended.completion_tokens) == (expected.finish_reason, 40)
        assert ended.prompt_tokens == expected.usage.prompt_tokens
        assert ended.prompt_seconds > 0 and ended.decode_seconds > 0

    def test_eight_at_once(self, loop: Loop, runner: GgmodelRunner, model: Any):
        prompts = [f"There were {n} apples in" for n in range(8)]

        async def ask() -> list[str]:
            asked = [answered(runner, generate(p, max_tokens=30)) for p in prompts]
            return [text_of(pieces) for _, pieces, _ in await asyncio.gather(*asked)]

        found = loop.run(ask())
        assert found == [model.generate(p, temperature=0, max_tokens=30).text for p in prompts]
        assert runner.state.running == 0

    def test_answers_that_nobody_takes_keep_no_slot(self, loop: Loop, runner: GgmodelRunner):
        on = {"logit_bias": {1: -100.0, 4: -100.0}, "max_tokens": 300}

        async def ask() -> str:
            waiting = [runner.generate(generate(**on)) for _ in range(8)]
            for one in waiting:
                await one.__anext__()
            _, pieces, _ = await answered(runner, generate(max_tokens=4))
            for one in waiting:
                await one.aclose()
            return text_of(pieces)

        assert loop.run(ask(), 30)

    def test_a_chat(self, loop: Loop, runner: GgmodelRunner, model: Any):
        begun, pieces, ended = loop.run(answered(runner, generate(GREETING, max_tokens=300)))
        expected = model.chat(GREETING.messages, temperature=0, max_tokens=300)
        assert text_of(pieces) == expected.text and ended.reason == expected.finish_reason
        assert begun.ending.endswith(f"{END}<|assistant|>")

    def test_an_answer_that_has_begun_goes_on(self, loop: Loop, runner: GgmodelRunner):
        begun = {"role": "assistant", "content": "The fox "}
        chat = ChatParams([*GREETING.messages, begun], continues=True)
        assert loop.run(runner.render(Render(chat))).text.endswith("<|assistant|>The fox ")
        _, pieces, _ = loop.run(answered(runner, generate(chat, max_tokens=3)))
        assert pieces
        with pytest.raises(PromptError, match="role 'assistant'"):
            loop.run(runner.render(Render(ChatParams(GREETING.messages, continues=True))))

    def test_the_token_that_ends_an_answer(self, loop: Loop, runner: GgmodelRunner):
        _, plain, ended = loop.run(answered(runner, generate(GREETING, max_tokens=400)))
        _, special, _ = loop.run(answered(runner, generate(GREETING, max_tokens=400, special=True)))
        assert ended.reason == "stop"
        assert text_of(special) == text_of(plain) + "<|eos|>"

    def test_a_stop_string(self, loop: Loop, runner: GgmodelRunner):
        _, pieces, ended = loop.run(answered(runner, generate(stop=["zzz", " was"])))
        assert (ended.reason, ended.stop) == ("stop", " was") and " was" not in text_of(pieces)

    def test_held_back_text_has_no_token(self, loop: Loop, runner: GgmodelRunner, model: Any):
        expected = model.generate(PROMPT, temperature=0, max_tokens=8)
        stop = expected.text[-3:] + "€"
        _, pieces, _ = loop.run(answered(runner, generate(max_tokens=8, stop=[stop])))
        assert text_of(pieces) == expected.text
        assert [piece.id for piece in pieces] == [*expected.tokens, -1]

    def test_log_probabilities(self, loop: Loop, runner: GgmodelRunner, model: Any):
        _, pieces, _ = loop.run(answered(runner, generate(logprobs=True, top_logprobs=2)))
        expected = model.generate(PROMPT, temperature=0, max_tokens=16, top_logprobs=2)
        tokens = [piece.token for piece in pieces if piece.token is not None]
        found = [token.logprob or 0.0 for token in tokens]
        np.testing.assert_allclose(found, expected.logprobs, atol=1e-4)
        assert [[one.id for one in t.top] for t in tokens] == [
            [id for id, _ in top] for top in expected.top_logprobs
        ]
        assert b"".join(t.data for t in tokens).decode() == expected.text

    @pytest.mark.parametrize("most", [0, 1, 4])
    def test_log_probabilities_of_the_prompt(
        self, loop: Loop, runner: GgmodelRunner, model: Any, most: int
    ):
        request = generate(max_tokens=most, prompt_logprobs=1, logprobs=True)
        begun, pieces, ended = loop.run(answered(runner, request))
        assert begun.tokens is not None and begun.tokens[0].logprob is None
        found = [token.logprob or 0.0 for token in begun.tokens[1:]]
        np.testing.assert_allclose(found, model.score(PROMPT), atol=1e-4)
        assert [token.id for token in begun.tokens] == begun.prompt
        assert all(len(token.top) == 1 for token in begun.tokens[1:])
        expected = model.generate(PROMPT, temperature=0, max_tokens=most, logprobs=True)
        assert [piece.id for piece in pieces] == expected.tokens
        assert ended.completion_tokens == most and ended.reason == "length"

    def test_a_grammar(self, loop: Loop, runner: GgmodelRunner):
        spec = GrammarSpec("choice", '["red", "green"]')
        _, pieces, ended = loop.run(answered(runner, generate(grammar=spec)))
        assert text_of(pieces) in ("red", "green") and ended.reason == "stop"

    def test_a_grammar_of_llama_cpp(self, loop: Loop, runner: GgmodelRunner):
        spec = GrammarSpec("gbnf", 'root ::= ("red" | "green") mark{2}\nmark ::= [!?]')
        _, pieces, ended = loop.run(answered(runner, generate(grammar=spec)))
        assert text_of(pieces).rstrip("!?") in ("red", "green") and ended.reason == "stop"

    def test_the_use_of_the_cache_is_told(self, loop: Loop, runner: GgmodelRunner):
        loop.run(answered(runner, generate(max_tokens=2)))
        *_, ended = loop.run(answered(runner, generate(max_tokens=2)))
        assert ended.reused_tokens > 0

    def test_an_answer_longer_than_the_context_comes_whole(
        self, loop: Loop, runner: GgmodelRunner, model: Any
    ):
        """It waits for its reader, a few tokens ahead, and goes on whenever there is room."""
        options = {"max_tokens": 600, "context_shift": True, "logit_bias": {1: -100.0, 4: -100.0}}

        async def slowly() -> list[int]:
            ids: list[int] = []
            async for event in runner.generate(generate(**options)):
                if isinstance(event, TokenEvent):
                    ids.append(event.id)
                    if len(ids) == 100:
                        await asyncio.sleep(0.2)
            return ids

        found = loop.run(slowly(), 60)
        assert found == model.generate(PROMPT, temperature=0, **options).tokens
        assert len(found) == 600

    def test_tokens_and_back(self, loop: Loop, runner: GgmodelRunner, model: Any):
        found = loop.run(runner.tokenize(Tokenize(f"hello{END}", pieces=True)))
        assert found.ids == model.tokenize(f"hello{END}")
        assert b"".join(found.pieces[1:]).decode() == f"hello{END}"
        plain = loop.run(runner.tokenize(Tokenize(END, add_special=False, special=False)))
        assert len(plain.ids) > 1
        assert loop.run(runner.detokenize(Detokenize(found.ids[1:]))).text == f"hello{END}"
        chat = loop.run(runner.tokenize(Tokenize(GREETING)))
        assert chat.ids == model.chat_prompt(GREETING.messages)


class TestRows:
    def test_embeddings(self, loop: Loop, runner: GgmodelRunner, model: Any):
        texts: list[str | list[int]] = ["a dog", "the sun is high"]
        rows = loop.run(runner.embed(Embed(texts, pooling="last")))
        found = np.frombuffer(rows.data, "<f4").reshape(rows.count, rows.width)
        np.testing.assert_allclose(
            found, model.embed(texts, pooling="last", normalize=True), atol=1e-5
        )
        assert rows.tokens == [len(model.tokenize(text)) for text in texts]

    def test_their_first_dimensions(self, loop: Loop, runner: GgmodelRunner, model: Any):
        rows = loop.run(runner.embed(Embed(["a dog"], dimensions=8)))
        found = np.frombuffer(rows.data, "<f4")
        whole = model.embed(["a dog"])[0, :8]
        np.testing.assert_allclose(found, whole / np.linalg.norm(whole), atol=1e-5)
        for wrong in (0, 193):
            with pytest.raises(ConfigError, match="dimensions"):
                loop.run(runner.embed(Embed(["a dog"], dimensions=wrong)))

    def test_texts_that_are_too_long(self, loop: Loop, runner: GgmodelRunner):
        with pytest.raises(PromptError, match="context 512"):
            loop.run(runner.embed(Embed(["dog " * 600])))
        rows = loop.run(runner.embed(Embed(["dog " * 600], truncate=True)))
        assert rows.tokens == [512]

    def test_nothing_ranks(self, loop: Loop, runner: GgmodelRunner):
        with pytest.raises(Unsupported, match="no head that ranks"):
            loop.run(runner.rank(Rank("a", ["b"])))


WRONG: list[tuple[Request, type[Exception]]] = [
    (generate([]), PromptError),
    (generate("dog " * 600), PromptError),
    (generate([99999]), PromptError),
    (generate(max_tokens=-1), ConfigError),
    (generate(no_such=1), ConfigError),
    (generate(images=["/etc/passwd"]), ConfigError),
    (generate(grammar=GrammarSpec("json_schema", "{")), GrammarError),
    (generate(grammar=GrammarSpec("gbnf", "root ::= x")), GrammarError),
    (generate(ChatParams([])), PromptError),
    (generate(ChatParams(GREETING.messages, template="{{ nothing.at.all }}")), TemplateError),
    (generate("\ud800"), PromptError),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_errors_keep_their_class(loop: Loop, runner: GgmodelRunner, case: int):
    request, error = WRONG[case]
    with pytest.raises(error):
        loop.run(answered(runner, request))
    assert loop.run(answered(runner, generate()))[1]


def png() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.open(ASSETS / "scene.png").save(file, "PNG")
    return file.getvalue()


def test_steps_of_a_prefill(loop: Loop, runner: GgmodelRunner):
    async def asked(progress: bool) -> list[Event]:
        request = structs.replace(generate("A fox. " * 60), progress=progress)
        return [event async for event in runner.generate(request)]

    begun, *events = loop.run(asked(True))
    ended = events[-1]
    assert isinstance(begun, Started) and isinstance(ended, Finished)
    steps = [event for event in events if isinstance(event, PromptProgress)]
    assert events[: len(steps)] == steps and len(steps) > 1  # before the first token
    assert {(one.total, one.reused) for one in steps} == {(len(begun.prompt), ended.reused_tokens)}
    processed = [one.processed for one in steps]
    assert processed[0] == ended.reused_tokens and processed[-1] == len(begun.prompt)
    assert processed == sorted({*processed})
    assert not any(isinstance(event, PromptProgress) for event in loop.run(asked(False)))


def turns(count: int) -> list[dict[str, Any]]:
    """A conversation of so many turns, and a question."""
    roles = ("user", "assistant")
    said = [{"role": role, "content": f"the dog {i}"} for i in range(count) for role in roles]
    return [*said, *GREETING.messages]


def test_the_oldest_turns_of_a_chat_are_left_out(
    loop: Loop, runner: GgmodelRunner, model: ggmodel.LoadedModel
):
    request = generate(ChatParams(turns(100)), truncate=True)
    begun, pieces, _ = loop.run(answered(runner, request))
    kept = model.fitting(turns(100), max_tokens=16)
    assert begun.prompt == model.chat_prompt(kept) and len(kept) < 200
    assert text_of(pieces) == model.chat(kept, temperature=0, max_tokens=16)
    long = [{"role": "user", "content": "dog " * 900}]
    for messages, truncate in ((turns(100), False), ([*turns(9), *long], True)):
        asked = generate(ChatParams(messages), truncate=truncate)
        with pytest.raises(PromptTooLong) as error:
            loop.run(answered(runner, asked))
        assert error.value.tokens == model.length(model.chat_prompt(long if truncate else messages))
        assert error.value.context == 512


@pytest.fixture(scope="module")
def eyes(loop: Loop) -> Iterator[GgmodelRunner]:
    started = loop.run(GgmodelRunner.start(str(ASSETS / "shapes.gguf"), {"gpu_layers": 0}))
    yield started
    loop.run(started.close())


class TestItems:
    @staticmethod
    def asked(image: Any) -> ChatParams:
        parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
        return ChatParams([{"role": "user", "content": parts}])

    def test_an_image(self, loop: Loop, eyes: GgmodelRunner):
        data = png()
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        with ggmodel.load(ASSETS / "shapes.gguf", gpu_layers=0) as model:
            expected = str(model.chat(self.asked(data).messages, temperature=0, max_tokens=16))
            ids = model.length(model.chat_prompt(self.asked(data).messages))
        for image in (data, url):
            begun, pieces, ended = loop.run(answered(eyes, generate(self.asked(image))))
            assert text_of(pieces) == expected and ended.prompt_tokens == ids
            assert -1 in begun.prompt and min(begun.prompt) == -1
        counted = loop.run(eyes.tokenize(Tokenize(self.asked(data))))
        assert len(counted.ids) == ids and -1 in counted.ids
        assert eyes.state.kinds == ["image"]

    def test_paths_are_never_opened(self, loop: Loop, eyes: GgmodelRunner):
        path = str(ASSETS / "scene.png")
        parts = [{"type": "image", "image": path}]
        for prompt in (self.asked(path), [*parts, "What is it?"]):
            with pytest.raises(PromptError, match="bytes or a data URL"):
                loop.run(answered(eyes, generate(prompt)))


def test_a_transcript(loop: Loop, whisper_folder: Path):
    from tests.audio.sounds import pcm, tones

    sound = pcm(tones(0.5))

    async def ask() -> Any:
        runner = await GgmodelRunner.start(str(whisper_folder), {"gpu_layers": 0})
        try:
            assert "transcription" in runner.state.abilities
            with pytest.raises(ConfigError, match="temperature"):
                await runner.transcribe(Transcribe(sound, temperature=-1.0))
            return await runner.transcribe(Transcribe(sound, prompt="Red dogs.", temperature=1e-9))
        finally:
            await runner.close()

    found = loop.run(ask())
    with ggmodel.load(whisper_folder, gpu_layers=0) as model:
        expected = ggmodel.transcribe(model, sound, prompt="Red dogs.")
    assert (found.text, found.language) == (expected.text, expected.language)
    assert found.seconds == pytest.approx(0.5, abs=0.01)


def test_texts_wait_neither_for_pictures_nor_for_long_texts():
    """Every thread for those, and for what is computed apart, stands still."""
    pools, ended = Pools(), threading.Event()
    picture = [{"role": "user", "content": [{"type": "image", "image": b"x"}]}]
    own = ChatParams([{"role": "user", "content": "a"}], template="{{ messages }}")
    slow: list[tuple[str, Any]] = [
        ("generate", Request(ChatParams(picture))),
        ("tokenize", Tokenize(ChatParams([{"role": "user", "content": "", "images": [b"x"]}]))),
        ("generate", Request(["a", {"type": "image", "image": b"x"}])),
        ("generate", Request("a" * 100_000)),
        ("generate", Request("a", prompt_logprobs=1)),
        ("embed", Embed(["a"])),
        ("render", Render(own)),
        ("tokenize", Tokenize(own)),
        ("generate", Request(own)),
        ("generate", Request("a", grammar=GrammarSpec("regex", "a+"))),
    ]
    try:
        for method, request in slow * 8:
            pools.submit(MethodCall(1, method, pack(request)), request, lambda: until_set(ended))
        for method, request in (
            ("generate", Request("a")),
            ("generate", Request(["a", 5])),
            ("generate", Request(GREETING)),
            ("tokenize", Tokenize("a")),
            ("detokenize", Detokenize([1])),
            ("render", Render(GREETING)),
        ):
            pools.submit(MethodCall(1, method, pack(request)), request, lambda: None).result(30)
    finally:
        ended.set()


def test_tokens_are_not_told_of_endless_texts(loop: Loop, runner: GgmodelRunner):
    text = "a" * ((1 << 18) + 1)
    with pytest.raises(PromptTooLong, match="serve_tokenize_characters"):
        loop.run(runner.tokenize(Tokenize(text)))
    with pytest.raises(PromptError, match=r"the prompt has .* characters"):
        loop.run(runner.embed(Embed([text])))
    rows = loop.run(runner.embed(Embed([text], truncate=True)))
    assert rows.tokens == [512]


def test_pictures_of_a_request_have_a_limit_together(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_LIMIT_REQUEST_PIXELS", "5000")
    shapes = loop.run(GgmodelRunner.start(str(ASSETS / "shapes.gguf"), {"gpu_layers": 0}))
    data = io.BytesIO()
    Image.new("RGB", (50, 50)).save(data, "PNG")
    part = {"type": "image", "image": data.getvalue()}
    try:
        for n in (2, 3, 2):  # each request has its own sum
            chat = ChatParams(
                [{"role": "user", "content": [part] * n + [{"type": "text", "text": "?"}]}]
            )
            if n == 2:
                loop.run(answered(shapes, generate(chat, max_tokens=1)))
                continue
            with pytest.raises(PromptError, match=r"7,500 pixels of pictures.*request_pixels"):
                loop.run(answered(shapes, generate(chat, max_tokens=1)))
    finally:
        loop.run(shapes.close())
