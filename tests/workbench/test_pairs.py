"""Pairs of modules, and how results of one become those of the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import Module, gguf
from ggmodel.convert.declaration import Pair, pairs
from ggmodel.model import Part, PermuteRope
from ggmodel.nn import Linear
from tests.workbench.saved import CASES, saved, source_of

RANDOM = np.random.default_rng(2)
X = RANDOM.normal(size=(3, 8)).astype(np.float32)
W = RANDOM.normal(size=(24, 8)).astype(np.float32)


def test_results_of_permuted_rows():
    op = PermuteRope(3)
    pair = Pair("q", "q_proj", None, op)
    np.testing.assert_allclose(pair.results(X @ W.T, None), X @ op.to_gguf(W, None).T, rtol=1e-6)
    batched = pair.results((X @ W.T)[None], None)
    assert batched.shape == (1, 3, 24)
    assert np.array_equal(batched[0], pair.results(X @ W.T, None))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_results_of_a_part(index: int):
    part, op = Part("qkv", index, (12, 6, 6)), PermuteRope(1)
    pair = Pair("q", "qkv", part, op)
    weight = op.to_gguf(part.join([W], None), None)
    np.testing.assert_allclose(pair.results(X @ W.T, None), X @ weight.T, rtol=1e-6)


def paired(name: str) -> dict[str, str]:
    with ggmodel.load(source_of(name)) as model:
        return {p.path: p.name for p in pairs(model.model, saved(name).tensors)}


def test_every_module_of_a_llama_has_its_counterpart():
    found = paired("llama")
    assert found["layers[1].attn.out"] == "model.layers.1.self_attn.o_proj"
    assert found["layers[1].ffn"] == "model.layers.1.mlp"  # hf=""
    assert found["layers[1]"] == "model.layers.1"
    assert len(found) == len(saved("llama").order) - 1  # the whole needs no pair


def test_the_choice_that_the_file_made():
    found = paired("mixtral")
    assert found["layers[0].ffn"] == "model.layers.0.block_sparse_moe"
    assert found["layers[0].ffn.router"] == "model.layers.0.block_sparse_moe.gate"
    assert "layers[0].ffn.gate" not in found  # a stack of experts is no module


def test_a_tied_head_is_paired_though_the_checkpoint_has_no_tensor_for_it():
    assert "lm_head.weight" not in saved("converted").tensors
    assert paired("converted")["head"] == "lm_head"


def test_names_as_they_are_published_with_images():
    found = paired("gemma3")
    assert found["text"] == "language_model.model"
    assert found["vision.layers[0].ffn.first"].endswith("encoder.layers.0.mlp.fc1")
    assert set(found.values()) <= set(saved("gemma3").order)


class Fused(Module):
    q: Linear = gguf("q", hf=Part("qkv_proj", 0, (12, 6, 6)))
    k: Linear = gguf("k", hf=Part("qkv_proj", 1, (12, 6, 6)), op=PermuteRope(1))
    one: Linear = gguf("one", hf="both")
    other: Linear = gguf("other", hf="both")


def test_fused_projections_are_parts():
    model: Any = Fused(None)
    found = pairs(model, {"qkv_proj.weight", "both.weight"})
    assert [(p.path, p.name, p.part, p.op) for p in found] == [
        ("q", "qkv_proj", Part("qkv_proj", 0, (12, 6, 6)), None),
        ("k", "qkv_proj", Part("qkv_proj", 1, (12, 6, 6)), PermuteRope(1)),
    ]  # neither of two that claim the whole of a module is what that does


def test_every_case_is_of_an_architecture_with_names_for_all():
    assert {case.arch for case in CASES.values()} == {
        "llama",
        "gemma3",
        "idefics3",
        "llama4",
        "mllama",
        "qwen2audio",
    }
