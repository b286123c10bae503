"""The keys of a config.json that a library's model code takes, found in its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggmodel.workbench.reference_keys import keys_read

CONFIGURATION = """
from ...configuration_utils import PreTrainedConfig

class TinyTextConfig(PreTrainedConfig):
    model_type = "tiny_text"
    default_theta = 5000.0
    attribute_map = {"n_experts": "num_experts"}
    plan: ClassVar[dict] = {}
    hidden_size: int = 8
    context: int = 4 * 16
    checked: float = interval(min=0.0)(default=0.5)
    num_experts: int = 4
    first_dense: int = 3
    rope_parameters: dict | None = None
    layer_types: list[str] | None = None
    nobody_reads: int = 7

    def __post_init__(self, **kwargs):
        self.every = kwargs.pop("pattern", 6)
        self.layer_types = [i > self.first_dense for i in range(self.hidden_size)]

class TinyConfig(PreTrainedConfig):
    sub_configs_defaults = {
        "text_config": TinyTextConfig,
        "tower_config": SubConfigSpec(config_class=AutoConfig, model_type="eye"),
    }
    text_config: dict | None = None
    tower_config: dict | None = None
    rows: int = 9
"""
MODELING = """
from ...masking_utils import make_mask
from ...modeling_utils import PreTrainedModel
from .configuration_tiny import TinyConfig, TinyTextConfig

class Layer(nn.Module):
    def __init__(self, config: TinyTextConfig):
        self.width = config.hidden_size
        self.experts = self.config.num_experts
        self.sections = config.rope_parameters["sections"]
        self.more = self.config.rope_scaling.get("more", 1)
        self.each = config.rope_parameters[kind]["of_a_kind"]
        self.scale = getattr(config, "scale", 2.5) + config.get_text_config().checked
        config.written = 5

class Unreached(nn.Module):
    def __init__(self, config):
        self.x = config.nobody_reads

class TinyModel(PreTrainedModel):
    config: TinyConfig

    def __init__(self, config: TinyConfig):
        self.rows = config.rows
        self.layers = [Layer(config.text_config) for _ in range(2)]
        mask = make_mask(config)

class TinyText(PreTrainedModel):
    config: TinyTextConfig

    def forward(self):
        return Layer(self.config), self.config.context
"""
FILES = {
    "__init__.py": '__version__ = "1.0"\n',
    "configuration_utils.py": "class PreTrainedConfig:\n    is_decoder: bool = False\n",
    "masking_utils.py": 'def make_mask(config):\n    return getattr(config, "window", None)\n',
    "modeling_utils.py": "class PreTrainedModel:\n    x = config.internal\n",
    "models/tiny/configuration_tiny.py": CONFIGURATION,
    "models/tiny/modeling_tiny.py": MODELING,
    "models/eye/configuration_eye.py": (
        'class EyeConfig:\n    model_type = "eye"\n    hidden_act: str = "gelu"\n    x: int = 2\n'
        'class EarConfig:\n    model_type = "ear"\n    rate: int = 16\n'
    ),
    "models/eye/modeling_eye.py": (
        "class EyeModel:\n    x = ACT[config.hidden_act]\nclass EarModel:\n    x = config.rate\n"
    ),
    "models/auto/auto_mappings.py": 'NAMES = [("eye", "EyeConfig"), ("ear", "EarConfig")]\n',
    "models/auto/modeling_auto.py": 'NAMES = [("eye", "EyeModel"), ("ear", "EarModel")]\n',
}
ROPE = ("sections", "more", "of_a_kind")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "transformers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "transformers"


def test_what_a_class_and_its_parts_take_from_a_config(root: Path):
    found = keys_read("TinyText", root=root)
    assert found == {
        "checked": 0.5,
        "context": 64,
        "first_dense": 3,  # the config's class computes layer_types from it
        "hidden_size": 8,
        "n_experts": None,  # another name of num_experts
        "num_experts": 4,
        "pattern": 6,
        "rope_parameters": None,
        **{f"rope_parameters.{key}": None for key in ROPE},
        "rope_theta": 5000.0,
        "scale": 2.5,
    }


def test_the_parts_of_a_config(root: Path):
    found = keys_read("TinyModel", root=root) or {}
    assert found["rows"] == 9 and found["window"] is None
    assert found["text_config.hidden_size"] == 8
    assert found["text_config.rope_parameters.sections"] is None
    assert found["tower_config.hidden_act"] == "gelu"
    assert not {"text_config", "tower_config", "tower_config.x", "internal"} & found.keys()
    assert not [key for key in found if "nobody_reads" in key or "written" in key]


@pytest.mark.parametrize(
    ("tower", "key"), [({"model_type": "ear"}, "rate"), (None, "hidden_act"), ({}, "hidden_act")]
)
def test_a_config_chooses_the_class_of_a_part(root: Path, tower: dict[str, Any] | None, key: str):
    found = keys_read("TinyModel", {"tower_config": tower}, root) or {}
    assert [k for k in ("rate", "hidden_act") if f"tower_config.{k}" in found] == [key]


def test_a_class_that_is_unknown(root: Path):
    assert keys_read("Nobody", root=root) is None
    assert keys_read("Tiny", root=root) is None  # only the beginning of a name


def test_without_an_installed_transformers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert keys_read("LlamaForCausalLM") is None


def test_an_installed_transformers_is_found(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(root.parent)
    assert keys_read("TinyText") == keys_read("TinyText", root=root)
