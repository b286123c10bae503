"""The parts of `Model` that architectures override."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ggmodel import Config
from ggmodel.errors import ArchitectureError, TokenizerError, Unsupported
from ggmodel.model import VisionModel
from ggmodel.model.registry import find_hf


class Blind(VisionModel):
    config: Config


def test_a_model_sees_nothing_and_has_no_largest_image_by_default():
    model: Any = Blind(Config())
    assert not model.has_vision
    with pytest.raises(Unsupported, match="Blind has no largest_image"):
        _ = model.largest_image


def test_a_special_token_is_found_by_its_text():
    model: Any = Blind(Config())
    model.tokenizer = None
    assert model.token_id("<image>", default=7) == 7
    model.tokenizer = SimpleNamespace(id_of_text={"<image>": 0}.get)
    assert model.token_id("<image>") == model.token_id("<image>", default=7) == 0
    assert model.token_id("<end>", default=0) == 0


@pytest.mark.parametrize("tokenizer", [None, SimpleNamespace(id_of_text={}.get)])
def test_a_token_that_is_missing_is_an_error_unless_a_default_is_named(tokenizer: Any):
    model: Any = Blind(Config())
    model.tokenizer = tokenizer
    with pytest.raises(TokenizerError, match=r"Blind: no token .* '<end>'; token_id\(…, default="):
        model.token_id("<end>")
    with pytest.raises(TypeError, match="positional"):
        model.token_id("<end>", 8)


def test_an_unknown_class_leads_to_a_new_architecture():
    """Classes of one spelling are of other models: GlmForCausalLM is no Glm4ForCausalLM."""
    with pytest.raises(ArchitectureError, match=r"GlmForCausalLM\. `ggmodel new NAME --hf") as e:
        find_hf(["GlmForCausalLM"])
    assert "did you mean" not in str(e.value)
    assert "Served are " in str(e.value) and len(str(e.value)) < 400
