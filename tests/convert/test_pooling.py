"""How a sentence-transformers model pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.metadata import pooling_type
from ggmodel.errors import FormatError, Unsupported
from tests.convert.folders import write_model
from tests.golden.files import load_embeddings, load_golden


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


def test_decoders_pool_as_their_module_says(tmp_path: Path):
    """Saved as the body alone, whose names lack "model."."""
    golden = load_golden("qwen3", "tied")
    weights = {name.removeprefix("model."): data for name, data in golden.weights().items()}
    write_model(tmp_path, golden.config, weights)
    module(tmp_path, {"pooling_mode_lasttoken": True, "include_prompt": True})
    prompt = golden.prompt.tolist()
    with CheckpointSource.open(tmp_path) as source:
        assert source.metadata["qwen3.pooling_type"] == 3
    with ggmodel.load(tmp_path, threads=1) as model:
        [got], [last] = model.embed([prompt]), model.embed([prompt], pooling="last")
        [mean] = model.embed([prompt], pooling="mean")
    np.testing.assert_array_equal(got, last)
    assert np.abs(got - mean).max() > 0.01


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"pooling_mode_max_tokens": True}, "pooling by pooling_mode_max_tokens is unsupported"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "pooling by pooling_mode_cls_token and pooling_mode_mean_tokens is unsupported",
        ),
        ({"pooling_mode": "weightedmean"}, "pooling by weightedmean is unsupported"),
        ({"pooling_mode_cls_token": False}, "pooling by nothing is unsupported"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt false is unsupported"),
    ],
)
def test_another_way_of_pooling_is_refused(tmp_path: Path, config: dict[str, Any], text: str):
    with pytest.raises(Unsupported, match=text):
        pooling_type(module(tmp_path, config))


def test_without_a_module_nothing_is_said(tmp_path: Path):
    assert pooling_type(tmp_path) is None


def test_a_config_that_is_none(tmp_path: Path):
    with pytest.raises(FormatError, match=r"1_Pooling/config\.json"):
        pooling_type(module(tmp_path, "[1"))
