"""Sparse autoencoders: features by their formulas, as steering vectors, and other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, FormatError, Unsupported
from ggmodel.workbench.autoencoders import SparseAutoencoder
from tests.workbench.autoencoders import write
from tests.workbench.models import STORIES

PROMPT = "Once upon a time, there was a fox"
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("standard", {}),
    ("standard", {"apply_b_dec_to_input": False, "normalize_activations": "none"}),
    ("jumprelu", {}),
    ("topk", {"k": 3, "metadata": {"hook_name": "blocks.3.hook_resid_pre"}, "hook_name": None}),
    ("topk", {"k": 24, "rescale_acts_by_decoder_norm": True}),
    ("standard", {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 2}}),
]


def features_of(x: np.ndarray, w: dict[str, Any], config: dict[str, Any]) -> np.ndarray:
    """The features of a row, one by one."""
    x = x - w["b_dec"] if config.get("apply_b_dec_to_input", True) else x
    values = []
    for j in range(len(w["b_enc"])):
        value = sum(x * w["W_enc"][:, j]) + w["b_enc"][j]
        if config.get("rescale_acts_by_decoder_norm"):
            value *= sum(w["W_dec"][j] ** 2) ** 0.5
        values.append(value if value > max(w["threshold"][j] if "threshold" in w else 0, 0) else 0)
    k = config.get("k", config.get("activation_fn_kwargs", {}).get("k", len(values)))
    return np.array([v if v in sorted(values)[-k:] else 0 for v in values])


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_features_are_those_of_the_formula(kind: str, config: dict[str, Any], tmp_path: Path):
    weights = write(tmp_path / "sae", kind, 16, **config)
    made = SparseAutoencoder.load(tmp_path / "sae")
    rows = np.random.default_rng(3).normal(size=(9, 16))
    wanted = np.array([features_of(row, weights, config) for row in rows])
    found = made.encode(rows)
    assert found.dtype == np.float32 and 0 < (wanted > 0).sum() < wanted.size
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    norms = np.linalg.norm(weights["W_dec"], axis=1)
    scaled = wanted / (norms if config.get("rescale_acts_by_decoder_norm") else 1)
    expected = scaled @ weights["W_dec"] + weights["b_dec"]
    np.testing.assert_allclose(made.decode(found), expected, rtol=1e-4, atol=1e-4)
    for row, pairs in zip(wanted, made.top(rows, 2), strict=True):
        assert [i for i, _ in pairs] == [i for i in np.argsort(-row)[:2] if row[i] > 0]
        assert [value for _, value in pairs] == pytest.approx([row[i] for i, _ in pairs], rel=1e-4)


@pytest.mark.parametrize("hook", ["blocks.2.hook_resid_post", "blocks.3.hook_resid_pre"])
def test_a_feature_steers_the_layer_that_it_is_of(hook: str, tmp_path: Path):
    weights = write(tmp_path / "sae", hook_name=hook)
    made = SparseAutoencoder.load(tmp_path / "sae")
    assert made.hook == hook
    with ggmodel.load(STORIES) as model:
        with model.capture(hook) as seen:
            model.generate(PROMPT, max_tokens=1, steer=[])
            model.generate(PROMPT, max_tokens=1, steer=made.steering(5) * 2.0)
        before, after = (one["layers.2"] for one in seen.requests)
        assert made.encode(before).shape == (len(before), 24)
    np.testing.assert_allclose(after - before, 0 * before + 2 * weights["W_dec"][5], atol=1e-4)


def test_other_files_say_what_is_wrong(tmp_path: Path):
    def refused(name: str, error: type[Exception], match: str, **config: Any) -> None:
        write(tmp_path / name, **config)
        with pytest.raises(error, match=match):
            SparseAutoencoder.load(tmp_path / name)

    refused("gated", Unsupported, "architecture is 'gated'", kind="gated")
    refused("tanh", Unsupported, "activation_fn is None", activation_fn_str="tanh-relu")
    refused("norm", Unsupported, "normalize_activations is", normalize_activations="layer_norm")
    refused("k", FormatError, "k is None", kind="topk")
    refused("many", FormatError, "k of at most", kind="topk", k=25)
    write(tmp_path / "mixed", "jumprelu")  # whose weights have a threshold
    (tmp_path / "mixed" / "cfg.json").write_text("{}")
    with pytest.raises(FormatError, match="standard needs W_enc"):
        SparseAutoencoder.load(tmp_path / "mixed")
    write(tmp_path / "sae", width=16)
    made = SparseAutoencoder.load(tmp_path / "sae")
    with pytest.raises(ConfigError, match=r"capture blocks\.2"):
        made.encode(np.zeros((1, 17)))
    with pytest.raises(ConfigError, match="0 to 23"):
        made.steering(24)
    (tmp_path / "sae" / "sae_weights.safetensors").unlink()
    with pytest.raises(FormatError):
        SparseAutoencoder.load(tmp_path / "sae")
    write(tmp_path / "other", hook_name="blocks.0.hook_resid_pre")
    with pytest.raises(ConfigError, match="name the layer"):
        SparseAutoencoder.load(tmp_path / "other").steering(0)
