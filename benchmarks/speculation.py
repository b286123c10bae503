"""Speculative decoding, and plain decoding.

    python benchmarks/speculation.py [FILE.gguf [TOKENS [PAIRS]]]
    python benchmarks/speculation.py FILE.gguf [TOKENS [PAIRS]] --draft DRAFT.gguf
    python benchmarks/speculation.py FILE.gguf [TOKENS [PAIRS]] --draft own

The first form drafts tokens from the prompt (`prompt_lookup`). Without a file it runs on a llama of
135 million random parameters in Q8_0. Answers are dictated, so any model will do: its logits are
computed and sampled as usual, then the next word of the answer is taken instead. Texts have TOKENS
words (300) from docs/, a token each:

    copied     the answer is the prompt
    edited     every 40th word is another one
    continued  a document goes on, with the repetitions of prose
    new        no two words follow each other twice

Results are medians of PAIRS (5) of both ways, in turn. The cost of a batch is in units of a single
token's; the best gain is its size divided by its cost.

The others draft by a smaller model, or by the model's own head, and let the model go on with three
beginnings as it wants to, greedily and at a temperature of 0.8. They also compare the processor
time that both ways took, which other programs on the machine hardly change. `--length N` drafts N
tokens each time, whether that pays or not, for the acceptance rate.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ggmodel
from ggmodel.runner import Sampler, Usage
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.runner.engine.speculation import SIZES
from ggmodel.runner.sampling import Sampling

DOCUMENTS = Path(__file__).parents[1] / "docs"


class Dictated(Sampler):
    """Chooses greedily, and says something else."""

    def __init__(self, answer: list[int]):
        super().__init__(temperature=0)
        self.answer = answer

    def begin(self, prompt: Iterable[int] = (), *, constraint: object = None) -> Sampling:
        return Dictation(self, prompt)


class Dictation(Sampling):
    """Says the answer."""

    def __init__(self, sampler: Dictated, prompt: Iterable[int]):
        super().__init__(sampler, prompt)
        self._answer, self._begin = sampler.answer, len(self.history)

    def sample(self, logits: np.ndarray) -> int:
        super().sample(logits)
        return self._answer[len(self.history) - self._begin]


def words(name: str) -> list[int]:
    """A document as numbers, one for each word."""
    numbers: dict[str, int] = {}
    text = (DOCUMENTS / name).read_text("utf-8")
    return [numbers.setdefault(word, 1000 + len(numbers)) for word in re.findall(r"\w+|\S", text)]


def texts(count: int) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts and answers."""
    document = words("requests.md")
    edited = [40000 + i if i % 40 == 39 else word for i, word in enumerate(document[:count])]
    prose = words("models.md")
    begin = len(prose) // 4
    return {
        "copied": (document[:count], document[:count]),
        "edited": (document[:count], edited),
        "continued": (prose[:begin], prose[begin : begin + count]),
        "new": (document[:count], np.random.default_rng(0).permutation(40000)[:count].tolist()),
    }


def main(file: str | None, tokens: int, pairs: int) -> None:
    if file is None:
        from make_model import SHAPES, make

        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "smollm-135m-q8_0.gguf"
            make(made, "smollm-135m", SHAPES["smollm-135m"], "q8_0")
            main(str(made), tokens, pairs)
        return
    documents = texts(tokens)
    longest = max(len(prompt) + len(answer) for prompt, answer in documents.values())
    with ggmodel.load(file, context_length=longest + SIZES[-1], gpu_layers=0) as model:
        for name, (prompt, answer) in documents.items():
            size = model.engine.vocabulary
            ids = [n % size for n in prompt], [n % size for n in answer]
            print(f"{Path(file).name}, {name}: {compared(model, *ids, pairs)}")
        print(f"cost of a batch: {costs(model, longest)}")


def compared(model: ggmodel.LoadedModel, prompt: list[int], answer: list[int], pairs: int) -> str:
    """Tokens a second with and without draft tokens, and how many of these are accepted."""

    def generate(prompt_lookup: bool) -> Usage:
        return model.generate(
            prompt,
            sampler=Dictated(answer),
            max_tokens=len(answer),
            prompt_lookup=prompt_lookup,
        ).usage

    generate(False)
    usages = [(generate(False), generate(True)) for _ in range(pairs)]
    plain, speculative = (
        np.median([u.tokens_per_second for u in way]) for way in zip(*usages, strict=True)
    )
    ratios = [with_.tokens_per_second / without.tokens_per_second for without, with_ in usages]
    last = usages[-1][1]
    return (
        f"{plain:.1f} tokens/s, with drafts {speculative:.1f}; ratio {np.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}); {last.drafted} draft tokens for "
        f"{last.completion_tokens} tokens, {last.accepted} accepted"
    )


