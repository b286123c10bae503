"""Muse Glimmer: the tower that is left out, and configurations that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, Error
from tests.convert.folders import write_golden


def folder_of(path: Path, **changes: Any) -> Path:
    folder, _ = write_golden(path, "muse_glimmer", "published")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkpoint_with_a_tower_is_its_text(tmp_path: Path):
    folder = folder_of(tmp_path / "hf")
    assert b"model.vision_tower." in (folder / "model.safetensors").read_bytes()
    with ggmodel.load(folder, context_length=64) as model:
        assert len(model.generate("AB", max_tokens=3, temperature=0).tokens) == 3
        with pytest.raises(Error, match="image"):
            model.generate("AB", images=[np.zeros((4, 4, 3), np.uint8)], max_tokens=3)


def test_bases_by_layer_are_that_of_the_rope_or_none(tmp_path: Path):
    folder = folder_of(tmp_path / "hf", layer_rope_theta=[5e5, 1e4, 1e4, 0])
    with pytest.raises(ConfigError, match="layer_rope_theta has other bases than 0 and 10000"):
        ggmodel.load(folder)


def test_flags_for_another_number_of_layers(tmp_path: Path):
    folder = folder_of(tmp_path / "hf", layer_rope_theta=[1e4, 0])
    with pytest.raises(ConfigError, match=r"rope\.layers has 2 flags for 4 layers"):
        ggmodel.load(folder)
