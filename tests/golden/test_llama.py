"""llama against transformers: every position's logits and the greedy continuation."""

from __future__ import annotations

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.gguf import MemorySource
from ggmodel.ml.ggml import GGMLBackend
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


def source_of(golden: Golden, dtype: DType = DType.F32) -> MemorySource:
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


@pytest.fixture
def linear() -> MemorySource:
    return source_of(Golden.load("llama", "linear_rope"))


def with_metadata(source: MemorySource, **changes: object) -> MemorySource:
    keys = {f"llama.{k.replace('__', '.')}": v for k, v in changes.items()}
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    metadata = {k: v for k, v in {**source.metadata, **keys}.items() if v is not None}
    return MemorySource(metadata, tensors)


def test_older_spellings_of_linear_scaling(linear: MemorySource):
    golden = Golden.load("llama", "linear_rope")
    for changes in (
        {"rope__scaling__type": None},  # a factor alone means linear
        {"rope__scaling__type": None, "rope__scaling__factor": None, "rope__scale_linear": 4.0},
    ):
        with ggmodel.load(with_metadata(linear, **changes), kv_type="f32") as model:
            assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < EXACT


def test_no_scaling_is_no_scaling(linear: MemorySource):
    golden = Golden.load("llama", "linear_rope")
    logits = []
    for changes in ({"rope__scaling__factor": 0.0}, {"rope__scaling__type": "none"}):
        with ggmodel.load(with_metadata(linear, **changes), kv_type="f32") as model:
            logits.append(model.logits(golden.prompt.tolist()))
    assert logits[0].tobytes() == logits[1].tobytes()
    assert nmse(logits[0], golden.logits) > 1e-4


def test_a_scaling_that_is_not_there_is_refused(linear: MemorySource):
    with pytest.raises(Unsupported, match="yarn"):
        ggmodel.load(with_metadata(linear, rope__scaling__type="yarn"))
    golden = Golden.load("llama", "linear_rope")
    config = {**golden.config, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(ConfigError, match="yarn"):
        from_hf(find("llama"), config, golden.weights())


def test_rearranged_weights_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch):
    golden = Golden.load("llama", "tied")
    prompt, source = golden.prompt.tolist(), source_of(golden, DType.Q4_0)
    with ggmodel.load(source, kv_type="f32") as model:
        rearranged, memory = model.logits(prompt), model.memory
        assert isinstance(model.backend, GGMLBackend)
        copies = model.backend.weights.copies
        plain = {copy.node.uid for copy in copies if copy.kind == "plain"}
        again = sum(c.nbytes for c in copies if c.kind == "fast" and c.node.uid in plain)
    monkeypatch.setattr("ggmodel.ml.ggml.backend.extra_buffer_types", lambda device: [])
    with ggmodel.load(source, kv_type="f32") as model:
        # Both kernels round activations to Q8_0 and differ in the order of float32 sums.
        assert nmse(rearranged, model.logits(prompt)) < EXACT
        without = model.memory
    # Only the tied embedding has both copies: products never read the plain one.
    assert memory.size() - memory.cpu.graph == again + without.size() - without.cpu.graph