def costs(model: ggmodel.LoadedModel, depth: int, rounds: int = 5) -> str:
    """The time of batches behind `depth` tokens, in units of a single token's."""
    engine, tokens = model.engine, np.arange(depth, dtype=np.int32) % model.engine.vocabulary
    seconds: dict[int, list[float]] = {
        size: [] for size in (1, *SIZES) if size <= engine.batch_size
    }
    with Scoring(engine).sequence() as sequence:

        def compute(first: int, tokens: np.ndarray, start: int) -> None:
            list(Scoring(engine).batches(engine.graphs, sequence, tokens, start, first))

        engine.call(lambda: compute(depth - 1, tokens, 0))
        for i in range(rounds + 1):
            for size, taken in seconds.items():
                began = time.perf_counter()
                engine.call(partial(compute, 0, tokens[:size], depth))
                if i:  # the first one records the graph
                    taken.append(time.perf_counter() - began)
                engine.call(partial(engine.cache.remove, sequence, depth, None))
    one = np.median(seconds[1])
    ratios = {size: float(np.median(taken) / one) for size, taken in seconds.items()}
    best = max(ratios, key=lambda size: size / ratios[size])
    listed = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in ratios.items())
    return f"{listed}; at best {best / ratios[best]:.2f} times as fast"


BEGINNINGS = (
    "Once upon a time there was a little fox named Pip who lived at the edge of a forest.",
    "One windy afternoon, a brave penguin named Oscar was on the way home.",
    "There once was a clever dragon called Luna who lived in a cave by the sea.",
)


def drafted(file: str, draft: str, tokens: int, pairs: int, length: int) -> None:
    """Prints the speed with a draft model beside that without.

    Args:
        length: of all drafts; 0 leaves it to the measurements.
    """
    options: dict[str, Any] = {"context_length": tokens + 64, "gpu_layers": 0}
    names = Path(file).name, draft if draft == "own" else Path(draft).name
    with (
        ggmodel.load(file, **options) as plain,
        ggmodel.load(file, draft=draft, **options) as model,
    ):
        if length:
            force(model, length)
        size = plain.engine.vocabulary
        prompts = [
            plain.tokenize(text) if plain.tokenizer else [n % size for n in text.encode()]
            for text in BEGINNINGS
        ]
        for temperature in (0.0, 0.8):
            ways = [partial(continued, one, prompts, tokens, temperature) for one in (plain, model)]
            for way in ways:
                way()
            rounds = [[way() for way in ways] for _ in range(pairs)]
            clock, processor = (
                sorted(a[part] / b[part] for a, b in rounds) for part in ("seconds", "processor")
            )
            last = rounds[-1][1]
            rate = last["accepted"] / max(1, last["drafted"])
            print(
                f"{names[0]}, drafts by {names[1]}{f' of {length}' * bool(length)}, "
                f"temperature {temperature}: "
                f"{last['drafted']} draft tokens for {last['tokens']} tokens, {rate:.2f} accepted; "
                f"speed {np.median(clock):.2f} ({clock[0]:.2f} to {clock[-1]:.2f}), by processor "
                f"time {np.median(processor):.2f} ({processor[0]:.2f} to {processor[-1]:.2f})"
            )


def force(model: ggmodel.LoadedModel, length: int) -> None:
    """Has every draft be of one length, whether it pays or not."""
    speculation = model.engine.speculation
    _, drafter = speculation.drafters

    def lengths(ready: list[Any]) -> dict[Any, dict[Any, int]]:
        if not speculation.costs.measured(len(ready)):
            return {}
        able = [one for one in ready if one.request and drafter.chances(one) is not None]
        most = {one: min(length, one.request.left - 1) for one in able}
        return {drafter: {one: n for one, n in most.items() if n > 0}}

    speculation._lengths = lengths  # type: ignore[method-assign]


def continued(
    model: ggmodel.LoadedModel, prompts: list[list[int]], tokens: int, temperature: float
) -> dict[str, float]:
    """Seconds and processor time of all answers, without prefill, and counts of their drafts."""
    began, total = time.process_time(), dict[str, float]()
    total |= dict.fromkeys(("seconds", "tokens", "drafted", "accepted"), 0)
    for seed, prompt in enumerate(prompts):
        options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": tokens}
        usage = model.generate(prompt, **options).usage
        total["seconds"] += usage.decode_seconds / max(1, usage.completion_tokens)
        total["tokens"] += usage.completion_tokens
        total["drafted"] += usage.drafted
        total["accepted"] += usage.accepted
    total["processor"] = (time.process_time() - began) / total["tokens"]
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?")
    parser.add_argument("tokens", nargs="?", type=int, default=300)
    parser.add_argument("pairs", nargs="?", type=int, default=5)
    parser.add_argument("--draft", metavar="MODEL")
    parser.add_argument("--length", type=int, default=0, help="of all drafts; default: as it pays")
    args = parser.parse_args()
    if args.draft is None:
        main(args.file, args.tokens, args.pairs)
    else:
        drafted(args.file, args.draft, args.tokens, args.pairs, args.length)
