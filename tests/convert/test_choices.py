"""The choice among several kinds of module, by the tensors of a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from ggmodel import Config, Model, Module, gguf
from ggmodel.convert import plan
from ggmodel.convert.declaration import pairs
from ggmodel.errors import LoadError
from ggmodel.nn import Linear


class Empty(Module):
    gate: Linear | None = gguf("gate", hf="gate")


class Small(Module):
    up: Linear = gguf("up", hf="up")


class Large(Module):
    up: Linear = gguf("up", hf="up")
    gate: Linear | None = gguf("gate", hf="gate")
    down: Linear = gguf("down", hf="down")


class LargeFirst(Model):
    config: Config
    ffn: Large | Small = gguf("ffn", hf="ffn")


class SmallFirst(Model):
    config: Config
    ffn: Small | Large = gguf("ffn", hf="ffn")


class EmptyFirst(Model):
    config: Config
    ffn: Empty | Large = gguf("ffn", hf="ffn")


def planned(architecture: type[Model], names: str) -> set[str]:
    entries = plan(architecture, Config(), {f"ffn.{name}.weight" for name in names.split()})
    return {entry.name.removeprefix("ffn.").removesuffix(".weight") for entry in entries.entries}


@pytest.mark.parametrize("architecture", [LargeFirst, SmallFirst])
@pytest.mark.parametrize(
    ("names", "expected"),
    [("up", {"up"}), ("up down", {"up", "down"}), ("up gate down", {"up", "gate", "down"})],
)
def test_of_complete_choices_the_larger_counts(
    architecture: type[Model], names: str, expected: set[str]
):
    assert planned(architecture, names) == expected


@pytest.mark.parametrize("architecture", [LargeFirst, SmallFirst])
def test_a_complete_choice_beats_a_larger_incomplete_one(architecture: type[Model]):
    assert planned(architecture, "up gate") == {"up"}


def test_an_incomplete_choice_beats_one_without_tensors():
    with pytest.raises(LoadError, match="down"):
        plan(EmptyFirst, Config(), {"ffn.up.weight"}).report.check()


class Spread(Module):
    first: Linear = gguf("first", hf="x.first")
    second: Linear = gguf("second", hf="y.second")


class Gathered(Module):
    first: Linear = gguf("first", hf="x.first")
    second: Linear = gguf("second", hf="x.second")


class Layer(Module):
    spread: Spread = gguf(hf="")
    gathered: Gathered = gguf(hf="")


class Whole(Module):
    layer: Layer = gguf("layer", hf="layer")


def test_a_transparent_module_pairs_with_the_module_around_its_tensors():
    whole: Any = Whole(None)
    names = {f"layer.{n}.weight" for n in ("x.first", "y.second", "x.second")}
    found = {pair.path: pair.name for pair in pairs(whole, names)}
    assert found["layer.gathered"] == "layer.x"
    assert "layer.spread" not in found, "its tensors share no module but the layer"
    assert found["layer.spread.second"] == "layer.y.second"
