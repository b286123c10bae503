"""Adapters as files: described, converted, merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, FormatError, WriteError
from ggmodel.workbench.adapters import convert_adapter, described, merge_adapters

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
STORIES, SHOUT = ASSETS / "stories.gguf", ASSETS / "shout"
ADAPTERS = Path(__file__).parents[1] / "convert" / "adapters"
IDS = [1, 5, 9, 40]


def test_a_description():
    about = described(ADAPTERS / "patterns")
    assert (about["kind"], about["ranks"], about["alpha"]) == ("LoRA", [2, 4, 6], 8)
    assert about["changes"] == {"down_proj": 2, "k_proj": 2, "o_proj": 2, "q_proj": 2, "v_proj": 2}
    assert described(ADAPTERS / "dora")["kind"] == "DoRA"
    with pytest.raises(FormatError, match="is no adapter: its general"):
        described(STORIES)


def test_a_converted_adapter_gives_the_same_bits(tmp_path: Path):
    about = convert_adapter(STORIES, SHOUT, tmp_path / "shout.gguf")
    assert about["changes"] == {"token_embd": 1}
    with ggmodel.load(STORIES, adapters=SHOUT) as model:
        model.adapters.add(tmp_path / "shout.gguf", "file", strength=0)
        folder, file = (model.logits(IDS, adapters=name) for name in ("shout", "file"))
    assert np.array_equal(folder, file)
    with pytest.raises(WriteError):
        convert_adapter(STORIES, SHOUT, tmp_path / "shout.gguf")


def test_a_merged_file_has_a_head_of_its_own(tmp_path: Path):
    merge_adapters(STORIES, {str(SHOUT): 0.5}, tmp_path / "loud.gguf")
    with ggmodel.load(STORIES, adapters={SHOUT: 0.5}) as model:
        expected = model.logits(IDS)
    with ggmodel.load(tmp_path / "loud.gguf") as merged:
        # The head is rounded to F16, where it was Q8_0 beside a change in F32.
        assert np.allclose(merged.logits(IDS), expected, atol=0.1)
        assert "output.weight" in merged.source.tensors


def test_dora_is_merged_alone(tmp_path: Path, write_gguf):
    from tests.convert.test_peft import source_of

    _, source = source_of("dora")
    model = write_gguf(tmp_path / "model.gguf", source)
    both = {str(ADAPTERS / "dora"): 1.0, str(ADAPTERS / "plain"): 1.0}
    with pytest.raises(ConfigError, match="merged one by one"):
        merge_adapters(model, both, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_a_strength_that_is_no_number_merges_nothing(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"strength of .*shout is nan"):
        merge_adapters(STORIES, {str(SHOUT): float("nan")}, tmp_path / "out.gguf")
    assert not [*tmp_path.iterdir()]
