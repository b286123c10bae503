"""How fast a model is on this machine: prompts, decoding, and both at a depth.

What is measured is what a user pays for: requests to the engine, streamed, with greedy sampling and
text. Tests are named as in llama-bench and measured alike, so that figures can be compared.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np

from ..errors import ConfigError, Unsupported
from ..runner import LoadedModel, Sampler
from ..runner.requests.generation import Generation


@dataclass(frozen=True)
class Test:
    """Either a prompt or decoding.

    Attributes:
        prompt: tokens of the prompt; 0 where decoding is measured.
        tokens: decoded of each sequence.
        depth: tokens that each sequence holds before.
        sequences: decoded at once.
    """

    __test__ = False  # pytest looks at names

    prompt: int = 0
    tokens: int = 0
    depth: int = 0
    sequences: int = 1

    @property
    def name(self) -> str:
        """ "pp512", "tg128 @ d2048", "tg128 x8"."""
        what = f"pp{self.prompt}" if self.prompt else f"tg{self.tokens}"
        many = f" x{self.sequences}" if self.sequences > 1 else ""
        return what + many + (f" @ d{self.depth}" if self.depth else "")

    @property
    def context(self) -> int:
        """Positions that a sequence takes; before decoding, a token is read and one sampled."""
        return self.depth + max(self.prompt, self.tokens + 2)


@dataclass(frozen=True)
class Measured:
    """A test's result.

    Attributes:
        samples: tokens a second, of all sequences together, of each repetition.
        microseconds_outside_ggml: of the time of a decoded token that in which ggml did not
            compute, the median of the repetitions; None for prompts, and where ggml computes in
            another process.
    """

    test: Test
    samples: list[float]
    microseconds_outside_ggml: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """The mean."""
        return statistics.fmean(self.samples)

    @property
    def stddev(self) -> float:
        """Of the samples; 0 if there is one."""
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0


@dataclass(frozen=True)
class Setting:
    """What is measured, and on what.

    Attributes:
        type: of the weights that take most bytes.
        devices: what computes, and as what ggml knows it where it does so in this process.
        threads: of the CPU. ggml: its version. None where another process, or none of it, computes.
    """

    model: str
    architecture: str
    type: str
    size_bytes: int
    parameters: int
    devices: dict[str, str]
    threads: int | None
    ggml: str | None


def plan(
    prompts: Iterable[int], tokens: Iterable[int], depths: Iterable[int], sequences: Iterable[int]
) -> list[Test]:
    """All combinations; prompts are of one sequence. Zero prompts or tokens leave that test out.

    Raises:
        ConfigError: a number is negative, no sequences, or nothing is left.
    """
    tests: list[Test] = []
    prompts, tokens, sequences = list(prompts), list(tokens), list(sequences)
    for depth in depths:
        tests += [Test(prompt=n, depth=depth) for n in prompts if n]
        pairs = product((n for n in tokens if n), sequences)
        tests += [Test(tokens=n, depth=depth, sequences=s) for n, s in pairs]
    if not tests:
        raise ConfigError("there is nothing to measure; give a prompt or tokens above 0")
    for test in tests:
        if min(test.prompt, test.tokens, test.depth) < 0 or test.sequences < 1:
            raise ConfigError(
                f"{test.name}: prompts, tokens and depths are 0 or more, sequences at least 1"
            )
    return tests


def first_token(model: LoadedModel) -> float:
    """Seconds from a prompt of one token to the token that follows it."""
    _refuse_embedders(model)
    began = perf_counter()
    with ExitStack() as ended:
        _begin(model, [np.zeros(1, np.int32)], 1, ended)
        return perf_counter() - began


def bench(model: LoadedModel, tests: Sequence[Test], repetitions: int = 5) -> Iterator[Measured]:
    """Runs the tests, which the model must have been loaded for: with a `context_length` of the
    largest `Test.context` and as many sequences.

    Tokens are random, the same every time and others in each repetition. Every test starts with
    empty sequences; like llama-bench it runs once before it counts, a prompt wholly, decoding with
    one token. A depth is filled once, and cut back to before each repetition.

    Raises:
        ConfigError: no repetitions, or a test needs more than the model was loaded with.
        Unsupported: the model generates nothing.
        ComputeError: its logits are NaN.
    """
    _refuse_embedders(model)
    if repetitions < 1:
        raise ConfigError(f"{repetitions} repetitions; there must be at least 1")
    room = model.engine.context_length, len(model.engine.slots.all)
    for test in tests:
        if test.context > room[0] or test.sequences > room[1]:
            raise ConfigError(
                f"{test.name} needs {test.sequences} sequences of {test.context} positions, and "
                f"the model was loaded with {room[1]} of {room[0]}"
            )
    random = np.random.default_rng(0)
    for test in tests:
        _empty(model)
        run = _prompt if test.prompt else _decode
        shorter = Test(test.prompt, min(test.tokens, 1), sequences=test.sequences)
        run(model, shorter, [np.empty(0, np.int32)] * test.sequences, random)
        held = [_random(model, test.depth, random) for _ in range(test.sequences)]
        times = []
        for repetition in range(repetitions):
            if repetition == 0 or not test.depth:
                _empty(model)
            if test.depth:
                _run(model, held)
            times.append(run(model, test, held, random))
        count = test.prompt or test.tokens * test.sequences
        outside = [1e6 * other / count for _, other in times if other is not None]
        yield Measured(
            test,
            [count / seconds for seconds, _ in times],
            statistics.median(outside) if outside else None,
        )


def _prompt(
    model: LoadedModel, test: Test, held: list[np.ndarray], random: np.random.Generator
) -> tuple[float, None]:
    prompt = np.concatenate([held[0], _random(model, test.prompt, random)])
    began = perf_counter()
    _run(model, [prompt])
    return perf_counter() - began, None


def _decode(
    model: LoadedModel, test: Test, held: list[np.ndarray], random: np.random.Generator
) -> tuple[float, float | None]:
    """Seconds in all, and those in which ggml did not compute."""
    prompts = [np.concatenate([tokens, _random(model, 1, random)]) for tokens in held]
    with ExitStack() as ended:
        streams = _begin(model, prompts, test.tokens + 1, ended)
        began, computed = perf_counter(), _computed(model)
        for _ in range(test.tokens):
            for stream in streams:
                next(stream)
        seconds, now = perf_counter() - began, _computed(model)
    if computed is None or now is None:
        return seconds, None
    return seconds, seconds - (now - computed)


class _Endless(Generation):
    """A request that no token ends, greedy; it may begin before somebody iterates."""

    def __init__(self, model: LoadedModel, prompt: np.ndarray, tokens: int):
        sampler = Sampler(temperature=0)
        super().__init__(model.engine, model.tokenizer, prompt, sampler, max_tokens=tokens, stop=())
        self._eog = frozenset()
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            super().begin()


def _begin(
    model: LoadedModel, prompts: list[np.ndarray], tokens: int, ended: ExitStack
) -> Sequence[Iterator[str]]:
    """Streams of so many tokens, of which the first has come: all are in the same batches."""
    requests = [_Endless(model, prompt, tokens) for prompt in prompts]
    for request in requests:
        ended.callback(model.engine.cancel, request)
        request.begin()
    streams = [request.pieces() for request in requests]
    for stream in streams:
        next(stream)
    return streams


def _run(model: LoadedModel, prompts: list[np.ndarray]) -> None:
    """Computes prompts, nothing behind them."""
    requests = [_Endless(model, prompt, 0) for prompt in prompts]
    with ExitStack() as ended:
        for request in requests:
            ended.callback(model.engine.cancel, request)
            request.begin()
        for request in requests:
            request.run()


def _random(model: LoadedModel, n: int, random: np.random.Generator) -> np.ndarray:
    return random.integers(0, model.engine.vocabulary, n, np.int32)


def _empty(model: LoadedModel) -> None:
    """Makes all sequences forget what they hold."""
    with ExitStack() as slots:
        for _ in model.engine.slots.all:
            slots.enter_context(model.engine.apart.slot())


def _computed(model: LoadedModel) -> float | None:
    """Seconds in which ggml has computed so far; None where it does so in another process."""
    return getattr(model.backend, "compute_seconds", None)


def _refuse_embedders(model: LoadedModel) -> None:
    if model.model.only_embeds:
        raise Unsupported(f"{model.source.name} generates nothing, it only embeds")


def setting(model: LoadedModel) -> Setting:
    """What a model is, and what it runs on."""
    from ..ml.ggml.ggml_backend import GGMLBackend
    from ..native import describe

    infos, memory = model.source.tensors.values(), model.memory
    by_type: Counter[str] = Counter()
    for info in infos:
        by_type[info.dtype.name] += info.nbytes
    known: dict[str, str] = {}
    version = threads = None
    if isinstance(model.backend, GGMLBackend):
        about = describe()
        known, version = about["devices"], about["version"]
        threads = model.backend.hardware.n_threads
    return Setting(
        model=model.source.name,
        architecture=str(model.source.metadata.get("general.architecture")),
        type=max(by_type, key=by_type.__getitem__),
        size_bytes=sum(by_type.values()),
        parameters=sum(info.n_elements for info in infos),
        devices={d.name: known.get(d.name, "") for d in (*memory.gpus, memory.cpu)},
        threads=threads,
        ggml=version,
    )


def peak_memory() -> int:
    """The most bytes of this process that were in memory at a time, mapped files included."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):  # which not every sandbox tells
            return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
