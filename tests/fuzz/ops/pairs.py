"""Valid ops with random operands: ggml beside the reference, alone and from two threads."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded_by
from hypothesis import strategies as st

from ggmodel.errors import Error
from ggmodel.ml import OPS, FlashAttention
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong
from tests.fuzz.ops.program import Program
from tests.fuzz.ops.world import World
from tests.ml.harness import backend_of
from tests.ml.reference.comparison import Computed, compare, compute
from tests.ml.reference.recipes import RECIPES, Recipe

_JOIN = 20.0  # seconds for the work of a thread
_DRAWING = settings(
    max_examples=1,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def recipes(op: str, seed: int, count: int) -> list[Recipe]:
    """Random recipes of an op; the same for the same seed."""
    found: list[Recipe] = []

    @seeded_by(seed)
    @settings(_DRAWING, max_examples=count)
    @given(data=st.data())
    def draw(data: Any) -> None:
        found.append(RECIPES[op](data.draw, op))

    draw()
    return found


class Pairs(Fuzzer):
    """Recipes of one op, computed by ggml and by the reference."""

    name = "ops-equal"
    unit = "ops"
    weight = 1.0
    legal = ()

    def open(self) -> None:
        self._ggml, self._reference = backend_of(), backend_of(name="reference")

    def make(self, random: Random) -> dict[str, Any]:
        return {"op": random.choice(list(OPS)), "seed": random.getrandbits(32), "count": 8}

    def run(self, case: dict[str, Any], note: Note) -> None:
        op = case["op"]
        note(op)
        for recipe in recipes(op, case["seed"], case["count"]):
            results = compute(self._ggml, recipe, op)
            self.counts["ops"] += 1
            expected = compute(self._reference, recipe, op)
            _compare(f"another result of {op}", op, recipe, results, expected)

    def close(self) -> None:
        self._ggml.close()
        self._reference.close()


def _compare(title: str, op: str, recipe: Recipe, results: Computed, expected: Computed) -> None:
    try:
        compare(op, recipe, results, expected)
    except AssertionError as error:
        raise Wrong(title, op, str(error)[:2000]) from None


class Threads(Fuzzer):
    """One backend and several threads: each gets its own results, or is told that it may not."""

    name = "ops-threads"
    unit = "calls"
    weight = 1.5
    patience = 60.0
    memory = 6 << 30

    def open(self) -> None:
        self._world = World()
        self._backends = [backend_of(), backend_of(flash=FlashAttention.ON, threads=2)]
        self._reference = backend_of(name="reference")

    def make(self, random: Random) -> dict[str, Any]:
        return {
            "kind": random.choice(["values", "programs"]),
            "backend": random.randrange(2),
            "ops": [[random.choice(list(OPS)), random.getrandbits(32)] for _ in range(4)],
            "programs": [random.getrandbits(48) for _ in range(12)],
            "threads": random.choice([2, 2, 3, 4]),
        }

    def run(self, case: dict[str, Any], note: Note) -> None:
        note(f"{case['kind']} {case['ops']} {case['programs']}")
        if case["kind"] == "values":
            self._values(case)
        else:
            self._programs(case)

    def _values(self, case: dict[str, Any]) -> None:
        work = [(op, one) for op, seed in case["ops"] for one in recipes(op, seed, 3)]
        backend = self._backends[case["backend"]]
        made: list[tuple[str, Recipe, Computed]] = []

        def compute_all() -> None:
            for op, recipe in work:
                made.append((op, recipe, compute(backend, recipe, op)))

        _together([compute_all] * case["threads"])
        self.counts["calls"] += len(made)
        expected = {id(one): compute(self._reference, one, op) for op, one in work}
        for op, recipe, results in made:
            title = "another result beside other threads"
            _compare(title, op, recipe, results, expected[id(recipe)])

    def _programs(self, case: dict[str, Any]) -> None:
        backend = self._world.backends[case["backend"]]
        tallies = [Counter[str]() for _ in range(case["threads"])]

        def run_some(thread: int) -> None:
            for number in case["programs"][thread :: case["threads"]]:
                Program(self._world, number, lambda _: None, tallies[thread], backend).run()

        _together([lambda n=n: run_some(n) for n in range(case["threads"])])
        for tally in tallies:
            self.counts.update(tally)

    def close(self) -> None:
        for backend in (*self._backends, self._reference):
            backend.close()
        self._world.close()


def _together(work: list[Any]) -> None:
    """Runs functions at the same time, each in a thread of its own. Legal errors are no matter.

    Raises:
        Exception: the first other one.
    """
    errors: list[BaseException] = []

    def guarded(function: Any) -> None:
        try:
            function()
        except Error:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_JOIN)
        if thread.is_alive():
            raise Wrong("a thread that hangs")
    if errors:
        raise errors[0]
