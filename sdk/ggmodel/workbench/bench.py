"""The speed of a model on this machine: prefill, decode, and both at a depth.

Times are those of whole requests to the engine: streamed, sampled greedily, decoded to text. Tests
have the names and the method of llama-bench, so that figures can be compared.
"""

from __future__ import annotations

import statistics
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
from ..runner.engine.scoring import Scoring
from ..runner.requests.generation import Generation


@dataclass(frozen=True)
class Test:
    """A prompt or decoding to measure.

    Attributes:
        prompt: tokens of the prompt; 0 to measure decoding.
        tokens: decoded in each sequence.
        depth: tokens that each sequence holds before.
        sequences: decoded at once.
    """

    __test__ = False  # no test of pytest, despite its name

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
        """Positions of a sequence; decoding starts behind one token read and one sampled."""
        return self.depth + max(self.prompt, self.tokens + 2)


@dataclass(frozen=True)
class BenchResult:
    """A test's result.

    Attributes:
        samples: tokens a second of all sequences together, a sample a repetition.
        microseconds_outside_ggml: a decoded token's time less the time in which ggml computed, the
            median of the repetitions; None for prompts, and if ggml computes in another process.
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
        """Standard deviation of the samples; 0 for a single one."""
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0


@dataclass(frozen=True)
class Setting:
    """The model that is measured, and the machine.

    Attributes:
        type: of the weights that take most bytes.
        devices: name → ggml's description, "" if ggml computes in another process.
        threads: of the CPU. ggml: its version. None unless ggml computes in this process.
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
    """The tests for all combinations; prompts have one sequence, and a zero leaves a test out.

    Raises:
        ConfigError: a number is out of range, or no test is left.
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


def bench(model: LoadedModel, tests: Sequence[Test], repetitions: int = 5) -> Iterator[BenchResult]:
    """Runs tests. The model must be loaded with the largest `Test.context` and as many sequences as
    any test has.

    Tokens are random: the same in every run, different in each repetition. Every test starts with
    empty sequences and, as in llama-bench, an uncounted run: the whole prompt, or one decoded
    token. A depth is filled once; each repetition cuts the sequence back to it.

    Raises:
        ConfigError: no repetitions, or a test needs more than the model was loaded with.
        Unsupported: the model only embeds.
        ComputeError: its logits are NaN.
    """
    _refuse_embedders(model)
    if repetitions < 1:
        raise ConfigError(f"{repetitions} repetitions; there must be at least 1")
    room = model.engine.context_length, len(model.engine.sequences.all)
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
        yield BenchResult(
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
    """Seconds in all, and seconds in which ggml did not compute."""
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
    """A greedy request that no token ends."""

    def __init__(self, model: LoadedModel, prompt: np.ndarray, tokens: int):
        sampler = Sampler(temperature=0)
        super().__init__(model.engine, model.tokenizer, prompt, sampler, max_tokens=tokens, stop=())
        self._eog = frozenset()


def _requests(
    model: LoadedModel, prompts: list[np.ndarray], tokens: int, ended: ExitStack
) -> list[_Endless]:
    """A request for each prompt, begun before any is run, so that all share batches."""
    requests = [_Endless(model, prompt, tokens) for prompt in prompts]
    for request in requests:
        ended.callback(model.engine.cancel, request)
        request.begin()
    return requests


def _begin(
    model: LoadedModel, prompts: list[np.ndarray], tokens: int, ended: ExitStack
) -> Sequence[Iterator[str]]:
    """Starts a stream for each prompt and takes its first token."""
    streams = [request.pieces() for request in _requests(model, prompts, tokens, ended)]
    for stream in streams:
        next(stream)
    return streams


def _run(model: LoadedModel, prompts: list[np.ndarray]) -> None:
    """Computes prompts without decoding."""
    with ExitStack() as ended:
        for request in _requests(model, prompts, 0, ended):
            request.run()


def _random(model: LoadedModel, n: int, random: np.random.Generator) -> np.ndarray:
    return random.integers(0, model.engine.vocabulary, n, np.int32)


def _empty(model: LoadedModel) -> None:
    with ExitStack() as slots:
        for _ in model.engine.sequences.all:
            slots.enter_context(Scoring(model.engine).sequence())


def _computed(model: LoadedModel) -> float | None:
    """Seconds in which ggml has computed so far; None if it computes in another process."""
    return getattr(model.backend, "compute_seconds", None)


def _refuse_embedders(model: LoadedModel) -> None:
    if model.model.only_embeds:
        raise Unsupported(f"{model.source.name} generates nothing, it only embeds")


def setting(model: LoadedModel) -> Setting:
    """Describes the model and the machine."""
    from ..ml.ggml.ggml_backend import GGMLBackend
    from ..native import describe

    infos, memory = model.source.tensors.values(), model.memory
    by_type: Counter[str] = Counter()
    for info in infos:
        by_type[info.dtype.name] += info.nbytes
    descriptions: dict[str, str] = {}
    version = threads = None
    if isinstance(model.backend, GGMLBackend):
        about = describe()
        descriptions, version = about["devices"], about["version"]
        threads = model.backend.hardware.n_threads
    return Setting(
        model=model.source.name,
        architecture=str(model.source.metadata.get("general.architecture")),
        type=max(by_type, key=by_type.__getitem__),
        size_bytes=sum(by_type.values()),
        parameters=sum(info.n_elements for info in infos),
        devices={d.name: descriptions.get(d.name, "") for d in (*memory.gpus, memory.cpu)},
        threads=threads,
        ggml=version,
    )


def peak_memory() -> int:
    """Peak resident bytes of this process, mapped files included."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):  # missing in some sandboxes
            return int(line.split()[1]) * 1024
    from ..platforms import machine

    return machine.peak_memory()
