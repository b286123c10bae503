"""Sparse autoencoders: features by SAELens, as steering vectors, and other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, FormatError, Unsupported
from ggmodel.workbench.autoencoders import SparseAutoencoder
from tests.workbench.autoencoders import KINDS, ROWS, WIDTH, write
from tests.workbench.models import STORIES

PROMPT = "Once upon a time, there was a fox"
SAELENS = json.loads(Path(__file__).with_name("saelens.json").read_text())


@pytest.mark.parametrize("case", range(len(KINDS)))
def test_features_are_those_of_saelens(case: int, tmp_path: Path):
    """See make_saelens.py."""
    kind, config = KINDS[case]
    write(tmp_path / "sae", kind, WIDTH, **config)
    made = SparseAutoencoder.load(tmp_path / "sae")
    wanted = np.array(SAELENS[case]["features"])
    found = made.encode(ROWS)
    assert found.dtype == np.float32 and 0 < (wanted > 0).sum() < wanted.size
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)
    assert ((found > 0) == (wanted > 0)).all()
    np.testing.assert_allclose(made.decode(found), SAELENS[case]["rows"], rtol=1e-6, atol=2e-5)
    for row, pairs in zip(wanted, made.top(ROWS, 2), strict=True):
        assert [i for i, _ in pairs] == [i for i in np.argsort(-row)[:2] if row[i] > 0]
        assert [value for _, value in pairs] == pytest.approx([row[i] for i, _ in pairs], abs=1e-5)


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


@pytest.mark.parametrize("case", range(len(KINDS)))
def test_features_computed_in_the_graph_are_those_of_rows(case: int, tmp_path: Path):
    kind, config = KINDS[case]
    write(tmp_path / "sae", kind, **config)
    made, options = SparseAutoencoder.load(tmp_path / "sae"), {"max_tokens": 4, "temperature": 0}
    with ggmodel.load(STORIES) as model:
        with model.capture("layers.2") as rows:
            model.generate(PROMPT, **options)  # type: ignore[arg-type]
        with model.capture({"layers.2": made.largest(4)}) as seen:
            model.generate(PROMPT, **options)  # type: ignore[arg-type]
    captured = seen["layers.2"]
    assert captured.shape[1] == 2 * min(4, made.k or 4)
    for theirs, ours in zip(made.top(rows["layers.2"], 4), made.pairs(captured), strict=True):
        assert [i for i, _ in ours] == [i for i, _ in theirs]
        values = [value for _, value in theirs]
        assert [value for _, value in ours] == pytest.approx(values, rel=1e-5, abs=1e-3)
    for count in (0, 25):
        with pytest.raises(ConfigError, match=f"{count} features of a row; there are 24"):
            made.largest(count)


@pytest.mark.parametrize("key", ["center_writing_weights", "fold_ln"])
def test_features_of_a_model_that_transformerlens_changes_are_refused(key: str, tmp_path: Path):
    for number, value in enumerate((False, True)):
        told: dict[str, Any] = {"model_from_pretrained_kwargs": {key: value, "n_devices": 1}}
        for where, config in {"top": told, "within": {"metadata": told}}.items():
            folder = tmp_path / f"{where}{number}"
            write(folder, **config)
            if not value:
                SparseAutoencoder.load(folder)
                continue
            with pytest.raises(Unsupported, match=f"model_from_pretrained_kwargs has {key}"):
                SparseAutoencoder.load(folder)


def test_other_files_say_what_is_wrong(tmp_path: Path):
    def refused(name: str, error: type[Exception], match: str, **config: Any) -> None:
        write(tmp_path / name, **config)
        with pytest.raises(error, match=match):
            SparseAutoencoder.load(tmp_path / name)

    refused("gated", Unsupported, "architecture is 'gated'", kind="gated")
    refused("tanh", Unsupported, "activation_fn_str is 'tanh-relu'", activation_fn_str="tanh-relu")
    refused("gelu", Unsupported, "activation_fn is 'gelu'", activation_fn="gelu")
    refused("norm", Unsupported, "normalize_activations is", normalize_activations="layer_norm")
    told = {"model_from_pretrained_kwargs": "none"}
    refused("text", FormatError, "kwargs is 'none', no object", metadata=told)
    refused("k", FormatError, "k is None", kind="topk")
    refused("none", FormatError, "k is 0", kind="topk", k=0)
    refused("list", FormatError, "k is None", kind="topk", activation_fn_kwargs=[8])
    refused("many", FormatError, "k of at most", kind="topk", k=25)
    write(tmp_path / "mixed", "jumprelu")  # whose weights have a threshold
    (tmp_path / "mixed" / "cfg.json").write_text("{}")
    with pytest.raises(FormatError, match="standard needs W_enc"):
        SparseAutoencoder.load(tmp_path / "mixed")
    write(tmp_path / "sae", width=16)
    made = SparseAutoencoder.load(tmp_path / "sae")
    with pytest.raises(ConfigError, match=r"capture blocks\.2"):
        made.encode(np.zeros((1, 17)))
    with pytest.raises(ConfigError, match=r"features \[2, 5\]; rows have 24 of them"):
        made.decode(np.zeros((2, 5)))
    with pytest.raises(ConfigError, match="0 to 23"):
        made.steering(24)
    (tmp_path / "sae" / "sae_weights.safetensors").unlink()
    with pytest.raises(FormatError):
        SparseAutoencoder.load(tmp_path / "sae")
    write(tmp_path / "other", hook_name="blocks.0.hook_resid_pre")
    with pytest.raises(ConfigError, match="name the layer"):
        SparseAutoencoder.load(tmp_path / "other").steering(0)
