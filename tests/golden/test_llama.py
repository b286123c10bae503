"""llama against transformers: every position's logits and the greedy continuation."""

from __future__ import annotations

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.gguf import TensorSource
from ggmodel.model import find
from tests.golden.files import GREEDY, Golden, cases, lossy

# Float32 sums taken in another order; transformers itself is 3e-13 away from float64.
EXACT = 1e-8
# ggml rounds activations to F16 where weights are F16: 3.3e-7 in a numpy simulation of that.
HALF = 1e-6
# ggml rounds activations to Q8_0 where weights are Q8_0: 2.5e-4 in the same simulation.
QUANTISED = 5e-4

CASES = cases("llama")


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want) ** 2).sum() / (want**2).sum())


def source_of(golden: Golden, dtype: DType = DType.F32) -> TensorSource:
    """The checkpoint converted by the declarations, matrices stored as `dtype`."""
    import gguf

    kind = gguf.GGMLQuantizationType(dtype.value)

    def store(name: str, values: np.ndarray):
        router = name.endswith("ffn_gate_inp.weight")
        if dtype is DType.F32 or values.ndim < 2 or router:
            return values.astype(np.float32)
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        return dtype, values.shape[::-1], data.tobytes()

    return from_hf(find("llama"), golden.config, golden.weights(), store)


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.load("llama", request.param)


def test_the_promised_cases_are_there():
    promised = "plain_gqa mha tied llama3_rope linear_rope attention_bias mlp_bias odd_head_dim"
    assert {*promised.split(), "experts"} <= set(CASES)


@pytest.mark.parametrize("batch_size", [512, 7, 5, 1])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_logits_in_any_batch_split(golden: Golden, flash_attention: str, batch_size: int):
    source = source_of(golden)
    with ggmodel.load(
        source, kv_type="f32", flash_attention=flash_attention, batch_size=batch_size
    ) as model:
        logits = model.logits(golden.prompt.tolist())
    assert logits.dtype == np.float32
    assert nmse(logits, golden.logits) < EXACT


@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_greedy_tokens(golden: Golden, flash_attention: str):
    with ggmodel.load(source_of(golden), kv_type="f32", flash_attention=flash_attention) as model:
        done = model.generate(golden.prompt.tolist(), max_tokens=GREEDY, temperature=0)
    assert done.tokens == golden.greedy.tolist()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(DType.F16, HALF), (DType.Q8_0, QUANTISED)], ids=["f16", "q8_0"]
)
def test_rounded_weights(golden: Golden, dtype: DType, bound: float):
    prompt = golden.prompt.tolist()
    rows = min(shape[-1] for name, shape in golden.tensors.items() if lossy(name, shape))
    assert rows % dtype.block_size == 0
    with ggmodel.load(source_of(golden, dtype), kv_type="f32", flash_attention="off") as model:
        logits = model.logits(prompt)
        done = model.generate(prompt, max_tokens=GREEDY, temperature=0)
    want = golden.logits_f16 if dtype is DType.F16 else golden.logits_q8_0
    assert nmse(logits, want) < bound
    assert done.tokens == golden.greedy.tolist()


def test_keys_and_values_in_f16(golden: Golden):
    # Each key and value is rounded to 11 bits: 2⁻²⁴ relative to the square, a few times over.
    with ggmodel.load(source_of(golden), kv_type="f16") as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < 1e-6
