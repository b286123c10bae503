"""gpt-oss's own: experts in MXFP4, as published; `test_text.py` has the rest."""

from __future__ import annotations

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml.tensor import to_float32
from ggmodel.model import find
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import GREEDY, Golden, cases, load_golden
from tests.golden.gpt_oss.cases import packed

# Float64 against transformers' float32.
EXACT = 1e-11
# ggml rounds activations to Q8_0 where weights are MXFP4: 2.5e-4 where all weights are Q8_0.
QUANTISED = 5e-4


def published(golden: Golden) -> dict[str, np.ndarray]:
    """The checkpoint with its experts in blocks."""
    checkpoint: dict[str, np.ndarray] = {}
    for name, values in golden.weights().items():
        whole = name.endswith(("gate_up_proj", "down_proj"))
        checkpoint |= packed(name, values.shape) if whole else {name: values}
    return checkpoint


@pytest.fixture(params=cases("gpt_oss"))
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("gpt_oss", request.param)


@pytest.fixture
def source(golden: Golden) -> MemorySource:
    return from_hf(find("gpt-oss"), golden.config, published(golden))


def test_blocks_are_kept_without_rounding(golden: Golden, source: MemorySource):
    numbers = source_of(golden)
    assert source.tensors.keys() == numbers.tensors.keys()
    experts = [n for n in source.tensors if n.endswith("_exps.weight")]
    assert len(experts) == 3 * golden.config["num_hidden_layers"]
    for name in experts:
        info, plain = source.info(name), numbers.info(name)
        assert info.dtype is DType.MXFP4
        assert info.shape == plain.shape
        values = to_float32(np.frombuffer(source.data(name), np.uint8), info.dtype, info.shape)
        want = to_float32(np.frombuffer(numbers.data(name), np.float32), plain.dtype, plain.shape)
        np.testing.assert_array_equal(values, want)


def test_blocks_against_transformers(golden: Golden, source: MemorySource):
    prompt = golden.prompt.tolist()
    with ggmodel.load(source, backend="reference", kv_type="f32", flash_attention="off") as model:
        assert nmse(model.logits(prompt), golden.logits) < EXACT
    with ggmodel.load(source, kv_type="f32") as model:
        assert nmse(model.logits(prompt), golden.logits) < QUANTISED
        done = model.generate(prompt, max_tokens=GREEDY, temperature=0)
    assert done.tokens == golden.greedy.tolist()


def test_names_and_keys_are_those_of_llama_cpps_converter():
    """The file is as it makes it; `yarn_truncate` is ours, where YaRN is rounded."""
    golden = load_golden("gpt_oss", "released")
    source = from_hf(find("gpt-oss"), golden.config, published(golden))
    both = "attn_q attn_k attn_v attn_output ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"
    tensors = [f"{n}.{kind}" for n in both.split() for kind in ("weight", "bias")]
    tensors += [f"{n}.weight" for n in ("attn_norm", "post_attention_norm", "attn_sinks")]
    layers = {f"blk.{i}.{n}" for i in range(2) for n in tensors}
    outside = {"token_embd.weight", "output_norm.weight", "output.weight"}
    assert source.tensors.keys() == layers | outside
    keys = {k.removeprefix("gpt-oss."): v for k, v in source.metadata.items()}
    assert keys == {
        "general.architecture": "gpt-oss",
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 8,
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 96,
    }


def test_files_do_not_say_that_yarn_is_not_rounded(source: MemorySource, golden: Golden):
    """Those of llama.cpp's converter do not, and are of models trained without rounding."""
    said = source.metadata.get("gpt-oss.rope.scaling.yarn_truncate", False)
    assert said == golden.config["rope_scaling"].get("truncate", True)
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    metadata = {k: v for k, v in source.metadata.items() if not k.endswith("yarn_truncate")}
    with ggmodel.load(MemorySource(metadata, tensors), backend="reference") as model:
        error = nmse(model.logits(golden.prompt.tolist()), golden.logits)
    assert error > 1e-6 if said else error < 1e-6


@pytest.mark.parametrize("changed", [{"swiglu_limit": 10.0}, {"swiglu_alpha": 1.0}])
def test_another_swiglu_is_refused(changed: dict[str, float]):
    golden = load_golden("gpt_oss", "released")
    with pytest.raises(ConfigError, match=r"swiglu_alpha and swiglu_limit .* supported: 1\.702"):
        from_hf(find("gpt-oss"), {**golden.config, **changed}, golden.weights())


def test_blocks_that_are_none():
    golden = load_golden("gpt_oss", "released")
    checkpoint = published(golden)
    name = "model.layers.1.mlp.experts.down_proj"
    for changed in (
        {f"{name}_scales": checkpoint[f"{name}_scales"][:, :-1]},
        {f"{name}_blocks": checkpoint[f"{name}_blocks"].astype(np.float32)},
        {f"{name}_blocks": checkpoint[f"{name}_blocks"][..., :8]},
    ):
        with pytest.raises(ConfigError, match="down_proj: blocks"):
            from_hf(find("gpt-oss"), golden.config, {**checkpoint, **changed})
