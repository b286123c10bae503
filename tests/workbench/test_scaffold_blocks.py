"""`ggmodel new`: the template with most of a checkpoint's blocks, and what is left behind of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import MODEL_ARCH_NAMES

from ggmodel.convert import from_hf
from ggmodel.model import config_class, find
from ggmodel.workbench import golden
from ggmodel.workbench.scaffold import Scaffold, scaffold
from ggmodel.workbench.scaffold.translate import ARCHITECTURES, llama_cpp_name

GOLDENS = Path(__file__).parents[1] / "golden"
Checkpoint = tuple[dict[str, Any], dict[str, np.ndarray]]


def checkpoint_of(case: str, names: dict[str, str], **config: Any) -> Checkpoint:
    """The checkpoint of a golden as one of a class that nobody serves, with other names of tensors:
    the first pattern that a name has."""
    want = golden.Golden.load(GOLDENS / f"{case}.npz")
    weights = dict(want.weights())
    for before, after in names.items():
        weights = {re.sub(before, after, name): w for name, w in weights.items()}
    return {**want.config, "architectures": ["UnknownForCausalLM"], **config}, weights


def begun_from(
    folder: Path, checkpoint: Checkpoint, name: str = "new-one", **more: Any
) -> Scaffold:
    golden.checkpoint(folder / "hf", *checkpoint)
    return scaffold(name, folder / "own", hf=folder / "hf", **more)


def with_experts() -> Checkpoint:
    """A qwen3 with numbered experts as in DeepSeek's checkpoints."""
    config, weights = checkpoint_of("qwen3/plain", {}, n_routed_experts=4)
    moe = "model.layers.1.mlp"
    for kind in ("gate", "up", "down"):
        weight = weights.pop(f"{moe}.{kind}_proj.weight")
        weights |= {f"{moe}.experts.{i}.{kind}_proj.weight": weight for i in range(4)}
    weights[f"{moe}.gate.weight"] = np.ones((4, 64), np.float32)
    weights[f"{moe}.gate.e_score_correction_bias"] = np.ones(4, np.float32)
    return config | {"moe_intermediate_size": 128, "num_experts_per_tok": 2}, weights


@pytest.mark.parametrize(
    ("case", "names", "template"),
    [
        # Two matrices in place of four, and no other difference: that is Qwen3-Next.
        (
            "qwen35/experts",
            {"in_proj_(qkv|z)": "in_proj_qkvz", "in_proj_(a|b)": "in_proj_ba"},
            "qwen3next",
        ),
        # Other names of the same blocks, which EXAONE 4 has as well as OLMo 2.
        ("olmo2/plain", {"q_norm": "q_layernorm"}, "exaone4"),
        # Convolutions and experts; lfm2 and lfm2moe are one class.
        ("lfm2/experts", {}, "lfm2"),
    ],
)
def test_a_template_has_the_blocks_of_a_checkpoint(
    case: str, names: dict[str, str], template: str, tmp_path: Path
):
    assert begun_from(tmp_path, checkpoint_of(case, names)).template == template


def test_experts_make_a_template_with_experts_the_nearest(tmp_path: Path):
    """Their number is called otherwise in config.json than the template's."""
    checkpoint = with_experts()
    begun = begun_from(tmp_path, checkpoint)
    assert begun.template == "dots1" and begun.added == []
    text = begun.files[0].read_text()
    assert 'nn.selection_bias("gate.e_score_correction_bias")' in text
    assert not [p for p in begun.proposals if p.owner == "Experts"]


def test_a_tower_that_a_checkpoint_lacks_is_not_copied(tmp_path: Path):
    """InternVL's text is that of qwen3, with more optional biases."""
    begun = begun_from(tmp_path, checkpoint_of("qwen3/bias", {}))
    assert begun.template == "qwen3"


@pytest.mark.parametrize(
    ("name", "own", "folder"),
    [
        ("gpt_bigcode", "starcoder", "starcoder"),
        ("wavtokenizer_dec", "wavtokenizer-dec", "wavtokenizer_dec"),
        ("xlm-roberta", "xlm-roberta", "xlm_roberta"),  # bert is another family's name here
        ("new-one", "new-one", "new_one"),
    ],
)
def test_an_architecture_has_its_name_in_llama_cpp(
    name: str, own: str, folder: str, tmp_path: Path
):
    begun = scaffold(name, tmp_path)
    file = name.replace("-", "_")
    assert begun.name == own and find(own, tmp_path).__module__.endswith(f"_{file}")
    assert (tmp_path / "goldens" / folder / "cases.py").exists()
    assert f"ggmodel golden {own} --models" in (tmp_path / "README.md").read_text()


def test_two_of_one_name_in_llama_cpp_stand_beside_each_other(tmp_path: Path):
    assert scaffold("gpt_bigcode", tmp_path).name == "starcoder"
    assert scaffold("star_coder", tmp_path).name == "star_coder"
    assert find("starcoder", tmp_path) is not find("star_coder", tmp_path)


def test_names_of_architectures_are_those_of_llama_cpp():
    assert set(ARCHITECTURES.values()) <= set(MODEL_ARCH_NAMES.values())
    plain = {re.sub(r"\W|_", "", name) for name in MODEL_ARCH_NAMES.values()}
    assert not [name for name in ARCHITECTURES if re.sub(r"\W|_", "", name) in plain]
    assert llama_cpp_name("qwen3_next") == "qwen3next"


@pytest.mark.parametrize("template", ["mistral", "mistral3"])
def test_names_in_files_for_other_programs_are_left_behind(template: str, tmp_path: Path):
    begun = scaffold("new-one", tmp_path, template=template)
    texts = [path.read_text() for path in begun.files if path.suffix == ".py"]
    assert not any("stored_as" in text for text in texts)
    assert find("new-one", tmp_path).stored_as({"sliding_window": None}, "llama.cpp") == "new-one"
    if template == "mistral":  # nothing else needed these
        assert "Mapping" not in texts[0] and "typing" not in texts[0]


@pytest.mark.parametrize("key", ["partial_rotary_factor", "rotary_pct"])
def test_a_part_of_a_head_rotates(key: str, tmp_path: Path):
    checkpoint = checkpoint_of("llama/plain_gqa", {}, **{key: 0.5})
    begun = begun_from(tmp_path, checkpoint, template="llama")
    (line,) = begun.keys
    assert line.startswith('rope_dims: int = kv("rope.dimension_count", hf=lambda hf: int(')
    cls = find("new-one", tmp_path / "own")
    assert config_class(cls).__name__ == "NewOneConfig"
    assert from_hf(cls, *checkpoint).metadata["new-one.rope.dimension_count"] == 8


def test_a_block_of_another_family_is_named(tmp_path: Path):
    config, weights = checkpoint_of("llama/plain_gqa", {})
    delta = golden.Golden.load(GOLDENS / "qwen35" / "published.npz").weights()
    weights |= {n: w for n, w in delta.items() if "layers.0.linear_attn." in n}
    begun = begun_from(tmp_path, (config, weights), template="llama")
    (added,) = begun.added
    assert added.startswith("Layer.linear_attn: LinearAttn, 9 tensors of model.layers.*.linear_att")
    assert ".DeltaNet has " in added
    weights = {name.replace("linear_attn", "unheard_of"): w for name, w in weights.items()}
    begun = begun_from(tmp_path / "b", (config, weights), template="llama")
    assert begun.added[0].endswith(" tensors of model.layers.*.unheard_of")
