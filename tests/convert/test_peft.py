"""Adapters of PEFT, against the logits of transformers with the merged weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import Error, FormatError, Unsupported
from ggmodel.loading import open_adapter
from ggmodel.model import find_hf
from ggmodel.runner.loading.adapters import MergedSource
from tests.convert.make_adapters import CASES, HERE
from tests.golden.files import load_golden

# Float sums of ggml and torch differ by some 1e-13 for these models, and GELU, which ggml looks up
# in a table of F16, by some 1e-7. A change that lies at another place gives more than 1e-2.
NMSE, WITH_GELU = 1e-11, 1e-6


def bound(name: str) -> float:
    return WITH_GELU if CASES[name][0] in ("gpt2", "gptneox") else NMSE


def source_of(name: str):
    golden = load_golden(*CASES[name][:2])
    return golden, from_hf(find_hf(golden.config["architectures"]), golden.config, golden.weights())


def nmse(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).mean() / (b**2).mean())


@pytest.mark.parametrize("name", CASES)
def test_an_adapter_gives_the_logits_of_merged_weights_in_transformers(name: str):
    golden, source = source_of(name)
    expected = np.load(HERE / name / "logits.npy")
    with ggmodel.load(source, kv_type="f32", adapters=HERE / name) as model:
        assert nmse(model.logits(golden.prompt.tolist()), expected) <= bound(name)
        assert nmse(model.logits(golden.prompt.tolist(), adapters={}), golden.logits) <= bound(name)
        half = model.logits(golden.prompt.tolist(), adapters={name: 0.5})
        assert min(nmse(half, expected), nmse(half, golden.logits)) > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_a_merged_model_gives_them_too(name: str):
    golden, source = source_of(name)
    with ggmodel.load(source) as model:
        adapter = open_adapter(HERE / name, model.model)
    with ggmodel.load(MergedSource(source, adapter), kv_type="f32") as merged:
        assert nmse(
            merged.logits(golden.prompt.tolist()), np.load(HERE / name / "logits.npy")
        ) <= bound(name)


@pytest.mark.parametrize("name", ["transposed", "transposed_dora", "dora", "experts"])
def test_in_exact_arithmetic_the_difference_is_that_of_torch(name: str):
    golden, source = source_of(name)
    with ggmodel.load(source, backend="reference", kv_type="f32", adapters=HERE / name) as model:
        assert (
            nmse(model.logits(golden.prompt.tolist()), np.load(HERE / name / "logits.npy")) <= NMSE
        )


def copied(name: str, into: Path, change: Any = None, **keys: Any) -> Path:
    """A copy of an adapter with other keys, and other tensors."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(HERE / name, into / name)
    config = into / name / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **keys}))
    if change is not None:
        weights = into / name / "adapter_model.safetensors"
        save_file(change(load_file(weights)), weights)
    return into / name


def renamed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.replace("self_attn", "attention"): one for name, one in tensors.items()}


def with_bias(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**tensors, "base_model.model.lm_head.bias": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    ("keys", "change", "error", "message"),
    [
        ({"peft_type": "IA3"}, None, Unsupported, "peft_type is 'IA3'"),
        ({"bias": "all"}, None, Unsupported, "bias is 'all'"),
        ({"lora_bias": True}, None, Unsupported, "lora_bias is True"),
        ({"modules_to_save": ["score"]}, None, Unsupported, r"modules_to_save is \['score'\]"),
        ({"layer_replication": [[0, 2]]}, None, Unsupported, "layer_replication is"),
        ({"trainable_token_indices": [3]}, None, Unsupported, "trainable_token_indices is"),
        ({"alora_invocation_tokens": [1]}, None, Unsupported, "alora_invocation_tokens is"),
        ({"a_later_key": 1}, None, Unsupported, "a_later_key is 1"),
        ({"init_lora_weights": "pissa"}, None, Unsupported, "init_lora_weights is 'pissa'"),
        ({"rank_pattern": {"(q|v)_proj": 2}}, None, Unsupported, r"rank_pattern has '\(q\|v\)"),
        ({"r": 0}, None, FormatError, "r is 0; it must be a number above 0"),
        ({"r": 3}, None, FormatError, "are not of rank 3"),
        ({"lora_alpha": 1e39}, None, FormatError, "it must be a number above 0"),
        ({"alpha_pattern": [1]}, None, FormatError, r"alpha_pattern is \[1\]"),
        ({"rank_pattern": "q_proj"}, None, FormatError, "rank_pattern is 'q_proj'"),
        ({"target_parameters": 3}, None, FormatError, "target_parameters is 3"),
        ({"target_parameters": [3]}, None, FormatError, r"target_parameters is \[3\]"),
        ({"use_dora": True}, None, FormatError, "has no lora_magnitude_vector"),
        ({}, renamed, FormatError, r"attention\.k_proj.* and 7 more, which this llama lacks"),
        ({}, with_bias, Unsupported, "lm_head.bias' is unsupported"),
    ],
)
def test_what_an_adapter_has_besides_is_refused_by_name(
    keys, change, error: type[Error], message: str, tmp_path: Path
):
    _, source = source_of("plain")
    folder = copied("plain", tmp_path, change, **keys)
    with ggmodel.load(source) as model, pytest.raises(error, match=message):
        model.adapters.add(folder)


@pytest.mark.parametrize("name", ["dora", "experts"])
def test_an_adapter_of_another_model_is_refused_by_tensor_and_shape(name: str):
    _, source = source_of("tied_head")
    with ggmodel.load(source) as model, pytest.raises(FormatError, match="of another model"):
        model.adapters.add(HERE / name)


def test_a_folder_that_is_no_adapter(tmp_path: Path):
    _, source = source_of("plain")
    with ggmodel.load(source) as model:
        with pytest.raises(FormatError, match=r"has no adapter_config\.json"):
            model.adapters.add(tmp_path)
        (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        with pytest.raises(FormatError, match=r"has no adapter_model\.safetensors"):
            model.adapters.add(tmp_path)
