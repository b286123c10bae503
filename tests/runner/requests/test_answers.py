"""Answers as values, as streams, as batches, and for coroutines."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel import Completion, LoadedModel, Piece, Usage
from ggmodel.errors import (
    BatchError,
    Cancelled,
    ConfigError,
    GraphError,
    PromptError,
    PromptTooLong,
)
from ggmodel.runner import AsyncStream, Stream

STORIES = Path(__file__).parents[3] / "examples/assets/stories.gguf"
PROMPT = "Once upon a time"
QUESTION = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, threads=1, parallel=2, context_length=128) as model:
        yield model


# values


@pytest.mark.parametrize(
    "value",
    [
        Piece("ab", 3, -0.5, [(3, -0.5), (4, -1.0)]),
        Piece("", 0),
        Completion("abc", [1, 2], "stop", Usage(3, 2, 0.1, 0.2), [-1.0, -2.0], [[(1, -1.0)]] * 2),
        Completion("", [], "length", Usage(1, 0, 0.0, 0.0)),
    ],
)
def test_answers_can_be_copied_and_pickled(value: Piece | Completion):
    for twin in (
        copy.copy(value),
        copy.deepcopy(value),
        pickle.loads(pickle.dumps(value)),
        pickle.loads(pickle.dumps(value, 2)),
    ):
        assert type(twin) is type(value)
        assert twin == value
        assert vars(twin) == vars(value)


def test_a_deep_copy_shares_no_lists():
    completion = Completion("abc", [1, 2], "stop", Usage(3, 2, 0.1, 0.2))
    copy.deepcopy(completion).tokens.append(3)
    assert completion.tokens == [1, 2]


def test_the_text_is_a_plain_string(stories: LoadedModel):
    answer = stories.generate(PROMPT, max_tokens=5, temperature=0)
    assert type(answer.text) is str
    assert answer.text == answer


def test_top_logprobs_stay_with_a_completion(stories: LoadedModel):
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    answer = stories.generate(PROMPT, top_logprobs=3, **options)
    pieces = [p for p in stories.stream(PROMPT, top_logprobs=3, **options) if p.top_logprobs]
    assert answer.top_logprobs == [p.top_logprobs for p in pieces]
    assert answer.logprobs == [p.logprob for p in pieces]
    assert [top[0][0] for top in answer.top_logprobs or ()] == answer.tokens
    assert all(len(top) == 3 for top in answer.top_logprobs or ())
    plain = stories.generate(PROMPT, **options)
    assert (plain, plain.tokens, plain.finish_reason) == (answer, answer.tokens, "length")
    assert plain.top_logprobs is None and plain.logprobs is None
    assert stories.generate(PROMPT, logprobs=True, **options).logprobs == answer.logprobs


def test_a_model_describes_itself(stories: LoadedModel):
    assert re.fullmatch(
        r"<LoadedModel .*stories\.gguf: llama, 2\.3 million parameters, Q8_0, 2\.\d MiB, on CPU, "
        r"context 128>",
        repr(stories),
    )


def test_a_closed_model_describes_itself_too(source):
    model = ggmodel.load(source, context_length=64)
    model.close()
    assert repr(model).endswith("closed, context 64>")


# streams


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_tells_its_end(stories: LoadedModel, chat: bool):
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    if chat:
        stream = stories.chat(QUESTION, stream=True, **options)
    else:
        stream = stories.stream(PROMPT, **options)
    assert isinstance(stream, Stream)
    assert stream.finish_reason is None
    next(stream)
    assert stream.finish_reason is None
    rest = list(stream)
    assert stream.finish_reason == "length"
    assert stream.usage.completion_tokens == 4
    assert len(rest) >= 3


def test_a_stream_that_stops_says_so(stories: LoadedModel):
    stream = stories.stream(PROMPT, max_tokens=50, temperature=0, stop=[" "])
    assert "".join(stream).count(" ") == 0
    assert stream.finish_reason == "stop"


def test_a_stream_closes_with_its_block(stories: LoadedModel):
    with stories.stream(PROMPT, max_tokens=50) as stream:
        next(stream)
    stories.engine.call(lambda: None)  # after what was posted before
    assert all(slot.free for slot in stories.engine.sequences.all)
    with pytest.raises(StopIteration):
        next(stream)
    assert stream.finish_reason is None
    with stories.stream(PROMPT, max_tokens=2) as stream:
        assert len(list(stream)) >= 2
    assert list(stream) == []
    assert stream.finish_reason == "length"


def test_a_stream_that_fails_has_no_reason(source):
    model = ggmodel.load(source, context_length=64)
    stream = model.stream([1, 2, 3])
    next(stream)
    model.close()
    with pytest.raises(GraphError, match="closed"):
        list(stream)
    assert list(stream) == []
    assert stream.finish_reason is None


def test_coroutines_answer_alike(stories: LoadedModel):
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "top_logprobs": 1}

    async def all_of_it() -> tuple[Completion, Completion, str, object]:
        whole, answer = await asyncio.gather(
            stories.agenerate(PROMPT, **options), stories.achat(QUESTION, **options)
        )
        stream = await stories.achat(QUESTION, stream=True, **options)
        assert isinstance(stream, AsyncStream) and isinstance(answer, Completion)
        text = "".join([piece async for piece in stream])
        return whole, answer, text, (stream.finish_reason, stream.usage.completion_tokens)

    whole, answer, text, end = asyncio.run(all_of_it())
    expected = stories.generate(PROMPT, **options)
    assert (whole, whole.tokens, whole.top_logprobs) == (
        expected,
        expected.tokens,
        expected.top_logprobs,
    )
    assert answer == text == stories.chat(QUESTION, **options)
    assert end == ("length", 6)


def test_leaving_an_async_stream_frees_its_sequence(stories: LoadedModel):
    async def begin() -> None:
        async with stories.astream(PROMPT, max_tokens=100) as stream:
            await anext(stream)

    asyncio.run(begin())
    stories.engine.call(lambda: None)  # after what was posted before
    assert all(slot.free for slot in stories.engine.sequences.all)


# batches


def test_several_texts_are_no_prompt(stories: LoadedModel):
    for call in (stories.generate, stories.logits, stories.length):
        with pytest.raises(PromptError, match=r"these are 2 texts.*batch\(prompts\)"):
            call(["Once upon", "One day"])
    with pytest.raises(PromptError, match=r"not of list; batch\(prompts\)"):
        stories.generate([[1, 2], [3]])
    one = stories.generate(["Once upon a time"], max_tokens=3, temperature=0)
    assert one == stories.generate(PROMPT, max_tokens=3, temperature=0)


def test_a_batch_answers_each_in_order(stories: LoadedModel):
    # the best token always leads by > 0.1: batches of Q8_0 round otherwise, as processors do
    prompts = [f"Once upon a time there was a {who}" for who in ("fox", "boy", "hen", "cow")]
    prompts = [*prompts, stories.tokenize(prompts[0])]
    shares: list[float] = []
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    answers = stories.batch(iter(prompts), progress=shares.append, **options)
    assert answers == [stories.generate(p, **options) for p in prompts]
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert stories.batch([]) == []


def test_a_batch_keeps_all_sequences_busy(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    run = type(stories.engine.graphs).run

    def counted(self, step, *args):
        sizes.append(len(set(step.sequences.tolist())))
        return run(self, step, *args)

    monkeypatch.setattr(type(stories.engine.graphs), "run", counted)
    stories.batch([PROMPT + "s" * i for i in range(40)], max_tokens=20, seed=1)
    assert sizes.count(2) > 0.8 * len(sizes)


def test_a_prompt_that_fails_loses_no_other_answer(stories: LoadedModel):
    prompts = [PROMPT, "word " * 500, PROMPT, [10**9]]
    with pytest.raises(BatchError, match=r"2 of 4 prompts failed, first prompts\[1\]: .* 128") as e:
        stories.batch(prompts, max_tokens=3, temperature=0)
    answer = stories.generate(PROMPT, max_tokens=3, temperature=0)
    assert e.value.completions == [answer, None, answer, None]
    assert list(e.value.errors) == [1, 3]
    assert all(isinstance(error, PromptError) for error in e.value.errors.values())


def test_what_no_prompt_can_have_fails_at_once(stories: LoadedModel):
    wrong: list[dict[str, Any]] = [{"temp": 1}, {"top_p": 3}, {"progress": True}]
    for options in wrong:
        with pytest.raises(ConfigError):
            stories.batch([PROMPT], **options)
    for prompts in (PROMPT, 3, b"abc"):
        with pytest.raises(PromptError, match="a list of prompts"):
            stories.batch(prompts)  # type: ignore[arg-type]


def test_whoever_watches_a_batch_can_end_it(stories: LoadedModel):
    def stop(share: float) -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        stories.batch([PROMPT] * 40, progress=stop, max_tokens=100, context_shift=True, seed=1)
    assert not [t for t in threading.enumerate() if t.name.startswith("ggmodel-batch")]
    stories.engine.call(lambda: None)  # after what was posted before
    assert all(slot.free for slot in stories.engine.sequences.all)


# room for an answer


@pytest.mark.parametrize(
    ("options", "room"),
    [({}, 32), ({"max_tokens": 5}, 5), ({"max_tokens": 90}, 32), ({"context_shift": True}, 0)],
)
def test_a_truncated_prompt_leaves_room(stories: LoadedModel, options: dict[str, Any], room: int):
    long = list(range(10, 300))
    request = stories.request(long, truncate=True, num_keep=3, **options)
    assert request.prompt.tolist() == [10, 11, 12, *long[-(128 - room - 3) :]]
    fits = list(range(10, 10 + 128 - room))
    assert stories.request(fits, truncate=True, **options).prompt.tolist() == fits


def test_a_truncated_prompt_is_answered(stories: LoadedModel):
    answer = stories.generate("a fox ran. " * 400, truncate=True, max_tokens=5, temperature=0)
    assert answer.usage.completion_tokens == 5


# many requests, one consumer


class TestTaking:
    def test_steps_of_the_prefill(self):
        with ggmodel.load(STORIES, threads=1, context_length=256, batch_size=64) as model:
            prompt, came = list(range(10, 160)), threading.Semaphore(0)

            def steps(prompt: list[int], **options: Any) -> list[int]:
                request = model.request(prompt, max_tokens=3, temperature=0)
                request.watch(came.release, **options)
                while (pieces := request.take(9)) is not None:
                    if not pieces:
                        assert came.acquire(timeout=20)
                told = request.take_prefills()
                assert request.take_prefills() == []
                assert [seconds for _, seconds in told] == sorted(seconds for _, seconds in told)
                assert request.usage.reused_tokens == (told[0][0] if told else 0)
                return [computed for computed, _ in told]

            assert steps(prompt, prefill=True) == [0, 64, 128, 150]
            assert steps(prompt[:100] + prompt[:90], prefill=True) == [100, 164, 190]
            assert steps([5, 6, 7]) == []

    def test_pieces_without_waiting(self, stories: LoadedModel):
        came = threading.Semaphore(0)
        requests = [stories.request(PROMPT, max_tokens=20, seed=seed) for seed in range(3)]
        expected = [stories.generate(PROMPT, max_tokens=20, seed=seed) for seed in range(3)]
        for request in requests:
            request.watch(came.release)
        texts, open_ = [""] * 3, {0, 1, 2}
        while open_:
            assert came.acquire(timeout=20)
            for i in [*open_]:
                pieces = requests[i].take(4)
                while pieces:
                    assert len(pieces) <= 4
                    texts[i] += "".join(pieces)
                    pieces = requests[i].take(4)
                if pieces is None:
                    open_.remove(i)
                    assert requests[i].take(1) is None
        assert texts == expected
        assert all(0 <= r.usage.queue_seconds <= r.usage.prompt_seconds for r in requests)

    def test_who_takes_none_of_an_endless_answer_holds_it_up(self, stories: LoadedModel):
        request = stories.request(PROMPT, context_shift=True)
        request.watch(lambda: None)
        stories.generate(PROMPT, max_tokens=60)
        assert len(request.tokens) <= 9
        request.cancel()

    def test_it_is_begun_once(self, stories: LoadedModel):
        request = stories.request(PROMPT, max_tokens=1)
        request.watch(lambda: None)
        with pytest.raises(GraphError, match="once"):
            request.run()

    def test_the_end(self, stories: LoadedModel):
        answer = stories.request(PROMPT, temperature=0, stop=["zzz", " was"])
        answer.run()
        assert (answer.ended_by, answer.stop) == (None, " was")


# long texts


def test_a_text_is_refused_by_its_length_before_it_is_encoded(
    stories: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = stories.prompts.vocabulary()
    most = 128 * tokenizer.longest
    encoded: list[int] = []
    encode = type(tokenizer).encode

    def watched(self: Any, text: str, **options: Any) -> list[int]:
        encoded.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(type(tokenizer), "encode", watched)
    for prompt in ("a" * (most + 1), ["a" * most, 5, "a"]):
        with pytest.raises(PromptTooLong, match=f"more than 128 tokens .* can hold .{most:,}."):
            stories.generate(prompt)
    with pytest.raises(PromptTooLong, match=r"the prompt has .* characters"):
        stories.chat([{"role": "user", "content": "a" * most}])
    with pytest.raises(PromptError, match=r"text 0: the prompt has .* characters"):
        stories.embed(["a" * (most + 1)])
    assert max(encoded, default=0) <= most


def test_a_long_text_is_shortened_before_it_is_encoded(stories: LoadedModel):
    words = [f"word{i % 97} " for i in range(20_000)]
    text = "".join(words)
    every = stories.tokenize(text)
    assert len(text) > 3 * 128 * stories.prompts.vocabulary().longest
    ids = stories.prompts.read(text, True, keep=10, room=20).tolist()
    assert ids == every[:10] + every[-98:]
