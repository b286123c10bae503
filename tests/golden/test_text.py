"""Models of text against transformers: every position's logits and the greedy continuation.

A folder with goldens is tested by being there; see `README.md` beside this file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import GREEDY, Golden, cases
from tests.golden.text import CASES, TEXT, golden_of, loaded


@dataclass(frozen=True)
class Bounds:
    """Bounds of the NMSE of all logits.

    Attributes:
        exact: float32 sums taken in another order; transformers itself is 3e-13 from float64.
        half: ggml rounds activations to F16 where weights are F16: 3.3e-7 in a numpy simulation.
        quantised: the same with Q8_0: 2.5e-4 in the simulation.
        cache: keys and values in F16 are rounded to 11 bits: 2⁻²⁴ relative to the square, a few
            times over. That alone is 2e-7 on the reference backend; ggml's flash attention rounds
            queries and sums of values to F16 too.
    """

    exact: float = 1e-8
    half: float = 1e-6
    quantised: float = 5e-4
    cache: float = 1e-6


EXCEPTIONS = {
    # ggml's GELU reads a table in F16; without it, on the reference backend, all is exact.
    **dict.fromkeys(
        ("bloom", "gemma", "gemma2", "gemma3n", "gemma4", "gpt2", "gptneox", "starcoder2"),
        Bounds(exact=1e-6, cache=2e-6),
    ),
    # A convolution multiplies three results of one matrix, each of which is rounded.
    "lfm2": Bounds(half=1.5e-6, quantised=1e-3),
    # A scan multiplies results of several matrices, each of which is rounded.
    "mamba": Bounds(half=5e-6, quantised=2e-3),
    "falcon_h1": Bounds(half=8e-6, quantised=3e-3, cache=4e-6),
    "jamba": Bounds(half=2e-6, quantised=2e-3, cache=2e-6),
    "mamba2": Bounds(half=5e-6, quantised=3e-3),
    # A delta net multiplies results of four matrices, each of which is rounded.
    "kimi_linear": Bounds(half=2e-6, quantised=1e-3),
    "qwen3next": Bounds(quantised=1e-3),
    "olmo_hybrid": Bounds(half=2e-6, quantised=1e-3, cache=2e-6),
    "qwen35": Bounds(quantised=1e-3),
    # Queries are four times as long as keys, and scores as far from them as they are rounded.
    "muse_glimmer": Bounds(half=1e-5, quantised=1e-2, cache=5e-6),
    # Norms stand behind attention alone, and bring it to full size with what it was rounded to.
    "olmo2": Bounds(cache=2e-6),
}


def bounds(golden: Golden) -> Bounds:
    return EXCEPTIONS.get(golden.architecture, Bounds())


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return golden_of(request.param)


# the data itself


@pytest.mark.parametrize("arch", TEXT)
def test_every_case_has_its_file(arch: str):
    assert sorted(import_module(f"tests.golden.{arch}.cases").CASES) == cases(arch)


def test_files_are_sound(golden: Golden):
    module = import_module(f"tests.golden.{golden.architecture}.cases")
    assert golden.config in module.CASES.values()
    assert list(golden.tensors) == sorted(golden.tensors)
    assert golden.prompt.dtype == golden.greedy.dtype == np.int32
    assert golden.prompt.min() >= 0
    tokens = golden.config.get("text_config", golden.config)["vocab_size"]
    assert golden.prompt.max() < tokens
    assert 0 < len(golden.greedy) <= GREEDY
    assert golden.greedy_margins.shape == golden.greedy.shape
    assert golden.greedy_margins.min() >= getattr(module, "MARGIN", 0.1)
    for logits in (golden.logits, golden.logits_f16, golden.logits_q8_0):
        assert logits.dtype == np.float32
        assert logits.shape == (len(golden.prompt), tokens)
        assert np.isfinite(logits).all()
        assert logits[-1].argmax() == golden.greedy[0]
    for name, dtype in golden.types.items():
        assert golden.tensors[name][-1] % dtype.block_size == 0, f"{name}: no whole {dtype} blocks"


def test_a_window_is_shorter_than_the_prompt(golden: Golden):
    saved = golden.saved_config
    window = saved.get("text_config", saved).get("sliding_window")
    assert window is None or window < len(golden.prompt)


# what is computed


@pytest.mark.parametrize("batch_size", [512, 7, 5, 1])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_logits_in_any_batch_split(golden: Golden, flash_attention: str, batch_size: int):
    with loaded(
        golden, kv_type="f32", flash_attention=flash_attention, batch_size=batch_size
    ) as model:
        logits = model.logits(golden.prompt.tolist())
    assert logits.dtype == np.float32
    assert nmse(logits, golden.logits) < bounds(golden).exact


def test_the_config_that_transformers_writes(golden: Golden):
    """Other than those in the wild: `rope_parameters`, and all defaults."""
    # Keys that transformers 5 wrote as they stood in the old config are not in new checkpoints.
    config = {k: v for k, v in golden.saved_config.items() if k != "partial_rotary_factor"}
    old, new = source_of(golden), source_of(replace(golden, config=config))
    assert old.metadata.items() <= new.metadata.items()
    with ggmodel.load(new, kv_type="f32") as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < bounds(golden).exact


@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_greedy_tokens(golden: Golden, flash_attention: str):
    with loaded(golden, kv_type="f32", flash_attention=flash_attention) as model:
        done = model.generate(golden.prompt.tolist(), max_tokens=len(golden.greedy), temperature=0)
    assert done.tokens == golden.greedy.tolist()


@pytest.mark.parametrize("dtype", [DType.F16, DType.Q8_0], ids=str)
def test_rounded_weights(golden: Golden, dtype: DType):
    prompt, half = golden.prompt.tolist(), dtype is DType.F16
    with loaded(golden, dtype, kv_type="f32", flash_attention="off") as model:
        logits = model.logits(prompt)
        done = model.generate(prompt, max_tokens=len(golden.greedy), temperature=0)
    want = golden.logits_f16 if half else golden.logits_q8_0
    assert nmse(logits, want) < (bounds(golden).half if half else bounds(golden).quantised)
    assert done.tokens == golden.greedy.tolist()


def test_keys_and_values_in_f16(golden: Golden):
    with loaded(golden, kv_type="f16") as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < bounds(golden).cache


def test_a_prefix_is_resumed(golden: Golden):
    """Behind what is remembered of another prompt with the same beginning."""
    prompt, kept = golden.prompt.tolist(), len(golden.prompt) // 2
    with loaded(golden, kv_type="f32") as model:
        model.generate([*prompt[:kept], *prompt[:4]], max_tokens=2, temperature=0)
        done = model.generate(prompt, max_tokens=len(golden.greedy), temperature=0)
    assert done.tokens == golden.greedy.tolist()
