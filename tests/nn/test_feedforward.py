"""Activations by name: what they compute, where a model's comes from, what is said of others."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import nn
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.gguf_file.values import KeyValues
from ggmodel.ml import new_backend
from ggmodel.model import config_class, find
from ggmodel.nn import activate, unless
from ggmodel.workbench.golden import nmse
from tests.conftest import Vary
from tests.golden.files import load_golden

X = np.linspace(-4, 4, 31, dtype=np.float32)
UP = np.linspace(2, -1, 31, dtype=np.float32)


def tanh_form(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# As transformers defines them.
WANTED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": tanh_form,
    "gelu_fast": tanh_form,
    "gelu_pytorch_tanh": tanh_form,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


@pytest.mark.parametrize("gated", [False, True], ids=["alone", "gated"])
@pytest.mark.parametrize("name", WANTED)
def test_an_activation(name: str, gated: bool):
    backend = new_backend(MemorySource({"general.architecture": "none"}, {}), name="reference")
    with backend, backend.new_context() as ctx, ctx.trace():
        x, up = (ctx.input().from_floats(values) for values in (X, UP))
        y = activate(name, x, up if gated else None)
        ctx.forward(y).compute(y)
        got = y.floats()
    want = WANTED[name](X.astype(np.float64)) * (UP if gated else 1)
    assert nmse(got, want) < 1e-12


@pytest.mark.parametrize(("architecture", "case"), [("llama", "plain_gqa"), ("qwen3", "experts")])
def test_the_activation_of_a_config_is_the_models(architecture: str, case: str):
    golden = load_golden(architecture, case)
    kind = find("qwen3moe" if case == "experts" else architecture)
    usual = from_hf(kind, golden.config, golden.weights())
    key = f"{kind.architecture}.hidden_activation"
    assert key not in usual.metadata
    config = {**golden.config, "hidden_act": "relu"}
    other = from_hf(kind, config, golden.weights())
    assert other.metadata[key] == "relu"
    for source, equal in ((usual, True), (other, False)):
        with ggmodel.load(source, kv_type="f32") as model:
            error = nmse(model.logits(golden.prompt.tolist()), golden.logits)
        assert error < 1e-8 if equal else error > 1e-4


@pytest.mark.parametrize(("architecture", "case"), [("llama", "plain_gqa"), ("llama", "experts")])
def test_an_unknown_activation(architecture: str, case: str, vary: Vary):
    golden = load_golden(architecture, case)
    message = r"hidden_act.* 'mish' is unsupported; supported: gelu, .*relu2, silu"
    with pytest.raises(ConfigError, match=message):
        from_hf(find(architecture), {**golden.config, "hidden_act": "mish"}, golden.weights())
    source = from_hf(find(architecture), golden.config, golden.weights())
    with pytest.raises(ConfigError, match=message):
        ggmodel.load(vary(source, metadata={f"{architecture}.hidden_activation": "mish"}))


@pytest.mark.parametrize(
    ("architecture", "case", "key", "usual"),
    [
        ("gemma2", "published", "hidden_activation", "gelu_pytorch_tanh"),
        ("gemma3", "images", "vision_config.hidden_act", "gelu_pytorch_tanh"),
        ("mllama", "images", "vision_config.hidden_act", "gelu"),
        ("llama4", "interleaved", "hidden_act", "silu"),
    ],
)
def test_the_activation_of_each_part(architecture: str, case: str, key: str, usual: str):
    golden = load_golden(architecture, case)
    kind, weights = find(architecture), golden.weights()

    def made(value: str) -> MemorySource:
        config = copy.deepcopy(golden.config)
        *part, last = key.split(".")
        (config[part[0]] if part else config)[last] = value
        return from_hf(kind, config, weights)

    prefix = f"{architecture}.vision." if "vision" in key else f"{architecture}."
    assert f"{prefix}hidden_activation" not in made(usual).metadata
    other = made("relu")
    assert other.metadata[f"{prefix}hidden_activation"] == "relu"
    field = "vit_activation" if "vision" in key else "activation"
    read = config_class(kind).read(KeyValues(other.metadata, "other"))
    assert getattr(read, field) == "relu"
    with pytest.raises(ConfigError, match=rf"config.json: {key} 'mish' is unsupported; supported:"):
        made("mish")


@pytest.mark.parametrize("value", [5, None, ["silu"], {"name": "silu"}], ids=str)
def test_no_name_of_an_activation(value: Any):
    find_it = nn.activation("gelu").hf[0]
    if value is None:
        assert find_it({"hidden_act": value}) is None
        return
    with pytest.raises(ConfigError, match=r"hidden_act .* is unsupported; supported: gelu"):
        find_it({"hidden_act": value})


def test_what_is_usual_is_not_written():
    find_it = unless("silu", "hidden_act", "activation")
    assert find_it({"hidden_act": "silu"}) is None
    assert find_it({}) is None
    assert find_it({"hidden_act": None, "activation": "gelu"}) == "gelu"
    assert unless(3, "part.n")({"part": {"n": 4}}) == 4
