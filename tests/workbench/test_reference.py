"""Modules of a transformers model are found by their tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ggmodel.audio import Audio
from ggmodel.errors import NotInstalled, Unsupported
from ggmodel.workbench import reference
from ggmodel.workbench.reference import _located

W = np.random.default_rng(2).normal(size=(24, 8)).astype(np.float32)


class Held:
    """A parameter as torch has it."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def cpu(self) -> Held:
        return self

    def numpy(self) -> np.ndarray:
        return self.values


def test_renamed_modules_are_found_by_their_tensors():
    ones = np.ones(8, np.float32)
    on_disk = {
        "language_model.model.layers.0.norm.weight": ones,
        "language_model.model.layers.1.norm.weight": ones,
        "language_model.model.layers.0.moe.gate.weight": W,
        "language_model.model.layers.1.moe.gate.weight": 2 * W,
        "tower.layers.0.norm.weight": ones,
    }
    in_memory = {
        "model.language_model.layers.0.norm.weight": ones,
        "model.language_model.layers.1.norm.weight": ones,
        "model.language_model.layers.0.mlp.gate.weight": W,
        "model.language_model.layers.1.mlp.gate.weight": 2 * W,
        "model.tower.encoder.layers.0.norm.weight": ones,
        "lm_head.weight": W,
    }
    modules = {"": "whole"}
    for name in in_memory:
        parts = name.split(".")[:-1]
        modules |= {".".join(parts[:i]): ".".join(parts[:i]) for i in range(1, len(parts) + 1)}
    net: Any = SimpleNamespace(
        named_modules=modules.items,
        state_dict=lambda: {name: Held(values) for name, values in in_memory.items()},
    )
    checkpoint: Any = SimpleNamespace(tensors=on_disk, array=on_disk.__getitem__)
    wanted = {
        "language_model.model": "model.language_model",
        "language_model.model.layers.1": "model.language_model.layers.1",
        "language_model.model.layers.1.norm": "model.language_model.layers.1.norm",
        "language_model.model.layers.1.moe": "model.language_model.layers.1.mlp",
        "language_model.model.layers.0.moe.gate": "model.language_model.layers.0.mlp.gate",
        "tower.layers.0.norm": "model.tower.encoder.layers.0.norm",
        "lm_head": "lm_head",
    }
    assert _located(net, checkpoint, [*wanted, "nothing.of.it"]) == wanted


def test_voxtrals_processor_takes_a_sound_by_its_parts(monkeypatch: pytest.MonkeyPatch):
    """It takes none with a text: its extractor fills up a sound, which is cut into windows."""
    asked: dict[str, Any] = {}

    class VoxtralProcessor:
        audio_kwargs = {"max_source_positions": 40, "pad_to_multiple_of": 6400}

        def feature_extractor(self, samples: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
            asked.update(options)
            return {"input_features": np.arange(8 * 80.0).reshape(1, 8, 80)}

        def tokenizer(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1, *[9] * text.count("[AUDIO]")]}

    auto = SimpleNamespace(from_pretrained=lambda *_, **__: VoxtralProcessor())
    monkeypatch.setattr(reference, "need", lambda name: SimpleNamespace(AutoProcessor=auto))
    sound = Audio(np.zeros(6401, np.float32), 16_000)
    found = reference.item_inputs("folder", "a[AUDIO]b", "audio", sound)
    assert found["input_ids"].tolist() == [1, *[9] * 10]
    whole = np.arange(8 * 80.0).reshape(8, 80)
    assert np.array_equal(found["input_features"], [whole[:, :40], whole[:, 40:]])
    assert (asked["pad_to_multiple_of"], asked["truncation"]) == (6400, False)


@pytest.mark.parametrize(
    ("cause", "raised"), [(ImportError("needs torchvision"), NotInstalled), (OSError, Unsupported)]
)
def test_a_processor_that_lacks_a_library_is_told_from_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, cause: Any, raised: type[Exception]
):
    def from_pretrained(*_: Any, **__: Any) -> None:
        raise cause

    auto = SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setattr(reference, "need", lambda name: SimpleNamespace(AutoProcessor=auto))
    with pytest.raises(Unsupported) as error:
        reference.item_inputs("folder", "a", "image", None)
    assert error.type is raised
