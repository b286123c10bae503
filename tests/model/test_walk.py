"""Visits of a declaration that fill nothing: the fields of classes, the modules of a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ggmodel import Module, Tensor, gguf
from ggmodel.gguf_file import MemorySource
from ggmodel.model import fill
from ggmodel.model.module import of_tower
from ggmodel.model.walk import class_fields, instances, tensors
from ggmodel.nn import Linear


class Leaf(Module):
    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")


class Dense(Module):
    up: Leaf = gguf("up")


class Nested(Module):
    inner: Dense | None = gguf("inner")
    up: Leaf = gguf("up_exps")


class Layer(Module):
    ffn: Dense | Nested = gguf(hf="mlp")
    gates: list[Tensor] = gguf("gate", n=2)


class Whole(Module):
    note: str = "no field"
    layers: list[Layer] = gguf("blk", n=2)
    head: Leaf = gguf("output")


def test_the_fields_of_all_classes_once_outer_ones_first():
    found = [(cls.__name__, name) for cls, name, _, _ in class_fields(Whole)]
    assert found == [
        ("Whole", "layers"), ("Whole", "head"),
        ("Layer", "ffn"), ("Layer", "gates"),
        ("Leaf", "weight"), ("Leaf", "bias"),
        ("Dense", "up"),
        ("Nested", "inner"), ("Nested", "up"),
    ]  # fmt: skip
    tags = {(cls, name): (tag, kind) for cls, name, tag, kind in class_fields(Whole)}
    assert tags[Layer, "ffn"][0].hf == ("mlp",)
    assert tags[Layer, "ffn"][1].choices == (Dense, Nested)


class Weights:
    """Stands in for a backend."""

    def get(self, name: str) -> Any:
        weight = object.__new__(Tensor)
        self.names[id(weight)] = name
        self.kept.append(weight)
        return weight

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.kept: list[Tensor] = []


def filled() -> tuple[Whole, Weights]:
    names = [f"blk.{i}.gate.{k}" for i in range(2) for k in range(2)]
    names += ["blk.0.up.weight", "blk.1.inner.up.weight", "blk.1.up_exps.weight"]
    names += ["output.weight", "output.bias"]
    source = MemorySource({}, {name: np.zeros(1, np.float32) for name in names})
    model, weights = Whole(SimpleNamespace()), Weights()
    fill(model, weights, source.tensors, "test").check()
    return model, weights


def test_the_modules_of_a_model_with_both_of_their_paths():
    model, _ = filled()
    assert [(one.path, one.scope, type(one.module)) for one in instances(model)] == [
        ("", "", Whole),
        ("layers[0]", "blk.0", Layer),
        ("layers[0].ffn", "blk.0.ffn", Dense),
        ("layers[0].ffn.up", "blk.0.ffn.up", Leaf),
        ("layers[1]", "blk.1", Layer),
        ("layers[1].ffn", "blk.1.ffn", Nested),
        ("layers[1].ffn.inner", "blk.1.ffn.inner", Dense),
        ("layers[1].ffn.inner.up", "blk.1.ffn.inner.up", Leaf),
        ("layers[1].ffn.up", "blk.1.ffn.up", Leaf),
        ("head", "head", Leaf),
    ]


def test_the_tensors_of_a_module_and_of_all_within():
    model, weights = filled()
    assert sorted(weights.names[id(t)] for t in tensors(model)) == sorted(weights.names.values())
    found = [weights.names[id(t)] for t in tensors(model.layers[1])]
    assert found == [
        *("blk.1.gate.0", "blk.1.gate.1"),
        *("blk.1.inner.up.weight", "blk.1.up_exps.weight"),
    ]


def test_a_module_that_is_not_filled_has_no_tensors():
    assert list(tensors(Linear())) == []
    assert [one.path for one in instances(Whole())] == [""]


def test_the_names_of_towers():
    assert all(map(of_tower, ("v.blk.0.attn_q.weight", "mm.0.weight", "a.blk.0.ln1.weight")))
    assert not any(map(of_tower, ("blk.0.v.weight", "vocab.weight", "mmm.weight")))
