"""New architectures: what `ggmodel new` writes loads, and asks for what a checkpoint has."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import MODEL_ARCH, MODEL_TENSORS, TENSOR_NAMES, Keys
from typer.testing import CliRunner

import ggmodel
from ggmodel.cli import app
from ggmodel.convert import from_hf
from ggmodel.errors import ArchitectureError, ConfigError, LoadError
from ggmodel.model import LoadReport, find
from ggmodel.model.registry import supported
from ggmodel.workbench import golden
from ggmodel.workbench.scaffold import Scaffold, scaffold
from ggmodel.workbench.scaffold.translate import KEYS, VISION_KEYS
from tests.golden.files import cases

GOLDENS = Path(__file__).parents[1] / "golden"


@pytest.fixture
def llama() -> golden.Golden:
    return golden.Golden.load(GOLDENS / "llama" / "plain_gqa.npz")


def begun_from(
    folder: Path,
    config: dict[str, Any],
    weights: dict[str, Any],
    name: str = "new-one",
    **options: Any,
) -> Scaffold:
    golden.checkpoint(folder / "hf", config, weights)
    return scaffold(name, folder / "own", hf=folder / "hf", **options)


@pytest.mark.parametrize("template", supported())
def test_a_copy_of_any_architecture_is_imported(template: str, tmp_path: Path):
    begun = scaffold("new-one", tmp_path, template=template)
    assert find("new-one", tmp_path).__name__ == "NewOne" and begun.template == template


@pytest.mark.parametrize("template", ["llama", "gemma3", "llama4", "mllama"])
def test_a_copy_is_what_it_was_copied_from(template: str, tmp_path: Path):
    begun = scaffold("new-one", tmp_path, template=template)
    assert begun.template == template
    assert (begun.proposals, begun.keys, begun.missing) == ([], [], [])
    assert find("new-one", tmp_path).hf_architectures == ("NewOneForCausalLM",)
    folder = tmp_path / "goldens" / "new_one"
    case = cases(template)[0]
    shutil.copy(GOLDENS / template / f"{case}.npz", folder)
    want = golden.Golden.load(folder / f"{case}.npz")
    want.folder = GOLDENS / template  # its rule for weights
    source = from_hf(find("new-one", tmp_path), want.config, want.weights())
    with ggmodel.load(source, models=tmp_path, kv_type="f32", flash_attention="off") as model:
        assert golden.nmse(model.logits(want.prompt.tolist()), want.logits) < 1e-6


def test_the_test_it_writes_passes_and_fails(tmp_path: Path, llama: golden.Golden):
    scaffold("new-one", tmp_path)
    folder = tmp_path / "goldens" / "new_one"
    llama.folder, llama.config["architectures"] = folder, ["NewOneForCausalLM"]
    for case in golden.Cases(folder).configs:
        llama.save(case)
    assert all(o.ok for o in golden.check(folder, models=tmp_path))
    file = tmp_path / "new_one.py"
    file.write_text(file.read_text().replace("self.rotary.rope()", "None"))
    assert not any(o.ok for o in golden.check(folder, models=tmp_path))


def test_the_nearest_architecture_is_found(tmp_path: Path):
    want = golden.Golden.load(GOLDENS / "gemma3" / "every_3rd.npz")
    begun = begun_from(tmp_path, want.config, want.weights())
    assert begun.template == "gemma3"
    assert (begun.proposals, begun.missing) == ([], [])


def test_fields_for_what_a_checkpoint_has_more(tmp_path: Path, llama: golden.Golden):
    weights: dict[str, np.ndarray] = dict(llama.weights())
    for i in range(2):
        weights[f"model.layers.{i}.self_attn.v_norm.weight"] = np.ones(16, np.float32)
        weights[f"model.layers.{i}.self_attn.strange.weight"] = np.ones((64, 128), np.float32)
        weights[f"model.layers.{i}.self_attn.offsets"] = np.ones(4, np.float32)
    weights["elsewhere.norm.weight"] = np.ones(64, np.float32)
    config = {**llama.config, "embedding_multiplier": 12.0, "style": "plain"}
    begun = begun_from(tmp_path, config, weights, template="llama")
    lines = {p.of.name: (p.owner, p.line) for p in begun.proposals}
    assert lines["v_norm"] == (
        "PermutedAttention",
        'v_norm: RMSNorm = gguf("v_norm", hf="v_norm", shape=("head_dim",))',
    )
    assert lines["strange"] == (
        "PermutedAttention",
        'strange: Linear = gguf("strange", hf="strange", shape=("ffn", "width"))',
    )
    assert lines["offsets"][1].startswith("offsets: Tensor = gguf(")
    assert "norm" not in lines  # no module stands there: it gets one
    assert begun.added == ["new_one/elsewhere.py: Elsewhere, 1 tensor of elsewhere"]
    assert begun.keys == [
        'embedding_scale_: float = kv("embedding_scale", hf="embedding_multiplier")',
        'style: str = kv("style", hf="style")',
    ]
    # All that became a field loads; nothing is computed with it yet.
    source = from_hf(find("new-one", tmp_path / "own"), config, weights)
    assert source.metadata["new-one.embedding_scale"] == 12.0
    assert source.tensors["blk.1.v_norm.weight"].shape == (16,)
    assert source.tensors["elsewhere.norm.weight"].shape == (64,)
    with ggmodel.load(source, models=tmp_path / "own", kv_type="f32") as model:
        assert golden.nmse(model.logits(llama.prompt.tolist()), llama.logits) < golden.EXACT


def test_norms_of_queries_and_keys_are_computed(tmp_path: Path):
    """Qwen 3 from Qwen 2: the shared attention reads them where a subclass has them."""
    want = golden.Golden.load(GOLDENS / "qwen3" / "plain.npz")
    begun = begun_from(tmp_path, want.config, want.weights(), template="qwen2")
    text = begun.files[0].read_text()
    assert [p.owner for p in begun.proposals] == ["Attention"] * 2
    assert "class Attention(nn.Attention):\n" in text and "nothing reads it" not in text
    assert text.count("    attn: Attention = gguf(") == 1
    source = from_hf(find("new-one", tmp_path / "own"), want.config, want.weights())
    options: Any = {"kv_type": "f32", "flash_attention": "off"}
    with ggmodel.load(source, models=tmp_path / "own", **options) as model:
        assert golden.nmse(model.logits(want.prompt.tolist()), want.logits) < golden.EXACT


def test_numbered_experts_are_one_class(tmp_path: Path, llama: golden.Golden):
    """Four experts in each layer, beside a tensor without a leaf, as DeepSeek's checkpoints."""
    weights: dict[str, np.ndarray] = dict(llama.weights())
    for i in range(2):
        moe = f"model.layers.{i}.feed_forward"
        for e in range(4):
            for name, shape in (("gate_proj", (96, 64)), ("down_proj", (64, 96))):
                weights[f"{moe}.experts.{e}.{name}.weight"] = np.ones(shape, np.float32)
        weights[f"{moe}.chooser.bias_of_choice"] = np.ones(4, np.float32)
        weights[f"{moe}.chooser.weight"] = np.ones((4, 64), np.float32)
    config = {**llama.config, "n_routed_experts": 4, "moe_intermediate_size": 96}
    begun = begun_from(tmp_path, config, weights, template="llama")
    text = "".join(p.read_text() for p in begun.files)
    assert re.findall(r"class (\w*Expert\w*)\(Module\)", text) == ["FeedForwardExperts"]
    number = next(line for line in begun.keys if "n_routed_experts" in line).partition(":")[0]
    hf = f'hf=Stack("{{}}.gate_proj", "{number}")'
    assert f'gguf("ffn_gate_exps", {hf}, shape=("width", "expert_ffn", "{number}"))' in text
    assert 'gguf("feed_forward.chooser.bias_of_choice", hf="chooser.bias_of_choice"' in text
    assert not re.search(r'gguf\([^)]*\w\."', text)  # a tensor without ".weight" ends with no dot
    source = from_hf(find("new-one", tmp_path / "own"), config, weights)
    assert source.tensors["blk.1.ffn_down_exps.weight"].shape == (96, 64, 4)


