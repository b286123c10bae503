"""Random schedules of a deterministic model, and the bits of each request alone.

`python -m tests.deterministic.schedules --count 10000` computes that many over all architectures
and types of weights; a few seconds of it are tests. Tiny models have matrices too small for kernels
of our own, so that wider ones, of each type, are among them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.make_model import SHAPES, TYPES, Shape, make

import ggmodel
from ggmodel import DType
from ggmodel.convert.quantize import decode, encode
from ggmodel.errors import Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.runner import LoadedModel, Sampler
from ggmodel.workbench.golden import source_of
from tests.golden.text import CASES, golden_of
from tests.runner.engine.stored import small_blocks

Text = list[int]
WEIGHTS = (
    DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1,
    DType.IQ4_NL, DType.MXFP4,
)  # fmt: skip
"""Types whose blocks fit the rows of goldens."""
CACHES = ("f16", "f32", "q8_0", "q4_0")
LENGTH = 96
"""Context length: prompts and answers together."""
QUESTIONS = 8
"""Prompts that the schedules of a loaded model draw from."""
MOST = 35
"""Schedules of a loaded model."""
COUNT = 10_000
"""Schedules by default."""


def _wide(name: str) -> Shape:
    shape = SHAPES[name]
    few = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
    experts = few if "expert_count" in shape.metadata else {}
    return replace(
        shape, layers=4, width=256, ffn=512, heads=4, kv_heads=2, head_dim=64, vocabulary=1024,
        context=512, metadata=shape.metadata | experts,
    )  # fmt: skip


_SHAPES = {
    name: _wide(name) for name in ("llama-1b", "gemma3-1b", "qwen35-0.8b", "qwen3moe-12-layers")
}
_SHAPES["llama-1b deep"] = replace(_SHAPES["llama-1b"], layers=1, ffn=4352)
WIDE = {f"{name} {kind}": (shape, kind) for name, shape in _SHAPES.items() for kind in TYPES}
"""Models with rows of 256 and matrices of 131,072 weights, for kernels of our own and K-quants;
rows of the deep one are longer than two panels of 2,048."""
NAMES = [*CASES, *WIDE]


class Recorder(Sampler):
    """Draws tokens, and keeps the logits that each was drawn from.

    Attributes:
        rows: float32 [vocabulary] each.
    """

    def __init__(self, seed: int):
        super().__init__(temperature=0.8, top_k=0, top_p=1.0, seed=seed)
        self.rows: list[np.ndarray] = []

    def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        self.rows.append(logits.copy())
        return super().draw(logits, random)


@dataclass
class Wish:
    """A request of a schedule.

    Attributes:
        after: pieces of all requests that are taken before this one begins.
        stops: pieces after which it is given up; None lets it end.
    """

    prompt: Text
    max_tokens: int
    seed: int
    lookup: bool
    after: int
    stops: int | None


def questions(chance: random.Random, vocabulary: int) -> list[tuple[Text, int]]:
    """Random prompts, many of which begin alike, each with the seed of its answer."""

    def tokens(n: int) -> Text:
        return [chance.randrange(vocabulary) for _ in range(n)]

    stems = [tokens(chance.choice([3, 17, 40])) for _ in range(2)]
    made = list[tuple[Text, int]]()
    for _ in range(QUESTIONS):
        stem = chance.choice(stems)
        prompt = stem[: chance.randint(1, len(stem))] + tokens(chance.choice([0, 1, 2, 9]))
        if chance.random() < 0.2:  # repeats itself, so that drafts come
            prompt = (prompt * 3)[: LENGTH // 2]
        made.append((prompt, chance.randrange(9)))
    return made


def wishes(chance: random.Random, pool: Sequence[tuple[Text, int]], count: int) -> list[Wish]:
    """Random requests of prompts and seeds from a pool."""
    made = list[Wish]()
    for _ in range(count):
        prompt, seed = chance.choice(pool)
        stops = chance.randint(1, 3) if chance.random() < 0.2 else None
        lookup, length = chance.random() < 0.4, chance.choice([1, 3, 8, 20])
        made.append(Wish(prompt, length, seed, lookup, chance.choice([0, 0, 2, 6]), stops))
    return made


class Alone:
    """Logits of texts by themselves, on one thread. A text that begins another one has the logits
    of that, so that most are computed once."""

    def __init__(self, model: LoadedModel):
        self._model, self._rows = model, dict[tuple[int, ...], np.ndarray]()

    def __call__(self, text: Text) -> np.ndarray:
        """Logits after every token, float32 [n, vocabulary]."""
        ids = tuple(text)
        for longer, rows in self._rows.items():
            if longer[: len(ids)] == ids:
                return rows[: len(ids)]
        rows = self._rows[ids] = self._model.logits(text)
        return rows


def run(
    model: LoadedModel, asked: Sequence[Wish], chance: random.Random
) -> list[tuple[Wish, Recorder, Text]]:
    """Each request with what it recorded, and its tokens."""
    recorders = [Recorder(one.seed) for one in asked]
    answers = [Text() for _ in asked]
    waiting, streams, taken = list(range(len(asked))), dict[int, Any](), 0
    while waiting or streams:
        due = [i for i in waiting if asked[i].after <= taken or not streams]
        for i in due[: len(model.engine.sequences.all) - len(streams)]:
            waiting.remove(i)
            one = asked[i]
            streams[i] = model.stream(
                one.prompt,
                sampler=recorders[i],
                max_tokens=one.max_tokens,
                prompt_lookup=one.lookup,
            )
        i = chance.choice(sorted(streams))
        piece = next(streams[i], None)
        taken += 1
        if piece is not None and len(answers[i]) < asked[i].max_tokens:  # text held back comes last
            answers[i].append(piece.token)
        if piece is None or len(answers[i]) == asked[i].stops:
            streams.pop(i).close()
    return list(zip(asked, recorders, answers, strict=True))


def differing(
    alone: Callable[[Text], np.ndarray], results: Sequence[tuple[Wish, Recorder, Text]]
) -> int:
    """How many rows of logits have other bits than alone.

    Args:
        alone: a text → its logits after every token, float32 [n, vocabulary].
    """
    wrong = 0
    for wish, recorder, answer in results:
        rows = recorder.rows
        # Logits of draft tokens that were not taken are behind these.
        text = wish.prompt + answer
        want = alone(text)[len(wish.prompt) - 1 :]
        for row, right in zip(rows, want, strict=False):
            wrong += not np.array_equal(row.view(np.int32), right.view(np.int32))
        assert rows and len(rows) >= len(answer)
    return wrong


def settings(chance: random.Random, folder: str) -> dict[str, Any]:
    """Options of loading that must not change bits.

    Args:
        folder: for prefixes on disk.
    """
    return {
        "threads": chance.choice([1, 1, 1, 2]),  # where cores are busy, two spin for long
        "batch_size": chance.choice([2, 5, 16, 512]),
        "parallel": chance.choice([1, 2, 4]),
        "cache_ram": chance.choice([0, 1]),
        "prefix_store": chance.choice([None, folder]),
    }


def check(name: str, seed: int, schedules: int = 1) -> tuple[int, int]:
    """Runs random schedules of a model, one after the other in one loaded model.

    Returns:
        Rows of logits compared, and how many differ.
    """
    chance = random.Random(f"{name} {seed}")
    fixed: dict[str, Any] = {"deterministic": True, "context_length": LENGTH}
    cache = chance.choice(CACHES)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        source = source_for(name, chance, folder)

        def loaded(**options: Any) -> LoadedModel:
            return stack.enter_context(ggmodel.load(source, **fixed, **options))

        try:
            model = loaded(kv_type=cache, **settings(chance, folder))
        except Unsupported:  # blocks do not fit its heads
            cache = "f16"
            model = loaded(kv_type=cache, **settings(chance, folder))
        model.engine.sequences.saved.least = 8
        if model.engine.store is not None:
            small_blocks(model)
        alone = Alone(loaded(kv_type=cache, threads=1))
        pool = questions(chance, model.engine.vocabulary)
        rows = wrong = 0
        for _ in range(schedules):
            results = run(model, wishes(chance, pool, chance.randint(2, 6)), chance)
            rows += sum(len(recorder.rows) for _, recorder, _ in results)
            wrong += differing(alone, results)
    return rows, wrong


def source_for(name: str, chance: random.Random, folder: str) -> Any:
    """The model of a golden in a random type of weights, or a wide model, written into the
    folder."""
    if name not in WIDE:
        dtype = chance.choice(WEIGHTS)
        if not dtype.is_quantized:
            return source_of(golden_of(name), dtype)
        return requantized(source_of(golden_of(name), DType.Q8_0), dtype)
    shape, kind = WIDE[name]
    path = Path(folder, "wide.gguf")
    make(path, name, shape, kind, pool=1 << 18)
    return path


def requantized(source: MemorySource, dtype: DType) -> MemorySource:
    """A model of Q8_0 with another type in its place."""
    if dtype is DType.Q8_0:
        return source
    tensors = dict[str, Any]()
    for name, t in source.tensors.items():
        data, kind = bytes(source.data(name)), t.dtype
        if kind is DType.Q8_0:
            numbers = decode(data, kind, t.n_elements).reshape(t.shape[::-1])
            data, kind = encode(numbers, dtype, name).tobytes(), dtype
        tensors[name] = kind, t.shape, data
    return MemorySource(dict(source.metadata), tensors, source.name)


def jobs(names: Sequence[str], count: int) -> Iterator[tuple[str, int, int]]:
    """Models for that many schedules, each of them once before any comes again: name, a number
    that is 0 the first time, schedules."""
    each = min(MOST, max(1, count // len(names)))
    for i in range(-(-count // each)):
        yield names[i % len(names)], i // len(names), min(each, count - i * each)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="schedules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names of models")
    options = parser.parse_args(arguments)
    names = [name for name in NAMES if options.only in name]
    if not names:
        parser.error(f"no model has {options.only!r} in its name")
    began, done, rows, wrong = time.monotonic(), 0, 0, 0
    for i, (name, turn, schedules) in enumerate(jobs(names, options.count), 1):
        seed = options.seed + turn
        compared, bad = check(name, seed, schedules)
        done, rows, wrong = done + schedules, rows + compared, wrong + bad
        if bad:
            print(f"{name}, seed {seed}: {bad} of {compared} rows differ", flush=True)
        if i % 4 == 0:
            seconds = time.monotonic() - began
            print(f"{done} schedules, {rows} rows, {wrong} differ, {seconds:.0f} s", flush=True)
    print(
        f"{done} schedules, {rows} rows of logits, {wrong} differ, {time.monotonic() - began:.0f} s"
    )
    sys.exit(wrong > 0 or not rows)


if __name__ == "__main__":
    main(sys.argv[1:])
