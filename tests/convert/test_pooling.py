"""How a sentence-transformers model pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.metadata import pooling_type
from ggmodel.errors import FormatError, Unsupported
from tests.convert.folders import write_model
from tests.golden.files import load_embeddings


def module(folder: Path, config: Any) -> Path:
    (folder / "modules.json").write_text("[]")
    (folder / "1_Pooling").mkdir()
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "1_Pooling" / "config.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, 3),
        ({"embedding_dimension": 8, "pooling_mode": "cls"}, 2),
    ],
)
def test_what_a_module_says(tmp_path: Path, config: dict[str, Any], number: int):
    assert pooling_type(module(tmp_path, config)) == number


def test_the_module_of_a_checkpoint_counts(tmp_path: Path):
    golden = load_embeddings("bert", "released")
    write_model(tmp_path, golden.config, golden.weights())
    with CheckpointSource.open(tmp_path) as source:
        before = source.metadata.get("bert.pooling_type")
    module(tmp_path, {"pooling_mode_lasttoken": True})
    with CheckpointSource.open(tmp_path) as source:
        assert source.metadata["bert.pooling_type"] == 3 != before


def test_without_a_module_nothing_is_said(tmp_path: Path):
    assert pooling_type(tmp_path) is None


def test_another_way_of_pooling_is_refused(tmp_path: Path):
    with pytest.raises(Unsupported, match="pooling by pooling_mode_max_tokens is unsupported"):
        pooling_type(module(tmp_path, {"pooling_mode_max_tokens": True}))


def test_a_config_that_is_none(tmp_path: Path):
    with pytest.raises(FormatError, match=r"1_Pooling/config\.json"):
        pooling_type(module(tmp_path, "[1"))
