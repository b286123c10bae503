"""Whole models on the reference backend, against transformers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import ggmodel
from ggmodel import DType
from ggmodel.cli import app
from ggmodel.workbench.golden import nmse, source_of
from ggmodel.workbench.routers import routed
from tests.conftest import ROOT
from tests.golden.files import GREEDY, Golden
from tests.golden.text import CASES, golden_of

FILE = ROOT / "examples" / "assets" / "stories.gguf"
EXPECTED = json.loads(FILE.with_suffix(".json").read_text())

# Every result is rounded to float32, as transformers' are: it is 3e-13 away from float64 itself.
EXACT = 1e-10
# Checkpoints have the experts transposed: they were rounded in other blocks.
OTHER_BLOCKS = {"gpt_oss": 5e-4}


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return golden_of(request.param)


@pytest.mark.parametrize("batch_size", [512, 5], ids=["whole", "in parts"])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_logits(golden: Golden, flash_attention: str, batch_size: int):
    with ggmodel.load(
        source_of(golden),
        backend="reference",
        kv_type="f32",
        flash_attention=flash_attention,
        batch_size=batch_size,
    ) as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < EXACT


@pytest.mark.parametrize(
    ("dtype", "flash_attention"), [(DType.F16, "off"), (DType.Q8_0, "on")], ids=["f16", "q8_0"]
)
def test_rounded_weights(golden: Golden, flash_attention: str, dtype: DType):
    """Activations are not rounded, so only the weights' rounding remains."""
    want = golden.logits_f16 if dtype is DType.F16 else golden.logits_q8_0
    with ggmodel.load(
        source_of(golden, dtype),
        backend="reference",
        kv_type="f32",
        flash_attention=flash_attention,
    ) as model:
        bound = OTHER_BLOCKS.get(golden.architecture, EXACT) if dtype is DType.Q8_0 else EXACT
        with routed(model, golden.routers):  # a token near a tie may go to another expert
            assert nmse(model.logits(golden.prompt.tolist()), want) < bound
        done = model.generate(golden.prompt.tolist(), max_tokens=GREEDY, temperature=0)
    assert done.tokens == golden.greedy.tolist()


def test_the_embedded_model_tells_the_same_stories():
    with ggmodel.load(FILE, backend="reference", context_length=256) as model:
        for case in EXPECTED["greedy"]:
            done = model.generate(case["prompt_ids"], temperature=0, max_tokens=20)
            assert done.tokens == case["continuation_ids"][:20]


def test_the_command_line_takes_the_backend():
    prompt = EXPECTED["greedy"][0]["prompt"]
    arguments = ["run", str(FILE), prompt, "--backend", "reference", "--max-tokens", "3"]
    result = CliRunner().invoke(app, [*arguments, "--temperature", "0"])
    assert result.exit_code == 0, result.output
    with ggmodel.load(FILE) as model:
        told = str(model.generate(prompt, temperature=0, max_tokens=3))
    assert told.strip() in result.output
