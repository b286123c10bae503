"""Scaling of rotary positions: what configs and files say of it, and the factors that follow.

The goldens of llama, phi3 and gpt-oss compare it with transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import RopeType, new_backend
from ggmodel.model import find
from ggmodel.nn import RopeConfig
from ggmodel.nn.rope import paper_magnitude, yarn_factors
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import load_golden


class SmallConfig(RopeConfig):
    context = 4096
    head_dim = 64


def test_yarn_is_that_of_the_op():
    """Which computes it as ggml does: from hyperparameters, pair by pair."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 3, 64)).astype(np.float32)
    positions = np.array([0, 1, 5, 31, 100, 1000, 4095, 4096, 30000])
    for factor, betas, base, original in (
        (4.0, (32.0, 1.0), 10000.0, 4096),
        (32.0, (32.0, 1.0), 150000.0, 4096),
        (2.5, (8.0, 2.0), 500000.0, 8192),
    ):
        h = SmallConfig(
            scaling="yarn",
            rope_base=base,
            rope_factor=factor,
            original_context=original,
            beta_fast=betas[0],
            beta_slow=betas[1],
        )
        factors = yarn_factors(h)
        assert factors is not None
        assert factors.dtype == np.float32
        backend = new_backend(MemorySource({"general.architecture": "none"}, {}), name="reference")
        with backend, backend.new_context() as ctx, ctx.trace():
            inputs = ctx.input()
            given, at = inputs.from_floats(x), inputs.from_ints(positions)
            own = given.rope(
                at, 64, base, 1 / factor, type=RopeType.NEOX, original_context=original,
                ext_factor=1.0, beta_fast=betas[0], beta_slow=betas[1],
            )  # fmt: skip
            ours = given.rope(
                at, 64, base, type=RopeType.NEOX, factors=inputs.from_floats(factors),
                attn_factor=paper_magnitude(factor),
            )  # fmt: skip
            ctx.compute(own, ours)
            # Factors have 24 bits, and angles reach 30000.
            assert nmse(ours.numpy(), own.numpy()) < 1e-6
            assert nmse(ours.numpy()[:4], own.numpy()[:4]) < 1e-12


def test_yarn_of_gpt_oss_is_not_rounded():
    """Pairs 8.09 to 17.4 are blended; rounded it is 8 to 18."""
    given = {"scaling": "yarn", "rope_base": 150000.0, "rope_factor": 32.0}
    exact, rounded = (yarn_factors(SmallConfig(**given, yarn_truncate=t)) for t in (False, True))
    assert exact is not None
    assert rounded is not None
    assert (exact[:9] == 1).all()
    assert (exact[18:] == 32).all()
    assert exact[17] == pytest.approx(1 / ((17.398 - 17) / 9.306 * 31 / 32 + 1 / 32), rel=1e-3)
    assert rounded[17] == pytest.approx(1 / (0.1 * 31 / 32 + 1 / 32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope_base": 1.0},
        {"rope_factor": 0.0},
        {"beta_slow": 0.0},
        {"beta_fast": -1.0},
        {"beta_slow": 1e-320},
        {"rope_factor": 1e300},
        {"original_context": -5},
        {"yarn_extrapolation": 2.0},
    ],
    ids=str,
)
def test_yarn_that_makes_no_sense(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"YaRN with \S+ original positions"):
        yarn_factors(SmallConfig(**{"scaling": "yarn", "rope_factor": 4.0, **wrong}))


def test_heads_that_no_memory_holds():
    class Wide(SmallConfig):
        head_dim = 1 << 30

    with pytest.raises(ConfigError, match="at most 65536"):
        yarn_factors(Wide(scaling="yarn", rope_factor=4.0))


def keys_of(scaling: dict[str, Any], **config: Any) -> dict[str, Any]:
    """The keys of a file that describe a rope."""
    golden = load_golden("llama", "plain_gqa")
    hf = {**golden.config, "rope_scaling": scaling, **config}
    metadata = from_hf(find("llama"), hf, golden.weights()).metadata
    return {k.removeprefix("llama.rope."): v for k, v in metadata.items() if "scaling" in k}


