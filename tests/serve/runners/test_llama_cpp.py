"""Files of other architectures go to llama.cpp; a stand-in answers as llama-server documents."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import (
    ArchitectureError,
    ComputeError,
    ConfigError,
    DeviceLost,
    LoadError,
    PromptError,
    PromptTooLong,
    Unsupported,
)
from ggmodel.gguf_file import DType, MemorySource
from ggmodel.serve.models import ModelPool
from ggmodel.serve.requests import (
    ChatParams,
    Detokenize,
    Embed,
    Event,
    GrammarSpec,
    PromptProgress,
    Rank,
    Render,
    Tokenize,
    Transcribe,
)
from ggmodel.serve.runners import engines
from ggmodel.serve.runners.llama_cpp import LlamaCppRunner, program
from tests.children import import_path
from tests.serve.loops import Loop
from tests.serve.runners import fake_llama_server
from tests.serve.runners.asking import answered, generate, text_of
from tests.serve.runners.test_life import wait_for_end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_gguf: Any) -> Iterator[Path]:
    """A folder with the program and models of an unknown architecture, first on the path."""
    folder: Path = tmp_path_factory.mktemp("llama")
    script = folder / "llama-server"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_llama_server.__file__} "$@"\n')
    script.chmod(0o755)
    keys = {
        "general.architecture": "elsewhere",
        "elsewhere.context_length": 64,
        "tokenizer.ggml.tokens": ["<s>", "a", "<end>"],
        "tokenizer.ggml.token_type": [3, 1, 4],
    }
    weights = {"w": (DType.F32, (8,), np.zeros(8, np.float32).tobytes())}
    for name, more in (("foreign", {}), ("broken", {}), ("ranks", {"elsewhere.pooling_type": 4})):
        write_gguf(folder / f"{name}.gguf", MemorySource({**keys, **more}, weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", import_path())
        yield folder


@pytest.fixture(scope="module")
def foreign(loop: Loop, folder: Path) -> Iterator[LlamaCppRunner]:
    options = {"parallel": 2, "strict": True}
    path = folder / "foreign.gguf"
    started = loop.run(LlamaCppRunner.start(path, options, name="foreign"))
    yield started
    loop.run(started.close())


def test_its_state(foreign: LlamaCppRunner, folder: Path):
    state = foreign.state
    assert program() == str(folder / "llama-server")
    assert (state.engine, state.architecture) == ("llama.cpp", "elsewhere")
    assert (state.context_length, state.parallel, state.width) == (64, 2, 4)
    assert state.kinds == ["image"] and state.abilities == ["completion", "chat", "tools"]
    assert (state.parameters, state.quantization) == (99, "Q4_K - Medium")
    assert state.special_tokens == {"bos_token": "<s>"}
    assert state.metadata["elsewhere.context_length"] == 64


class TestTexts:
    def test_a_text(self, loop: Loop, foreign: LlamaCppRunner):
        begun, pieces, ended = loop.run(answered(foreign, generate("abc", max_tokens=2)))
        assert (begun.prompt, text_of(pieces)) == ([1, 97, 98, 99], "ab")
        assert [piece.id for piece in pieces] == [97, 98] and pieces[0].token is None
        assert (ended.reason, ended.stop) == ("length", None)
        assert (ended.prompt_tokens, ended.completion_tokens, ended.reused_tokens) == (4, 2, 1)
        assert (ended.prompt_seconds, ended.decode_seconds) == (0.01, 0.02)
        assert foreign.state.running == 0

    def test_token_ids_and_texts(self, loop: Loop, foreign: LlamaCppRunner):
        begun, *_ = loop.run(answered(foreign, generate(["ab", 99, "d"])))
        assert begun.prompt == [1, 97, 98, 99, 100]

    def test_log_probabilities(self, loop: Loop, foreign: LlamaCppRunner):
        _, pieces, _ = loop.run(answered(foreign, generate("ab", logprobs=True, top_logprobs=1)))
        token = pieces[0].token
        assert token is not None and (token.logprob, token.data) == (-0.5, b"a")
        assert [one.id for one in token.top] == [97]
        _, pieces, _ = loop.run(answered(foreign, generate("ab", logprobs=True)))
        assert pieces[0].token is not None and pieces[0].token.top == []

    def test_a_stop_string(self, loop: Loop, foreign: LlamaCppRunner):
        *_, ended = loop.run(answered(foreign, generate("ab", stop="zz")))
        assert (ended.reason, ended.stop) == ("stop", "zz")

    def test_a_chat_with_an_image(self, loop: Loop, foreign: LlamaCppRunner):
        parts = [{"type": "image", "image": b"\xff"}, {"type": "text", "text": "x"}]
        chat = ChatParams([{"role": "user", "content": parts}])
        begun, pieces, _ = loop.run(answered(foreign, generate(chat)))
        assert text_of(pieces) == "user:/w==x;" and begun.prompt[-1] == -1
        assert begun.ending == f"user:{fake_llama_server.MARKER}x;"
        parts[0] = {"type": "image", "image": "/etc/passwd"}
        with pytest.raises(PromptError, match="bytes or a data URL"):
            loop.run(answered(foreign, generate(chat)))

    def test_steps_of_a_prefill(self, loop: Loop, foreign: LlamaCppRunner):
        request = generate("abc")
        request.progress = True

        async def steps() -> list[Event]:
            events = [event async for event in foreign.generate(request)]
            return [event for event in events if isinstance(event, PromptProgress)]

        assert loop.run(steps()) == [PromptProgress(4, 1, 4, 0.005)]

    def test_long_prompts(self, loop: Loop, foreign: LlamaCppRunner):
        chat = ChatParams([{"role": "user", "content": f"turn {i}"} for i in range(30)])
        begun, pieces, _ = loop.run(answered(foreign, generate(chat, truncate=True)))
        kept = "".join(f"user:turn {i};" for i in range(27, 30))
        assert text_of(pieces) == kept[:16] and len(begun.prompt) == len(kept) + 1 <= 64 - 16
        text = "".join(map(chr, range(65, 165)))
        request = generate(text, truncate=True, num_keep=4)
        begun, _, _ = loop.run(answered(foreign, request))
        assert begun.prompt == [1, 65, 66, 67, *range(165 - 44, 165)]
        begun, _, _ = loop.run(answered(foreign, generate(text, truncate=True, num_keep=-9)))
        assert begun.prompt == [*range(165 - 48, 165)]
        for asked in (generate(chat), generate(text)):
            with pytest.raises(PromptTooLong) as error:
                loop.run(answered(foreign, asked))
            assert error.value.tokens > error.value.context == 64

    def test_texts_and_ids(self, loop: Loop, foreign: LlamaCppRunner):
        found = loop.run(foreign.tokenize(Tokenize("aba")))
        assert found.ids == [1, 97, 98, 97] and found.pieces == [b"", b"a", b"b", b"a"]
        assert loop.run(foreign.detokenize(Detokenize([97, 98]))).text == "ab"
        chat = ChatParams([{"role": "user", "content": "x"}])
        assert loop.run(foreign.render(Render(chat))).text == "user:x;"

    def test_grammars(self, loop: Loop, foreign: LlamaCppRunner):
        for kind, text in (("gbnf", "root ::= x"), ("choice", '["a"]'), ("json", "")):
            spec = GrammarSpec(kind, text)  # type: ignore[arg-type]
            assert loop.run(answered(foreign, generate("ab", grammar=spec)))[1]
        with pytest.raises(Unsupported, match="lark"):
            loop.run(answered(foreign, generate(grammar=GrammarSpec("lark", "x"))))


class TestRows:
    def test_embeddings(self, loop: Loop, foreign: LlamaCppRunner):
        rows = loop.run(foreign.embed(Embed(["ab", "c"])))
        assert (rows.count, rows.width, rows.tokens) == (2, 4, [3, 2])
        assert struct.unpack("<8f", rows.data)[:4] == pytest.approx((0.6, 0, 0.8, 0))
        rows = loop.run(foreign.embed(Embed(["ab"], dimensions=2, normalize=False)))
        assert struct.unpack("<2f", rows.data) == pytest.approx((3, 0))
        with pytest.raises(ConfigError, match="dimensions"):
            loop.run(foreign.embed(Embed(["ab"], dimensions=5)))

    def test_ranks(self, loop: Loop, folder: Path, foreign: LlamaCppRunner):
        with pytest.raises(Unsupported, match="no head"):
            loop.run(foreign.rank(Rank("a", ["b"])))

        async def ask() -> Any:
            runner = await LlamaCppRunner.start(folder / "ranks.gguf", {}, name="ranks")
            try:
                assert runner.state.abilities == ["rerank"]
                return await runner.rank(Rank("ab", ["abc", "a", "abcd"]))
            finally:
                await runner.close()

        found = loop.run(ask())
        assert found.scores == [3.0, 1.0, 4.0] and found.tokens == [7, 5, 8]


class TestErrors:
    def test_requests(self, loop: Loop, foreign: LlamaCppRunner):
        with pytest.raises(PromptTooLong, match="the prompt has 71 tokens, the context 64"):
            loop.run(answered(foreign, generate("a" * 70)))
        with pytest.raises(PromptError, match="empty"):
            loop.run(answered(foreign, generate([])))
        for request in (
            generate(prompt_logprobs=0),
            generate(ChatParams([], template="x")),
            generate([{"type": "image", "image": b"x"}]),
        ):
            with pytest.raises(Unsupported):
                loop.run(answered(foreign, request))
        with pytest.raises(ConfigError, match="context_shift"):
            loop.run(answered(foreign, generate(context_shift=True)))
        with pytest.raises(Unsupported, match="Whisper"):
            loop.run(foreign.transcribe(Transcribe(b"x")))

    def test_loading(self, loop: Loop, folder: Path):
        with pytest.raises(ComputeError, match="status 3"):
            loop.run(LlamaCppRunner.start(folder / "broken.gguf", {}, name="broken"))
        path = folder / "foreign.gguf"
        with pytest.raises(Unsupported, match="rpc"):
            loop.run(LlamaCppRunner.start(path, {"rpc": ["a:1"]}, name="foreign"))

    def test_a_crash(self, loop: Loop, folder: Path):
        async def ask() -> int:
            runner = await LlamaCppRunner.start(folder / "foreign.gguf", {}, name="foreign")
            try:
                with pytest.raises(DeviceLost, match="foreign"):
                    await answered(runner, generate("ab!"))
                await runner._child.ended.wait()
                assert runner.ended
            finally:
                await runner.close()
            return runner.pid

        wait_for_end(loop.run(ask()))


async def engine_of(folder: Path, engine: str) -> str:
    """The engine that a pool takes for the file."""
    pool = ModelPool({"foreign": str(folder / "foreign.gguf")}, stores=False, engine=engine)
    try:
        async with pool.use("foreign") as runner:
            return runner.state.engine
    finally:
        await pool.close()


@pytest.mark.parametrize("engine", ["auto", "llama.cpp"])
def test_an_unknown_architecture_goes_to_llama_cpp(loop: Loop, folder: Path, engine: str):
    assert loop.run(engine_of(folder, engine)) == "llama.cpp"


@pytest.mark.parametrize(("engine", "installed"), [("ggmodel", "x"), ("auto", None)])
def test_unless_it_may_not_or_is_missing(
    loop: Loop,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    installed: str | None,
):
    async def refuse(*args: Any, **options: Any) -> None:
        raise ArchitectureError("elsewhere is unknown")

    monkeypatch.setattr(engines.GgmodelRunner, "start", refuse)
    monkeypatch.setattr(engines, "program", lambda: installed)
    with pytest.raises(LoadError, match="foreign cannot be loaded: elsewhere"):
        loop.run(engine_of(folder, engine))
