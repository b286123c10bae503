"""Adapters of PEFT, against the logits of transformers with the merged weights."""

from __future__ import annotations

import json
import math
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
from ggmodel.workbench.golden import Embeddings, Golden, uniform
from tests.convert.make_adapters import CASES, HERE
from tests.golden.files import load_embeddings, load_golden

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
        ({"r": 0}, None, FormatError, "r is 0; it must be a whole number above 0"),
        ({"r": 0.5}, None, FormatError, "r is 0.5; it must be a whole number above 0"),
        ({"r": True}, None, FormatError, "r is True; it must be a whole number above 0"),
        (
            {"rank_pattern": {"q_proj": 0.5}},
            None,
            FormatError,
            r"json: rank_pattern\['q_proj'\] is 0",
        ),
        ({"rank_pattern": {"q": math.inf}}, None, FormatError, r"rank_pattern\['q'\] is inf; it"),
        (
            {"alpha_pattern": {"q_proj": 1e39}},
            None,
            FormatError,
            r"alpha_pattern\['q_proj'\] is 1e",
        ),
        (
            {"alpha_pattern": {"q": "a"}},
            None,
            FormatError,
            r"json: alpha_pattern\['q'\] is 'a'; it",
        ),
        ({"r": 3}, None, FormatError, "are not of rank 3"),
        ({"lora_alpha": 1e39}, None, FormatError, "it must be a number above 0"),
        ({"alpha_pattern": [1]}, None, FormatError, r"alpha_pattern is \[1\]"),
        ({"rank_pattern": "q_proj"}, None, FormatError, "rank_pattern is 'q_proj'"),
        ({"target_parameters": 3}, None, FormatError, "target_parameters is 3"),
        ({"target_parameters": [3]}, None, FormatError, r"target_parameters is \[3\]"),
        ({"use_dora": True}, None, FormatError, "has no lora_magnitude_vector"),
        ({}, renamed, FormatError, r"attention\.k_proj.* and 7 more, which this llama lacks"),
        ({}, with_bias, Unsupported, "lm_head.bias' is unsupported"),
        ({}, lambda tensors: {}, FormatError, "has no matrices A and B"),
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


def written(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """An adapter of PEFT with these tensors, of rank 4 and alpha 8."""
    from safetensors.numpy import save_file

    path.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (path / "adapter_config.json").write_text(json.dumps(config))
    named = {f"base_model.model.{n}": np.ascontiguousarray(x) for n, x in tensors.items()}
    save_file(named, path / "adapter_model.safetensors")
    return path


def matrices(module: str, rows: int, columns: int) -> dict[str, np.ndarray]:
    a, b = uniform(f"{module}.a", (4, columns)), uniform(f"{module}.b", (rows, 4))
    return {f"{module}.lora_A.weight": a / 2, f"{module}.lora_B.weight": b / 2}


def embedded(module: str, rows: int, width: int) -> dict[str, np.ndarray]:
    a, b = uniform(f"{module}.a", (4, rows)), uniform(f"{module}.b", (width, 4))
    return {f"{module}.lora_embedding_A": a / 2, f"{module}.lora_embedding_B": b / 2}


def with_weights(golden: Golden | Embeddings, **changes: np.ndarray):
    weights = {**golden.weights(), **changes}
    return from_hf(find_hf(golden.config["architectures"]), golden.config, weights)


OPTIONS: Any = {"kv_type": "f32", "flash_attention": "off"}


@pytest.mark.parametrize(
    ("arch", "case", "module"),
    [("bert", "reranker", "bert.pooler.dense"), ("modern_bert", "head", "head.dense")],
)
def test_a_head_changes_that_other_checkpoints_have_in_vain(
    arch: str, case: str, module: str, tmp_path: Path
):
    """Names of `ignore_hf` that a field reads."""
    golden, name = load_embeddings(arch, case), f"{module}.weight"
    w = golden.weights()[name]
    tensors = matrices(module, *w.shape)
    a, b = tensors.values()
    path, source = written(tmp_path / "head", tensors), with_weights(golden)
    with ggmodel.load(source, adapters=path, **OPTIONS) as model:
        adapter = open_adapter(path, model.model)
        scores = model.embed(golden.texts, pooling="rank")
        plain = model.embed(golden.texts, pooling="rank", adapters=[])
    with ggmodel.load(with_weights(golden, **{name: w + 2 * b @ a}), **OPTIONS) as other:
        expected = other.embed(golden.texts, pooling="rank")
    with ggmodel.load(MergedSource(source, adapter), **OPTIONS) as merged:
        assert nmse(merged.embed(golden.texts, pooling="rank"), expected) <= NMSE
    assert nmse(scores, expected) <= NMSE
    assert nmse(plain, expected) > 1e-3


def test_the_table_of_an_encoder_by_its_other_name(tmp_path: Path):
    golden = load_embeddings("t5encoder", "published")
    w = golden.weights()["shared.weight"]
    tensors = embedded("encoder.embed_tokens", *w.shape)
    a, b = tensors.values()
    path = written(tmp_path / "table", tensors)
    with ggmodel.load(with_weights(golden), adapters=path, **OPTIONS) as model:
        rows = model.embed(golden.texts, pooling="mean")
    changed = {"shared.weight": w + 2 * (b @ a).T}
    with ggmodel.load(with_weights(golden, **changed), **OPTIONS) as merged:
        assert nmse(rows, merged.embed(golden.texts, pooling="mean")) <= NMSE
        assert nmse(rows, golden.vectors[:, : rows.shape[1]]) > 1e-3


@pytest.mark.parametrize(
    ("arch", "module"),
    [("t5", "encoder.embed_tokens"), ("t5", "decoder.embed_tokens"),
     ("bart", "model.encoder.embed_tokens")],
)  # fmt: skip
def test_one_of_several_copies_of_a_table_is_refused(arch: str, module: str, tmp_path: Path):
    golden = load_golden(arch, "published")
    width = golden.config["d_model"]
    path = written(tmp_path / "a", embedded(module, golden.config["vocab_size"], width))
    message = rf"changes '{module}\.weight' alone, and this model has one tensor for it and"
    with (
        ggmodel.load(with_weights(golden)) as model,
        pytest.raises(Unsupported, match=message),
    ):
        model.adapters.add(path)


def test_changes_that_nothing_reads(tmp_path: Path):
    """They are left out beside others, and refused alone."""
    golden = load_embeddings("bert", "released")
    pooler = matrices("pooler.dense", 64, 64)
    query = matrices("encoder.layer.0.attention.self.query", 64, 64)
    with ggmodel.load(with_weights(golden), **OPTIONS) as model:
        model.adapters.add(written(tmp_path / "both", pooler | query))
        with pytest.raises(FormatError, match=r"'pooler\.dense\.weight' \[64, 64\], which this"):
            model.adapters.add(written(tmp_path / "alone", pooler))