def published(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and tensors of a tiny model of transformers, of zeros."""
    found = json.loads((Path(__file__).parent / "published" / f"{name}.json").read_text())
    weights = {n: np.zeros(s, np.float32) for n, s in found["shapes"].items()}
    return found["config"], weights


def begun_as_published(name: str, folder: Path, **options: Any) -> tuple[Scaffold, dict[str, str]]:
    """The result of `new` for such a model, and its files by their names below the folder."""
    begun = begun_from(folder, *published(name), name=name, **options)
    own = folder / "own"
    return begun, {p.relative_to(own).as_posix(): p.read_text() for p in begun.files}


@pytest.mark.parametrize("name", ["lfm2", "cohere2"])
def test_an_architecture_that_exists_is_its_own_template(name: str, tmp_path: Path):
    begun, _ = begun_as_published(name, tmp_path)
    assert begun.template == name
    assert begun.proposals == begun.keys == begun.added == begun.missing == begun.left == []


def test_another_family_corrects_names_and_adds_modules(tmp_path: Path):
    """LFM2 from qwen3, whose norms of queries and keys it calls otherwise."""
    begun, files = begun_as_published("lfm2", tmp_path, template="qwen3")
    text = files["lfm2.py"]
    for line in (
        'q_norm: RMSNorm = gguf("attn_q_norm", hf="q_layernorm", shape=("head_dim",))',
        'out: Linear = gguf("attn_output", hf="out_proj", shape=("out_width", "width"))',
        'attn_norm: RMSNorm = gguf("attn_norm", hf="operator_norm", shape=("width",))',
        'ffn: GatedMLP | nn.GatedExperts = gguf(hf="feed_forward")',
        'gate: Linear = gguf("ffn_gate", hf="w1", shape=("width", "ffn"))',
        'norm: RMSNorm = gguf("token_embd_norm", hf="model.embedding_norm", shape=("width",))',
        'eps: float = kv("attention.layer_norm_rms_epsilon", hf="norm_eps")',
        'conv_L_cache: int = kv("shortconv.l_cache", hf="conv_L_cache")',
        'layer_types: list = kv("layer_types", hf="layer_types")',
        'in_proj: Linear = gguf("shortconv.in_proj", hf="in_proj", shape=("width", None))',
        'conv: Conv | None = gguf(hf="conv")',
    ):
        assert text.count(f"    {line}\n") == 1, line
    assert text.count('"attn_output"') == text.count('gguf("ffn_norm"') == 1
    assert begun.missing == [
        "layers[0-1, 3].attn: no tensor model.layers.0.self_attn.q_proj.weight"
    ]
    assert "Layer.attn: only in layers 2; say so in the layer's forward" in begun.added
    assert begun.left == []
    config, weights = published("lfm2")
    config["architectures"] = ["UnknownForCausalLM"]  # no code is known to read a key left over
    source = from_hf(find("lfm2", tmp_path / "own"), config, weights)
    names = {name.partition(".weight")[0] for name in source.tensors}
    theirs = {re.sub(r"\d+", "{bid}", n) for n in names}
    assert theirs <= {TENSOR_NAMES[t] for t in MODEL_TENSORS[MODEL_ARCH.LFM2]}
    assert len(source.tensors) == len(weights)


def _keys(group: type) -> set[str]:
    """The keys of files that the gguf package knows, without the architecture."""
    found = set()
    for value in vars(group).values():
        if isinstance(value, type):
            found |= _keys(value)
        elif isinstance(value, str):
            found.add(value.removeprefix("{arch}."))
    return found


def test_the_table_has_keys_of_llama_cpp():
    known = _keys(Keys)
    assert {key for key in KEYS.values() if key not in known} == set()
    assert {k for _, k in VISION_KEYS.values() if f"clip.vision.{k}" not in known} == set()


def test_windows_by_layer_are_read(tmp_path: Path):
    begun, files = begun_as_published("cohere2", tmp_path, template="mistral")
    assert begun.keys == [
        'eps: float = kv("attention.layer_norm_epsilon", hf="layer_norm_eps")',
        'pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers)',
        'logit_scale_: float = kv("logit_scale", hf="logit_scale")',
    ]
    assert files["cohere2.py"].count(" pattern: list") == 1
    assert files["cohere2.py"].count(" eps: float") == 1
    assert begun.missing == [
        "layers[0-3].ffn_norm: no tensor model.layers.0.post_attention_layernorm.weight"
    ]


def test_keys_that_a_template_cannot_read_are_told(tmp_path: Path, llama: golden.Golden):
    config = {**llama.config, "rope_scaling": {"rope_type": "elastic", "factor": 2.0}}
    begun = begun_from(tmp_path, config, llama.weights())
    assert begun.template == "llama"
    assert begun.left
    assert all("rope scaling 'elastic' is unsupported" in line for line in begun.left)
    find("new-one", tmp_path / "own")


def test_a_scale_that_nothing_computes_is_refused(tmp_path: Path, llama: golden.Golden):
    """DeepSeek's attention scales scores by it, too. A field that nothing reads is no answer."""
    rope = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    config = {**llama.config, "architectures": ["OwnV3ForCausalLM"], "rope_scaling": rope}
    begun = begun_from(tmp_path, config, llama.weights(), template="llama")
    assert not [line for line in begun.keys if "mscale_all_dim" in line]
    (left,) = begun.left
    assert re.match(r"NewOneConfig: rope_scaling.mscale_all_dim is 1.0, .*nn.paper_magnitude", left)
    own = find("new-one", tmp_path / "own")
    with pytest.raises(LoadError, match=r"mscale_all_dim is 1\.0; supported"):
        from_hf(own, config, llama.weights())


def test_published_spellings_of_rope(tmp_path: Path):
    """Qwen2.5-VL as on the hub: no `text_config`, and a scaling of the type "mrope"."""
    config, weights = published("qwen2_5_vl")
    text = config.pop("text_config")
    sections = text.pop("rope_parameters")["mrope_section"]
    config = {**text, **config, "rope_theta": 1e6}
    config["rope_scaling"] = {"type": "mrope", "mrope_section": sections}
    begun = begun_from(tmp_path, config, weights, template="qwen2")
    line = 'mrope_section: list = kv("rope.dimension_sections", hf="rope_scaling.mrope_section")'
    assert line in begun.keys
    assert find("new-one", tmp_path / "own")


def test_a_tower_has_a_file_of_its_own(tmp_path: Path):
    """Qwen2.5-VL from qwen2, with biases and without rotary pairs side by side."""
    begun, files = begun_as_published("qwen2_5_vl", tmp_path, template="qwen2")
    assert list(files)[:3] == [f"qwen2_5_vl/{n}.py" for n in ("__init__", "model", "vision")]
    assert begun.added == ["qwen2_5_vl/vision.py: Vision, 30 tensors of visual"]
    assert (
        'blocks: list[VisionBlock] = gguf("v.blk", hf="blocks", n="vision_layers")'
        in (files["qwen2_5_vl/vision.py"])
    )
    assert len(begun.left) == 1
    assert begun.left[0].startswith("visual.patch_embed.proj [14, 14, 2, 3, 64]: too many dims")
    keys = " ".join(begun.keys)
    unread = published("qwen2_5_vl")[0]["vision_config"].keys() - {
        "model_type", "initializer_range", "rope_parameters"
    }  # fmt: skip
    assert all(f'hf="vision_config.{key}"' in keys for key in unread)
    assert "layer_types" not in keys  # the template reads them
    assert 'hf="rope_scaling.mrope_section"' in keys
    config, weights = published("qwen2_5_vl")
    with pytest.raises(LoadError, match=r"unused +visual\.patch_embed\.proj\.weight") as caught:
        from_hf(find("qwen2_5_vl", tmp_path / "own"), config, weights)
    assert isinstance(caught.value.report, LoadReport)
    assert caught.value.report.unused == ["visual.patch_embed.proj.weight"]


def test_a_text_model_may_lie_elsewhere(tmp_path: Path):
    """Idefics3: a llama below `model.text_model`, SigLIP and a connector beside it."""
    begun, files = begun_as_published("idefics3", tmp_path, template="llama")
    assert begun.missing == begun.left == []
    assert 'hf="model.text_model.layers", n="layers")' in files["idefics3/model.py"]
    config, weights = published("idefics3")
    source = from_hf(find("idefics3", tmp_path / "own"), config, weights)
    assert len(source.tensors) == len(weights)
    assert {"v.blk.1.ln2.bias", "mm.model.fc.weight", "blk.3.attn_q.weight"} <= set(source.tensors)
    with ggmodel.load(source, models=tmp_path / "own") as model:
        assert model.logits([5, 6]).shape == (2, 96)
    # Declared shapes hold for the small configuration as well.
    vision = files["idefics3/vision.py"]
    assert 'hf="position_embedding", shape=("vision_width", None))' in vision
    assert 'hf="patch_embedding", shape=(None, None, None, "vision_width"))' in vision


@pytest.mark.parametrize("name", ["lfm2", "qwen2_5_vl", "idefics3", "cohere2"])
@pytest.mark.parametrize("template", ["llama4", "gemma3", "bert"])
def test_any_architecture_may_be_the_template(name: str, template: str, tmp_path: Path):
    begun = begun_from(tmp_path, *published(name), template=template)
    assert begun.template == template
    find("new-one", tmp_path / "own")


def test_nothing_is_printed_in_lines_that_nobody_reads(tmp_path: Path):
    golden.checkpoint(tmp_path / "hf", *published("idefics3"))
    given = [
        "new",
        "new-one",
        "--hf",
        tmp_path / "hf",
        "--from",
        "gemma3",
        "--into",
        tmp_path / "own",
    ]
    done = CliRunner().invoke(app, [str(a) for a in given])
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 200


def test_no_two_fields_have_one_name_in_files(tmp_path: Path, llama: golden.Golden):
    """A norm that llama.cpp calls ffn_norm, beside the one that is called so here."""
    weights: dict[str, np.ndarray] = dict(llama.weights())
    for i in range(2):
        name = f"model.layers.{i}.pre_feedforward_layernorm.weight"
        weights[name] = np.ones(64, np.float32)
    begun = begun_from(tmp_path, llama.config, weights, template="llama")
    (proposal,) = begun.proposals
    assert 'gguf("pre_feedforward_layernorm"' in proposal.line
    source = from_hf(find("new-one", tmp_path / "own"), llama.config, weights)
    assert len(source.tensors) == len(weights)


def test_names_of_strangers_are_text(tmp_path: Path, llama: golden.Golden):
    """The names in a checkpoint become no code, and hide no keyword or method."""
    weights: dict[str, np.ndarray] = dict(llama.weights())
    odd = ['a", hf=1/0) #', "class", "forward", "config", "a-b", "a_b", "\x1b[31m", "é\ud800"]
    for name in odd[:-1]:
        weights[f"model.layers.0.self_attn.{name}.weight"] = np.ones((64, 64), np.float32)
    config = {**llama.config, "def": 1, "from_hf": 2, "inf": float("inf"), "text": odd[-1]}
    begun = begun_from(tmp_path, config, weights, template="llama")
    names = [p.line.partition(":")[0] for p in begun.proposals]
    assert len(set(names)) == len(odd) - 1
    assert {"class_", "forward_", "config_", "a_b", "a_b_"} <= set(names)
    assert "def_: int" in begun.keys[0] and "from_hf_: int" in begun.keys[1]
    assert {f.split(":")[0] for f in begun.keys} == {"def_", "from_hf_", "inf", "text"}
    find("new-one", tmp_path / "own")
    cases = golden.Cases(tmp_path / "own" / "goldens" / "new_one").configs["plain"]
    assert (cases["inf"], cases["text"]) == (float("inf"), odd[-1])


def test_modules_of_strangers_are_text(tmp_path: Path, llama: golden.Golden):
    """As names of new modules, in layers and beside them, and of what the model itself has."""
    weights: dict[str, np.ndarray] = dict(llama.weights())
    odd = ['"""\nimport os #', "class", "forward", "layers", "Attention", "\\", "_", "1", "head"]
    for name in odd:
        for module in (f"model.layers.1.{name}", f"{name}s", f"model.{name}_"):
            weights[f"{module}.inner.norm.weight"] = np.ones(64, np.float32)
    weights["model.last_norm.weight"] = weights["caches.weight"] = np.ones(64, np.float32)
    begun = begun_from(tmp_path, llama.config, weights, template="llama")
    assert {p.line.partition(":")[0] for p in begun.proposals} == {"last_norm", "caches_"}
    source = from_hf(find("new-one", tmp_path / "own"), llama.config, weights)
    assert len(source.tensors) == len(weights)
    with ggmodel.load(source, models=tmp_path / "own", kv_type="f32") as model:
        assert golden.nmse(model.logits(llama.prompt.tolist()), llama.logits) < golden.EXACT


@pytest.mark.parametrize("listed", [5, [], [3], ['Evil")\nimport os #'], None])
def test_architectures_of_another_kind(listed: Any, tmp_path: Path, llama: golden.Golden):
    config = {**llama.config, "architectures": listed}
    begun = begun_from(tmp_path, config, llama.weights())
    assert begun.template == "llama"
    assert find("new-one", tmp_path / "own").hf_architectures == ("NewOneForCausalLM",)


def test_of_two_that_fit_the_one_that_is_named(tmp_path: Path):
    want = golden.Golden.load(GOLDENS / "qwen3" / "experts.npz")
    begun = begun_from(tmp_path, want.config, want.weights())
    assert begun.template == "qwen3moe"
    # The file it is copied from registers another one as well.
    assert begun.files[0].read_text().count("@register(") == 1


def test_where_nothing_fits_llama_is_a_beginning(tmp_path: Path, llama: golden.Golden):
    assert begun_from(tmp_path, llama.config, {"x": np.ones(3, np.float32)}).template == "llama"


@pytest.mark.parametrize("name", ["layer", "experts", "module", "none"])
def test_names_that_the_template_needs(name: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="would be the class"):
        scaffold(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_checkpoint_lacks_is_said(tmp_path: Path, llama: golden.Golden):
    weights = {n: w for n, w in llama.weights().items() if "post_attention" not in n}
    begun = begun_from(tmp_path, llama.config, weights, template="llama")
    assert begun.missing == [
        "layers[0-1].ffn_norm: no tensor model.layers.0.post_attention_layernorm.weight"
    ]


def test_nothing_is_overwritten(tmp_path: Path):
    scaffold("new-one", tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="exists; choose another name"):
        scaffold("new-one", tmp_path, template="gemma3")
    scaffold("another", tmp_path)  # beside it, under the same README
    assert all(p.read_bytes() == content for p, content in before.items())


@pytest.mark.parametrize("name", ["", "../x", "1st", "a b", "a/b", "-x", "é"])
def test_names_that_are_none(name: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be an architecture's name"):
        scaffold(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_bad_input_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(ArchitectureError, match="no architecture 'nothing'"):
        scaffold("new-one", tmp_path / "own", template="nothing")
    with pytest.raises(ggmodel.Error):
        scaffold("new-one", tmp_path / "own", hf=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="nothing was written"):
        scaffold("new-one", tmp_path / "file")
    (tmp_path / "goldens").write_text("")  # is found after the first file has been written
    with pytest.raises(ConfigError, match="nothing was written"):
        scaffold("new-one", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "goldens"]


def test_a_folder_may_be_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    scaffold("new-one", tmp_path / "link")
    assert (tmp_path / "real" / "new_one.py").exists()


def test_a_run_that_was_killed_between_two_files_is_finished_by_the_next(tmp_path: Path):
    scaffold("one", tmp_path)  # so that the folders exist
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from ggmodel.workbench.scaffold import scaffold\n"
        "rename = Path.rename\n"
        "def watched(source, target):\n"
        "    if source.name == 'new_one.py': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return rename(source, target)\n"
        "Path.rename = watched\n"
        "scaffold('new-one', sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "goldens" / "new_one" / "cases.py").exists()
    assert not (tmp_path / "new_one.py").exists()
    with pytest.raises(ConfigError, match="exists; choose another name"):
        scaffold("new-one", tmp_path)
    assert "class NewOne(" in (tmp_path / "new_one.py").read_text()
    assert not list(tmp_path.glob(".*"))
