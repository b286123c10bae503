"""DeepSeek V4: files and configurations that are refused, and the magnitude of YaRN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, LoadError
from ggmodel.model import find_hf
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_golden

KEY = "deepseek4"
# Metadata of the golden "published" → the error.
FILES: dict[str, tuple[dict[str, Any], str]] = {
    "rates of other layers": ({"attention.compress_ratios": [4, 0, 128]}, "compress_ratios is"),
    "another rate": (
        {"attention.compress_ratios": [0, 8, 128]},
        r"have \(64, 128, 128, 128, 4\); supported in its layer: \(64, 128, 128, 128, 8\)",
    ),
    "another number of tables": ({"hash_layer_count": 2}, "hash_layer_count is 2; 1 layers have"),
    "another function of scores": ({"expert_gating_func": 2}, "expert_gating_func is 2 .*: 4, sqr"),
    "weights that do not sum to one": ({"expert_weights_norm": False}, "weights_norm False; supp"),
}


def published(**changes: Any) -> Any:
    golden = load_golden(KEY, "published")
    config = {**golden.config, **changes}
    config = {key: value for key, value in config.items() if value is not ...}
    return from_hf(find_hf(config["architectures"]), config, golden.weights())


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(vary: Any, name: str):
    changes, message = FILES[name]
    source = source_of(load_golden(KEY, "published"))
    metadata = {f"{KEY}.{key}": value for key, value in changes.items()}
    with pytest.raises(ConfigError, match=message):
        ggmodel.load(vary(source, metadata=metadata))


@pytest.mark.parametrize("layer", [0, 2])
def test_a_layer_with_an_indexer_has_entries_that_overlap(vary: Any, layer: int):
    source = source_of(load_golden(KEY, "published"))
    indexer = {name: source.data(name) for name in source.tensors if "blk.1.indexer" in name}
    shapes = {name: source.tensors[name].shape[::-1] for name in indexer}
    arrays = {n: np.frombuffer(x, np.float32).reshape(shapes[n]) for n, x in indexer.items()}
    tensors = {name.replace("blk.1", f"blk.{layer}"): array for name, array in arrays.items()}
    message = "without compressed entries" if layer == 0 else r"have \(64, 64, 64, 64, 128\)"
    with pytest.raises(ConfigError, match=message):
        ggmodel.load(vary(source, tensors=tensors))


def test_a_bias_of_the_grouped_output_is_refused(vary: Any):
    source = source_of(load_golden(KEY, "published"))
    bias = {"blk.0.attn_output_a.bias": np.ones(64, np.float32)}
    with pytest.raises(LoadError, match=r"unused +blk\.0\.attn_output_a\.bias"):
        ggmodel.load(vary(source, tensors=bias))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 4, 16]}, "compress_ratios has 16; supported: 0, 4, 128"),
        (
            {"layer_types": ["full_attention"] * 3},
            "layer_types has 'full_attention'; supported: sliding_attention, compressed_sp",
        ),
        ({"mlp_layer_types": ["hash_moe", "dense", "moe"]}, "mlp_layer_types has 'dense'; supp"),
    ],
    ids=["ratio", "layer", "experts"],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        published(**changes)


def test_scales_count_in_a_table_of_ropes_alone():
    key = f"{KEY}.rope.scaling.yarn_attn_factor"
    scaling = {**load_golden(KEY, "published").config["rope_scaling"], "mscale": 2.0}
    own = {"mscale_all_dim": 0.5}
    assert published(rope_scaling={**scaling, **own}).metadata.get(key, 1.0) == 1.0
    own = {"attention_factor": 1.5}
    assert published(rope_scaling={**scaling, **own}).metadata[key] == 1.5
