"""A request's logits have the same bits alone and in any company, for every architecture."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.make_model import TYPES, type_of

import ggmodel
from ggmodel import DType
from ggmodel.errors import Unsupported
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import nmse, source_of
from tests.deterministic import replays, schedules
from tests.golden.text import CASES, golden_of
from tests.kvcache import statespace
from tests.runner.engine.test_schedules import CAPACITY, MAX_BATCH, SEQUENCES, Schedule, alone


@pytest.mark.parametrize("name", CASES)
def test_requests_get_the_bits_that_they_get_alone(name: str):
    rows, wrong = schedules.check(name, 0)
    assert rows > 1
    assert wrong == 0, f"{wrong} of {rows} rows differ"


@pytest.mark.parametrize(
    "name",
    ["llama-1b q4_K", "llama-1b deep q2_0", "qwen35-0.8b q8_0", "qwen3moe-12-layers iq4_XS"],
)
def test_kernels_of_our_own(name: str):
    rows, wrong = schedules.check(name, 0, 4)
    assert rows > 1
    assert wrong == 0, f"{wrong} of {rows} rows differ"


@pytest.mark.parametrize("name", ["llama/plain_gqa", "jamba/published", "gemma3-1b q6_K"])
def test_answers_in_company_are_replayed(name: str, tmp_path: Path):
    replays.write(name, 0, tmp_path)
    assert replays.replay(name, 0, tmp_path) == (replays.TOGETHER, replays.TOGETHER)


def test_every_model_takes_part_by_default():
    jobs = list(schedules.jobs(schedules.NAMES, schedules.COUNT))
    assert {name for name, *_ in jobs} == set(schedules.NAMES)
    assert sum(number for *_, number in jobs) == schedules.COUNT
    assert {name for name, *_ in replays.jobs(replays.COUNT)} == set(schedules.NAMES)


def test_wide_models_have_all_types_of_weights():
    types = {type_of("blk.0.ffn_up.weight", (256, 512), kind, 4) for kind in TYPES}
    numbers = {dtype for dtype in DType if dtype.is_float or dtype.is_quantized}
    assert types == numbers - {DType.F64, DType.Q8_1, DType.Q8_K}  # no types of weights


@pytest.mark.parametrize("count", ["0", "3"])
def test_receipts_that_are_missing_are_a_failure(tmp_path: Path, count: str):
    with pytest.raises(SystemExit) as ended:
        replays.main(["--written", str(tmp_path), "--count", count])
    assert ended.value.code


@pytest.mark.parametrize("name", CASES)
def test_logits_are_as_near_to_transformers(name: str):
    golden = golden_of(name)
    with ggmodel.load(source_of(golden), kv_type="f32", deterministic=True) as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < 1e-6


MODELS = [
    "llama/plain_gqa",
    "mistral/window",
    "qwen2/layer_types",
    "llama4/interleaved",
    "ss",
    "sa",
]


def load(name: str) -> LoadedModel:
    options: dict[str, Any] = {"context_length": 1024, "parallel": 3, "deterministic": True}
    if "/" not in name:
        return ggmodel.load(statespace.source(name), models=statespace.MODELS, **options)
    return ggmodel.load(source_of(golden_of(name)), **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_the_cache_changes_no_bit(name: str, seed: int):
    """Shared prefixes, cut and moved positions, steps that are taken back."""
    with load(name) as model:
        engine = model.engine

        def compare() -> None:
            with ExitStack() as stack:
                apart = Scoring(engine).graphs
                together = stack.enter_context(apart(engine.model, SEQUENCES, CAPACITY, MAX_BATCH))
                own = stack.enter_context(apart(engine.model, 1, CAPACITY, MAX_BATCH))
                schedule = Schedule(together, engine.vocabulary, seed)
                schedule.run(60)
                for log, got in schedule.results[-1::-7]:
                    want = alone(own, rechunked(log, random.Random(seed)))
                    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))

        engine.call(compare)


def rechunked(log: list[Any], chance: random.Random) -> list[Any]:
    """Neighbouring texts in other pieces."""
    made, text = list[Any](), list[int]()
    for entry in [*log, None]:
        if isinstance(entry, list):
            text += entry
            continue
        while text:
            n = chance.choice([1, 5, MAX_BATCH])
            made.append(text[:n])
            text = text[n:]
        if entry is not None:
            made.append(entry)
    return made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "reference"}, "leave out backend"),
        ({"gpu_layers": -1}, "leave out gpu_layers"),
        ({"flash_attention": "off"}, "leave out flash_attention"),
        ({"rpc": "localhost:1"}, "leave out rpc"),
        ({"override_tensor": {"x": "CPU"}}, "leave out override_tensor"),
    ],
)
def test_what_has_no_order_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(Unsupported, match=message):
        ggmodel.load(source_of(golden_of(MODELS[0])), deterministic=True, **options)


def test_a_shifted_context_is_computed_again():
    golden = golden_of(MODELS[0])
    prompt = golden.prompt.tolist()
    given = {"deterministic": True, "context_length": 32, "kv_type": "f16"}
    answers = []
    for parallel in (1, 3):
        with ggmodel.load(source_of(golden), parallel=parallel, **given) as model:
            for _ in range(2):
                many = [prompt[:20]] * parallel
                shift = {"context_shift": True, "max_tokens": 60, "temperature": 0.9, "seed": 3}
                answers += [one.tokens for one in model.batch(many, **shift)]
    assert all(len(one) == 60 and one == answers[0] for one in answers)
