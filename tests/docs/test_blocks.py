"""docs/experts.md and docs/latent.md: their model files, beside transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ggmodel
from ggmodel.model.config import key_fields
from ggmodel.nn import ExpertsConfig
from ggmodel.workbench.golden import nmse, source_of
from ggmodel.workbench.routers import routed
from tests.documents import blocks, read
from tests.golden.files import load_golden


@pytest.mark.parametrize(
    ("page", "architecture", "case"),
    [("experts", "dots1", "groups"), ("latent", "deepseek2", "dense")],
)
def test_the_model_of_a_page_computes(page: str, architecture: str, case: str, tmp_path: Path):
    (code,) = blocks(read(f"docs/{page}.md"), "python")
    (tmp_path / "mine.py").write_text(code)
    golden = load_golden(architecture, case)
    golden = replace(golden, config=golden.config | {"architectures": ["MineForCausalLM"]})
    with (
        ggmodel.load(source_of(golden, models=tmp_path), models=tmp_path, kv_type="f32") as model,
        routed(model, golden.routers),
    ):
        assert model.model.architecture == "mine"
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < 1e-8


def test_the_keys_of_routers_are_named():
    page = read("docs/experts.md")
    for name, field, *_ in key_fields(ExpertsConfig):
        if field.names[0].startswith("expert_") and name != "expert_ffn":
            assert f"`{name}`" in page, name
            assert f"`{field.names[0]}`" in page, name
