"""Random schedules of requests over eight slots, each compared with the request run alone."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import ggmodel
from ggmodel.errors import GraphError, PromptError
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.sequences import common_prefix
from ggmodel.workbench.golden import source_of
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong
from tests.golden.files import load_golden
from tests.runner.engine.alike import slots_are_free

Request = dict[str, Any]

_GOLDENS = (("llama", "plain_gqa"), ("qwen2", "layer_types"), ("mistral", "window"))
_CONTEXT = 48
# Sums of the same numbers in the same order as far as possible; see tests/runner/engine.
_EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
_FATES = ("whole", "whole", "stream", "slow", "cancel", "drop", "closed elsewhere", "time out")
_VOCABULARY = 64
_LONGEST = 20  # tokens of an answer, but of one that forgets the beginning of its context
_PATIENCE = 20.0  # seconds for a schedule
_REMEMBERED = 3000  # answers of requests alone
# Logits of about 1 in float32, from sums of some hundred products; 3e-7 was seen.
_ROUNDING = 1e-5
_TRIES = 100  # of other roundings, to see whether a text may part there
_COLLECT = 25  # cases between two collections of garbage
_WRONG_PROMPTS: list[list[int]] = [[], [_VOCABULARY], [-1, 2], [1] * (_CONTEXT + 1), [2**40]]


class Requests(Fuzzer):
    """Submits, cancels, times out, shifts, forks and closes, from a dozen threads."""

    name = "requests"
    unit = "requests"
    weight = 3.0
    patience = 60.0
    memory = 4 << 30  # address space alone: the stacks and arenas of threads
    legal = ()

    def open(self) -> None:
        self._sources = [source_of(load_golden(*golden)) for golden in _GOLDENS]
        self._shared = [self._load(i, 8) for i in range(len(_GOLDENS))]
        self._alone = [self._load(i, 1) for i in range(len(_GOLDENS))]
        self._known: dict[Any, list[int]] = {}
        self._cases = 0
        gc.freeze()  # what has been imported is not looked through again

    def _load(self, number: int, parallel: int) -> LoadedModel:
        options = {"context_length": _CONTEXT, "batch_size": 24, "parallel": parallel}
        return ggmodel.load(self._sources[number], **options, **_EXACT)

    def make(self, random: Random) -> dict[str, Any]:
        requests = [
            {"prompt": _prompt(random), "fate": random.choice(_FATES), **_drawn(random)}
            for _ in range(random.choice([4, 12, 40, 100]))
        ]
        closes = random.random() < 0.05
        return {
            "model": random.randrange(len(_GOLDENS)),
            "threads": random.choice([1, 3, 8, 12]),
            "requests": requests,
            "close after": random.choice([0.0, 0.002, 0.01, 0.05]) if closes else None,
        }

    def run(self, case: dict[str, Any], note: Note) -> None:
        number, after = case["model"], case["close after"]
        self._cases += 1
        if self._cases % _COLLECT == 0:
            gc.collect()
        if after is None:
            shared = self._shared[number]
            answers = Schedule(shared, case, False).run()
            _check_slots(shared)
        else:
            shared = self._load(number, 8)
            schedule = Schedule(shared, case, True)
            threading.Timer(after, shared.close).start()
            answers = schedule.run()
            shared.close()
        self.counts["requests"] += len(case["requests"])
        for i, tokens in sorted(answers.items()):
            if _is_wrong(case["requests"][i]["prompt"]):
                continue  # closed, or timed out, before it was looked at
            self._compare(number, case["requests"][i], tokens)

    def _compare(self, number: int, request: Request, got: list[int]) -> None:
        prompt, options = request["prompt"], request["options"]
        want = self._answer(number, prompt, options)[: request["length"]]
        if request["cut"] or options["context_shift"]:
            # A shift keeps states that have seen what was forgotten, or computes them again.
            want = want[: len(got)]
            got = got[: len(want)]
        self.counts["compared tokens"] += len(want)
        if got == want:
            return
        if not self._part_at_a_tie(number, request, got, want):
            raise Wrong("a text that differs", request, got, want)
        self.counts["ties"] += 1

    def _part_at_a_tie(
        self, number: int, request: Request, got: list[int], want: list[int]
    ) -> bool:
        """Whether rounding decides where two texts part: with logits changed by no more,
        the same random number draws the other token."""
        n = common_prefix(got, want)
        if n == min(len(got), len(want)):
            return False
        before = [*request["prompt"], *want[:n]]
        kept = ("temperature", "seed", "repeat_penalty")
        options = {k: v for k, v in request["options"].items() if k in kept}
        sampler = ggmodel.Sampler(**options)
        logits = self._alone[number].logits(before)[-1]
        noise = np.random.default_rng(0)
        for _ in range(_TRIES):
            near = logits + noise.uniform(-_ROUNDING, _ROUNDING, len(logits)).astype(np.float32)
            draws = np.random.default_rng(options.get("seed", 0))
            draws.random(n)  # one number was used for each token before
            if sampler.draw(sampler.adjust(near, before), draws) == got[n]:
                return True
        return False

    def _answer(self, number: int, prompt: list[int], options: dict[str, Any]) -> list[int]:
        """The tokens of a request alone, as many as fit into the context or are ever asked for."""
        kept = {k: v for k, v in options.items() if k not in ("context_shift", "prompt_lookup")}
        key = (number, tuple(prompt), *kept.items())
        if key not in self._known:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            most = min(_LONGEST, _CONTEXT - len(prompt))
            self._known[key] = self._alone[number].generate(prompt, max_tokens=most, **kept).tokens
        return self._known[key]

    def close(self) -> None:
        for model in (*self._shared, *self._alone):
            model.close()


def _prompt(random: Random) -> list[int]:
    """One that has come before, or goes on where another one ended or was cut; now and then a new
    one, or one to be refused."""
    kind = random.random()
    if kind < 0.03:
        return random.choice(_WRONG_PROMPTS)
    if kind < 0.15:
        return [random.randrange(_VOCABULARY) for _ in range(random.choice([1, 5, 12, 30, 47]))]
    text = random.choice(_TEXTS)
    return text[: random.choice([1, 2, 9, 17, 18, 30])]


def _is_wrong(prompt: list[int]) -> bool:
    return not 0 < len(prompt) <= _CONTEXT or not all(0 <= t < _VOCABULARY for t in prompt)


def _texts() -> list[list[int]]:
    """Texts of which many begin alike."""
    random = Random("texts")
    found: list[list[int]] = [[]]
    for _ in range(40):
        before = random.choice(found)[: random.choice([0, 4, 12, 25])]
        found.append([*before, *(random.randrange(_VOCABULARY) for _ in range(30 - len(before)))])
    return found[1:]


_TEXTS = _texts()


def _drawn(random: Random) -> Request:
    options: dict[str, Any] = {"temperature": 0, "context_shift": random.random() < 0.15}
    if random.random() < 0.25:
        options |= {"temperature": random.choice([0.7, 1.5]), "seed": random.randrange(3)}
    if random.random() < 0.1:
        options["repeat_penalty"] = 1.3
    if random.random() < 0.2:
        options["prompt_lookup"] = True
    length = random.choice([0, 1, 2, 3, 8, _LONGEST] + [70] * options["context_shift"])
    return {"options": options, "length": length, "cut": False, "after": random.randrange(6)}


class Schedule:
    """The requests of a case, distributed over threads.

    Args:
        closes: the model is closed meanwhile.
    """

    def __init__(self, model: LoadedModel, case: dict[str, Any], closes: bool):
        self._model, self._closes = model, closes
        self._requests: list[Request] = case["requests"]
        self._count: int = case["threads"]
        self._answers: dict[int, list[int]] = {}
        self._errors: list[BaseException] = []

    def run(self) -> dict[int, list[int]]:
        """Runs all; returns the tokens of those that gave any, by number.

        Raises:
            Wrong: a request hangs, or ends with an error that it should not.
        """
        end = time.monotonic() + _PATIENCE
        threads = [threading.Thread(target=self._serve, args=(n,)) for n in range(self._count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise Wrong("a request that hangs", f"{sum(t.is_alive() for t in threads)} threads")
        for error in self._errors:
            raise error
        return self._answers

    def _serve(self, first: int) -> None:
        try:
            for i in range(first, len(self._requests), self._count):
                self._one(i, self._requests[i])
        except BaseException as error:
            self._errors.append(error)

    def _one(self, i: int, request: Request) -> None:
        wrong = _is_wrong(request["prompt"])
        try:
            tokens: list[int] = []
            self._answers[i] = tokens
            request["cut"] = not _FATE[request["fate"]](self._model, request, tokens)
        except PromptError:
            del self._answers[i]
            if not wrong and not self._closes:
                raise
            return
        except GraphError:
            request["cut"] = True
            if not self._closes:
                raise
        if wrong and not self._closes and request["fate"] != "time out":
            raise Wrong("a prompt that should be refused", request)


def _asked(request: Request) -> dict[str, Any]:
    return {**request["options"], "max_tokens": request["length"]}


# Ways of a request: each adds tokens, and returns whether these are all.


def _whole(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    tokens += model.generate(request["prompt"], **_asked(request)).tokens
    return True


def _stream(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    with model.stream(request["prompt"], **_asked(request)) as stream:
        tokens += [piece.token for piece in stream]
    return True


def _slow(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    for piece in model.stream(request["prompt"], **_asked(request)):
        tokens.append(piece.token)
        time.sleep(0.0005 * request["after"])
    return True


def _cancel(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    stream = model.stream(request["prompt"], **_asked(request))
    for piece in stream:
        tokens.append(piece.token)
        if len(tokens) > request["after"]:
            stream.close()
            return False
    return True


def _drop(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    stream = model.stream(request["prompt"], **_asked(request))
    for piece in stream:
        tokens.append(piece.token)
        if len(tokens) > request["after"]:
            return False  # the last reference to the stream goes
    return True


def _closed_elsewhere(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    stream = model.stream(request["prompt"], **_asked(request))
    timer = threading.Timer(0.002 * request["after"], stream.close)
    timer.start()
    tokens += [piece.token for piece in stream]
    timer.join()
    return False


def _time_out(model: LoadedModel, request: Request, tokens: list[int]) -> bool:
    async def take() -> None:
        async with model.astream(request["prompt"], **_asked(request)) as stream:
            async for piece in stream:
                tokens.append(piece.token)

    try:
        asyncio.run(asyncio.wait_for(take(), 0.002 * request["after"] + 0.001))
    except asyncio.TimeoutError:
        return False
    return True


_FATE: dict[str, Callable[[LoadedModel, Request, list[int]], bool]] = {
    "whole": _whole, "stream": _stream, "slow": _slow, "cancel": _cancel, "drop": _drop,
    "closed elsewhere": _closed_elsewhere, "time out": _time_out,
}  # fmt: skip


def _check_slots(model: LoadedModel) -> None:
    end = time.monotonic() + 5
    while True:
        try:
            return slots_are_free(model)
        except AssertionError as error:
            if time.monotonic() > end:
                raise Wrong("a lost slot", str(error)) from None
            time.sleep(0.002)
