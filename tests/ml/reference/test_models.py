"""Whole models on the reference backend, against transformers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import ggmodel
from ggmodel import DType
from ggmodel.cli import app
from ggmodel.workbench.golden import nmse, source_of
from tests.conftest import ROOT
from tests.golden.files import Golden
from tests.golden.text import CASES, golden_of, loaded

FILE = ROOT / "examples" / "assets" / "stories.gguf"
EXPECTED = json.loads(FILE.with_suffix(".json").read_text())

# Every result is rounded to float32, as transformers' are: it is 3e-13 away from float64 itself.
EXACT = 1e-10
# A file's numbers are rounded a second time where they are not those of the checkpoint, in the same
# order. That moves the logits at most about as far again as the first rounding did.
AGAIN = 2
# Checkpoints have the experts, all matrices, or the keys of latent attention transposed; columns of
# heads that are narrower than a block change places: they were rounded in other blocks.
OTHER_BLOCKS = {"gpt_oss", "gpt2", "kimi_linear", "olmo_hybrid/rope"}
# Files hold products of weights and multipliers. In Q8_0 the blocks are the same, and only their
# scales, in F16, are rounded again.
MULTIPLIED = {"falcon_h1"}


def bound_of(name: str, golden: Golden, dtype: DType) -> float:
    """The NMSE that a model with rounded weights stays below."""
    names, in_f16 = {golden.architecture, name}, nmse(golden.logits_f16, golden.logits)
    if not MULTIPLIED.isdisjoint(names):
        return AGAIN * in_f16
    if dtype is DType.Q8_0 and not OTHER_BLOCKS.isdisjoint(names):
        return AGAIN * nmse(golden.logits_q8_0, golden.logits)
    return EXACT


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
@pytest.mark.parametrize("name", CASES)
def test_rounded_weights(name: str, flash_attention: str, dtype: DType):
    """Activations are not rounded, so only the weights' rounding remains."""
    golden = golden_of(name)
    want = golden.logits_f16 if dtype is DType.F16 else golden.logits_q8_0
    prompt, options = golden.prompt.tolist(), {"backend": "reference", "kv_type": "f32"}
    with loaded(golden, dtype, flash_attention=flash_attention, **options) as model:
        assert nmse(model.logits(prompt), want) < bound_of(name, golden, dtype)
        # A golden's continuation ends before a token that one of the reference's runs doubts.
        done = model.generate(prompt, max_tokens=len(golden.greedy), temperature=0)
    assert done.tokens == golden.greedy.tolist()


def test_the_embedded_model_tells_the_same_stories():
    with ggmodel.load(FILE, backend="reference", context_length=256) as model:
        for case in EXPECTED["greedy"]:
            done = model.generate(case["prompt_ids"], temperature=0, max_tokens=20)
            assert done.tokens == case["continuation_ids"][:20]


def test_the_command_line_takes_the_backend():
    prompt = EXPECTED["greedy"][0]["prompt"]
    arguments = ["run", str(FILE), prompt, "--raw", "--backend", "reference", "--max-tokens", "3"]
    result = CliRunner().invoke(app, [*arguments, "--temperature", "0"])
    assert result.exit_code == 0, result.output
    with ggmodel.load(FILE) as model:
        told = str(model.generate(prompt, temperature=0, max_tokens=3))
    assert told.strip() in result.output
