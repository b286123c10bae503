"""llama's own; `test_text.py` compares it with transformers as it does every model."""

from __future__ import annotations

import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml.ggml import GGMLBackend
from ggmodel.model import find
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import cases, load_golden

# Float32 sums taken in another order; transformers itself is 3e-13 away from float64.
EXACT = 1e-8


def test_the_promised_cases_are_there():
    promised = "plain_gqa mha tied llama3_rope linear_rope attention_bias mlp_bias odd_head_dim"
    assert {*promised.split(), "experts", "yarn", "yarn_scales", "longrope"} <= set(cases("llama"))


@pytest.fixture
def linear() -> MemorySource:
    return source_of(load_golden("llama", "linear_rope"))


def with_metadata(source: MemorySource, **changes: object) -> MemorySource:
    keys = {f"llama.{k.replace('__', '.')}": v for k, v in changes.items()}
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    metadata = {k: v for k, v in {**source.metadata, **keys}.items() if v is not None}
    return MemorySource(metadata, tensors)


def test_older_spellings_of_linear_scaling(linear: MemorySource):
    golden = load_golden("llama", "linear_rope")
    for changes in (
        {"rope__scaling__type": None},  # a factor alone means linear
        {"rope__scaling__type": None, "rope__scaling__factor": None, "rope__scale_linear": 4.0},
    ):
        with ggmodel.load(with_metadata(linear, **changes), kv_type="f32") as model:
            assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < EXACT


def test_no_scaling_is_no_scaling(linear: MemorySource):
    golden = load_golden("llama", "linear_rope")
    logits = []
    for changes in ({"rope__scaling__factor": 0.0}, {"rope__scaling__type": "none"}):
        with ggmodel.load(with_metadata(linear, **changes), kv_type="f32") as model:
            logits.append(model.logits(golden.prompt.tolist()))
    assert logits[0].tobytes() == logits[1].tobytes()
    assert nmse(logits[0], golden.logits) > 1e-4


def test_a_scaling_that_is_not_there_is_refused(linear: MemorySource):
    with pytest.raises(Unsupported, match="'dynamic' is unsupported; supported: linear, yarn"):
        ggmodel.load(with_metadata(linear, rope__scaling__type="dynamic"))
    golden = load_golden("llama", "linear_rope")
    config = {**golden.config, "rope_scaling": {"rope_type": "elastic", "factor": 4.0}}
    with pytest.raises(ConfigError, match="elastic"):
        from_hf(find("llama"), config, golden.weights())


def test_rearranged_weights_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch):
    golden = load_golden("llama", "tied")
    prompt, source = golden.prompt.tolist(), source_of(golden, DType.Q4_0)
    with ggmodel.load(source, kv_type="f32") as model:
        rearranged, memory = model.logits(prompt), model.memory
        assert isinstance(model.backend, GGMLBackend)
        copies = model.backend.weights.copies
        plain = {copy.node.uid for copy in copies if copy.kind == "plain"}
        again = sum(c.nbytes for c in copies if c.kind == "fast" and c.node.uid in plain)
    monkeypatch.setattr("ggmodel.ml.ggml.weights.extra_buffer_types", lambda device: [])
    with ggmodel.load(source, kv_type="f32") as model:
        # Both kernels round activations to Q8_0 and differ in the order of float32 sums.
        assert nmse(rearranged, model.logits(prompt)) < EXACT
        without = model.memory
    # Only the tied embedding has both copies: products never read the plain one.
    assert memory.size() - memory.cpu.graph == again + without.size() - without.cpu.graph
