"""Pictures and sounds from a file to logits, as the processors of transformers prepare them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggmodel.workbench import golden
from ggmodel.workbench.golden.preparation import Preparation, picture, samples
from tests.golden.files import HERE

FILES = sorted(HERE.glob("*/prepared/*.npz"))
LARGEST = 100_000  # bytes of a file


def outcomes(folder: Path, case: str) -> list[golden.Outcome]:
    cases = golden.Cases(folder)
    loading = golden.Loading(cases, None, {"kv_type": "f32", "flash_attention": "off"})
    bound = cases.bounds.get(case, golden.EXACT)
    whole = cases.load(case)
    assert isinstance(whole, golden.Golden)
    return list(golden._prepared(loading, whole, case, bound))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_files_are_prepared_as_by_transformers(path: Path):
    results = outcomes(path.parents[1], path.stem)
    assert [str(one) for one in results if not one.ok] == []
    assert len(results) > 0 and path.stat().st_size < LARGEST


def test_every_model_of_pictures_or_sounds_has_files():
    """Items of encoders and decoders of text are prompts."""
    there = {path.parts[-3] for path in FILES}
    seeing = {
        p.parent.name for p in HERE.glob("*/cases.py") if "\nPICTURES" in p.read_text("utf-8")
    }
    assert seeing - {"bart", "marian", "t5"} == there


def test_a_difference_is_named_by_its_step(monkeypatch: pytest.MonkeyPatch):
    stored = Preparation.load(HERE / "gemma3", "images")
    assert stored is not None
    pixels = stored.items["wide"].inputs["pixel_values"]
    for other, step in (
        (pixels[..., :-1], "size"),
        (pixels[:, ::-1], "order"),
        (pixels * 1.01, "normalisation"),
        (np.roll(pixels, 1, -1) + pixels, "resampling"),
    ):
        item = replace(stored.items["wide"], inputs={"pixel_values": other})
        wrong = replace(stored, items={"wide": item})
        monkeypatch.setattr(Preparation, "load", lambda *_, wrong=wrong: wrong)
        (only,) = outcomes(HERE / "gemma3", "images")
        assert not only.ok and only.differs.startswith(f"preparation, {step}")


def test_files_follow_from_their_sizes():
    assert picture(3, 2) == picture(3, 2) != picture(2, 3)
    heard = samples(800)
    assert not heard[:100].any() and 0 < np.abs(heard[100:200]).max() < 1 << 8
    assert np.abs(heard[200:]).max() > 1 << 12