def test_keys_of_yarn():
    """Files of llama.cpp's converter."""
    usual = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    said = {
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 32,
    }
    assert keys_of(usual) == said
    more = {"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2}
    assert keys_of(usual | more) == said | {
        "scaling.yarn_attn_factor": 1.5,
        "scaling.yarn_beta_fast": 16.0,
        "scaling.yarn_beta_slow": 2.0,
    }
    # As DeepSeek-R1-0528-Qwen3-8B has it: transformers does not know this key.
    assert keys_of(usual | {"attn_factor": 0.8782488562869419}) == said
    scales = {"mscale": 0.707, "mscale_all_dim": 1.0}
    ratio = (0.0707 * np.log(4) + 1) / (0.1 * np.log(4) + 1)
    assert keys_of(usual | scales)["scaling.yarn_attn_factor"] == pytest.approx(ratio)
    whole = {"rope_type": "yarn", "factor": None}
    assert keys_of(whole, max_position_embeddings=256)["scaling.factor"] == 1.0


@pytest.mark.parametrize(
    ("scaling", "config", "want"),
    [
        ({}, {}, np.sqrt(1 + np.log(8) / np.log(16))),  # 128 of 16 positions
        ({"factor": 4.0}, {}, np.sqrt(1 + np.log(4) / np.log(16))),
        ({"attention_factor": 1.5}, {}, 1.5),
        ({}, {"max_position_embeddings": 8}, 1.0),
        ({}, {"original_max_position_embeddings": 32}, np.sqrt(1 + np.log(4) / np.log(32))),
    ],
)
def test_keys_of_longrope(scaling: dict[str, Any], config: dict[str, Any], want: float):
    golden = load_golden("llama", "longrope")
    keys = keys_of({**golden.config["rope_scaling"], **scaling}, **config)
    original = config.get("original_max_position_embeddings", 16)
    assert keys.pop("scaling.attn_factor") == pytest.approx(want)
    assert keys == {"scaling.type": "longrope", "scaling.original_context_length": original}


def test_the_context_chooses_among_factors():
    golden = load_golden("llama", "longrope")
    source, prompt = source_of(golden), golden.prompt.tolist()[:12]
    short = golden.config["rope_scaling"]["short_factor"]
    config = {**golden.config, "rope_scaling": {**golden.config["rope_scaling"]}}
    config["rope_scaling"]["long_factor"] = short
    always_short = from_hf(find("llama"), config, golden.weights())

    def logits(source: MemorySource, context: int | None) -> np.ndarray:
        with ggmodel.load(source, context_length=context, backend="reference") as model:
            return model.logits(prompt)

    assert nmse(logits(source, 16), logits(always_short, 17)) == 0
    assert nmse(logits(source, 17), logits(always_short, 17)) > 1e-4
    assert nmse(logits(source, None), logits(source, 17)) == 0


def test_factors_that_are_missing():
    source = source_of(load_golden("llama", "longrope"))
    tensors = {
        n: (t.dtype, t.shape, bytes(source.data(n)))
        for n, t in source.tensors.items()
        if "rope_factors" not in n
    }
    with pytest.raises(ConfigError, match="longrope, but there are no factors"):
        ggmodel.load(MemorySource(source.metadata, tensors))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("name", "case", "base", "keys", "want"),
    [
        ("glm4", "plain", 1e4, {"rope_scaling": LLAMA3}, [1.0, 0.0130423, 0.00125, 0.000125]),
        (
            "gemma3",
            "every_3rd",
            1e6,
            {
                "rope_parameters": {
                    "full_attention": {**LLAMA3, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            [1.0, 0.421697, 0.0643099, 0.00937368, 0.00395285, 0.0016669, 0.000702927, 0.000296422],
        ),
    ],
)
def test_llama3_of_a_part_of_a_head_and_of_one_kind_of_layer(
    name: str, case: str, base: float, keys: dict[str, Any], want: list[float]
):
    """Frequencies of transformers 5.23: GLM-4 turns half of each head of 16."""
    golden = load_golden(name, case)
    dropped = ("rope_scaling", "rope_theta", "rope_local_base_freq") if name == "gemma3" else ()
    config = {key: value for key, value in golden.config.items() if key not in dropped}
    source = from_hf(find(name), {**config, **keys}, golden.weights())
    factors = np.frombuffer(source.data("rope_freqs.weight"), np.float32)
    frequencies = base ** (-np.arange(len(factors)) / len(factors)) / factors
    assert frequencies[: len(want)] == pytest.approx(want, rel=1e-5)
    assert (factors[len(want) :] == 8).all()
