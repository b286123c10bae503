"""Keys of a config.json: each is read, has the fixed value, or is refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel import kv
from ggmodel.convert import convert, from_hf, metadata_of, normalize
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.keys import TABLE, Watched, recorded, with_defaults
from ggmodel.errors import ConfigError, LoadError
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import config_class, find, find_hf
from ggmodel.models.llama.model import Llama, LlamaConfig
from ggmodel.nn import paper_magnitude
from ggmodel.workbench.check import check
from tests.convert.folders import write_model, write_tokenizer
from tests.convert.make_reference_keys import served
from tests.golden.files import load_embeddings, load_golden

FULL, LOCAL, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def folder(path: Path, changes: dict[str, Any], models: str | None = None) -> Path:
    golden = load_golden("llama", "plain_gqa")
    write_model(path, {**golden.config, **changes}, golden.weights())
    write_tokenizer(path, golden.config["vocab_size"])
    return path


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A config with other values; keys may have dots, and `...` removes one."""
    config = json.loads(json.dumps(config))
    for path, value in changes.items():
        *outer, key = path.split(".")
        inside = config
        for part in outer:
            inside = inside[part]
        inside.pop(key, None)
        if value is not ...:
            inside[key] = value
    return config


MROPE = {"rope_type": "default", "mrope_section": [1, 2]}
# Architecture, case, changes; the key, its value and what is supported.
REFUSED = {
    "a window of a llama": (
        ("llama", "plain_gqa", {"sliding_window": 5}),
        r"sliding_window is 5; supported: none \(leave it out\)",
    ),
    "Mixtral's window": (("llama", "experts", {"sliding_window": 5}), "sliding_window is 5;"),
    "a window of an OLMo 2": (("olmo2", "plain", {"sliding_window": 5}), "sliding_window is 5;"),
    "layers of another kind": (
        ("llama", "plain_gqa", {"layer_types": [FULL, LOCAL]}),
        rf"layer_types is \['{FULL}', '{LOCAL}'\]; supported: \['{FULL}', '{FULL}'\]",
    ),
    "layers of one kind": (
        ("llama4", "interleaved", {"layer_types": [FULL] * 4}),
        "layer_types is",
    ),
    "not causal": (
        ("llama", "plain_gqa", {"is_causal": False}),
        "is_causal is False; supported: True",
    ),
    "part of a head": (
        ("llama", "plain_gqa", {"partial_rotary_factor": 0.5}),
        "partial_rotary_factor is 0.5; supported: 1.0",
    ),
    "three-dimensional positions": (
        ("llama", "plain_gqa", {"rope_parameters": MROPE | {"rope_theta": 1e4}}),
        r"rope_parameters.mrope_section is \[1, 2\]; supported: none",
    ),
    "the same, spelled otherwise": (
        ("qwen2", "tied", {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}),
        r"rope_scaling.mrope_section is \[1, 2\]; supported: none",
    ),
    "positions of an unknown kind": (
        ("llama", "linear_rope", {"rope_scaling.spiral": 3}),
        "rope_scaling.spiral is 3; supported: none",
    ),
    "scaled positions of local layers": (
        (
            "gemma3",
            "every_6th",
            {
                "rope_theta": ...,
                "rope_parameters": {
                    FULL: {"rope_type": "default", "rope_theta": 1e6},
                    LOCAL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
                },
            },
        ),
        rf"rope_parameters.{LOCAL}.rope_type is 'linear'; supported: 'default'",
    ),
    "another base of local layers": (
        (
            "olmo2",
            "windows",
            {
                "rope_theta": ...,
                "rope_parameters": {
                    FULL: {"rope_type": "default", "rope_theta": 5e5},
                    LOCAL: {"rope_type": "default", "rope_theta": 1e4},
                },
            },
        ),
        rf"rope_parameters.{LOCAL}.rope_theta is 10000.0; supported: 500000.0",
    ),
    "values by layer": (
        ("llama", "plain_gqa", {"per_layer_config": {"0": {"hidden_act": "relu"}}}),
        "per_layer_config is",
    ),
    "scores capped": (
        ("gemma3", "every_6th", {"attn_logit_softcapping": 5.0}),
        "attn_logit_softcapping is 5.0; supported: none",
    ),
    "in the text's part": (
        ("gemma3", "images", {"text_config.attn_logit_softcapping": 5.0}),
        "text_config.attn_logit_softcapping is 5.0; supported: none",
    ),
    "in the tower's part": (
        ("gemma3", "images", {"vision_config.num_channels": 4}),
        "vision_config.num_channels is 4; supported: 3",
    ),
    "other grids of tiles": (
        ("mllama", "images", {"vision_config.supported_aspect_ratios": [[1, 1], [4, 1]]}),
        r"supported_aspect_ratios is \[\[1, 1\], \[4, 1\]\]; supported: \[\[1, 1\], \[1, 2\]",
    ),
    "another rope in a tower": (
        ("mistral3", "images", {"vision_config.rope_parameters": {"rope_type": "linear"}}),
        "rope_parameters.rope_type is 'linear'; supported: 'default' or 'axial'",
    ),
    "weights that do not sum to one": (
        ("bailingmoe2", "published", {"norm_topk_prob": False}),
        "norm_topk_prob is False; supported: True",
    ),
    "a head of normed rows": (
        ("bailingmoe2", "published", {"norm_head": True}),
        "norm_head is True; supported: False",
    ),
    "layers of attention": (("rwkv7", "published", {"attn": {"layers": [1]}}), "attn is"),
    "wider values": (
        ("rwkv7", "published", {"value_dim": [64, 128, 64]}),
        r"value_dim is \[64, 128, 64\]; supported: \[64, 64, 64\]",
    ),
    "another activation": (
        ("rwkv7", "published", {"hidden_act": "relu"}),
        "hidden_act is 'relu'; supported: 'sqrelu'",
    ),
    "texts seen both ways": (
        ("gemma3", "every_6th", {"use_bidirectional_attention": True}),
        "use_bidirectional_attention is True; supported: False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_is_unsupported_is_refused(name: str):
    (architecture, case, changes), message = REFUSED[name]
    golden = load_golden(architecture, case)
    config = changed(golden.config, changes)
    model, weights = find_hf(config["architectures"]), golden.weights()
    from_hf(model, golden.config, weights)
    with pytest.raises(LoadError, match=rf"key +\S*{message}(.|\n)*strict=False"):
        from_hf(model, config, weights)


def test_an_epsilon_that_files_have_no_key_for_is_refused():
    golden = load_golden("rwkv7", "published")
    config = {**golden.config, "norm_eps": 1e-6}
    with pytest.raises(ConfigError, match="norm_eps is 1e-06; supported: 1e-05"):
        from_hf(find_hf(config["architectures"]), config, golden.weights())


ACCEPTED = {
    "null": ("llama", "plain_gqa", {"sliding_window": None}),
    "the default": ("llama", "plain_gqa", {"is_causal": True}),
    "false for nothing": ("llama", "plain_gqa", {"kv_sharing_modes": False}),
    "an empty list": ("llama", "plain_gqa", {"kv_sharing_modes": []}),
    "what the architecture assumes": ("llama", "plain_gqa", {"layer_types": [FULL] * 2}),
    "the layers it assumes": (
        ("llama4", "interleaved", {"layer_types": [CHUNKED, FULL, CHUNKED, FULL]})
    ),
    "layers that the tensors tell": ("qwen3", "some_dense", {"mlp_only_layers": [3]}),
    "training": ("llama", "plain_gqa", {"attention_dropout": 0.5, "initializer_range": 9.0}),
    "other programs": ("llama", "plain_gqa", {"my_own_key": 5, "_name_or_path": "x"}),
    "sub-configs of others": ("llama", "plain_gqa", {"quantizer_config": {"bits": 4}}),
    "whole positions": ("llama", "plain_gqa", {"partial_rotary_factor": 1.0}),
    "both names of a type": (
        "llama",
        "linear_rope",
        {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}},
    ),
    "keys of another scaling": (
        "llama",
        "linear_rope",
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "beta_fast": 8}},
    ),
    "one base of all layers": (
        "olmo2",
        "windows",
        {
            "rope_theta": ...,
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 5e5},
                LOCAL: {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "a head that is never used": ("gemma3", "images", {"vision_config.vision_use_head": True}),
    "the tower's activation that llama4 ignores": (
        ("llama4", "images", {"vision_config.hidden_act": "relu"})
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_value_that_changes_nothing_is_accepted(name: str):
    architecture, case, changes = ACCEPTED[name]
    golden = load_golden(architecture, case)
    config = changed(golden.config, changes)
    from_hf(find_hf(config["architectures"]), config, golden.weights())


def test_a_folder_is_refused_by_every_tool(tmp_path: Path):
    path, target = folder(tmp_path / "model", {"sliding_window": 5}), tmp_path / "a.gguf"
    said = r"key +sliding_window is 5; supported: none"
    with pytest.raises(LoadError, match=said) as caught:
        ggmodel.load(path)
    assert "in spite of unread keys" in str(caught.value)
    with pytest.raises(LoadError, match=said):
        convert(path, target)
    assert not target.exists()
    with CheckpointSource.open(path) as source:
        found = check(source)
    assert [f.kind for f in found.problems] == ["key"] and not found.ok
    assert found.problems[0].message.startswith("sliding_window is 5;")


def test_a_folder_is_taken_when_not_strict(tmp_path: Path):
    path, target = folder(tmp_path / "model", {"sliding_window": 5}), tmp_path / "a.gguf"
    with pytest.warns(UserWarning, match="sliding_window is 5"):
        ggmodel.load(path, strict=False).close()
    with pytest.warns(UserWarning, match="sliding_window is 5"):
        convert(path, target, strict=False)
    ggmodel.load(target).close()
    with CheckpointSource.open(path) as source:
        found = check(source, strict=False)
    assert [f.kind for f in found.warnings] == ["key"] and found.ok


def test_a_value_that_must_be_set(tmp_path: Path):
    golden = load_embeddings("gemma3", "embedding_alone")
    model = find("gemma3", pooled=True)
    from_hf(model, golden.config, golden.weights())
    config = changed(golden.config, {"use_bidirectional_attention": ...})
    with pytest.raises(LoadError, match="use_bidirectional_attention is False; supported: True"):
        from_hf(model, config, golden.weights())


def hyperparameters(architecture: str, case: str, changes: dict[str, Any]) -> Any:
    config = changed(load_golden(architecture, case).config, changes)
    model = find_hf(config["architectures"])
    given = with_defaults(model, config, normalize(config), recorded(config))
    return config_class(model).read(KeyValues(metadata_of(model, given), "config.json"))


@pytest.mark.parametrize(
    ("changes", "window"),
    [({}, 8), ({"sliding_window": ...}, 4096), ({"sliding_window": None}, 0)],
    ids=["set", "absent", "null"],
)
def test_a_key_that_is_absent_has_the_references_default(changes: dict[str, Any], window: int):
    want = load_golden("mistral", "window").config["sliding_window"] if not changes else window
    assert hyperparameters("mistral", "window", changes).window == want


def test_defaults_of_parts_and_of_ropes():
    assert hyperparameters("llama", "experts", {"rope_theta": ...}).rope_base == 1e6
    old = {"rope_theta": ..., "rope_local_base_freq": ...}
    assert hyperparameters("gemma3", "every_6th", old).rope_base == 1e6
    by_kind = {FULL: {"rope_theta": 5.0}, LOCAL: {"rope_theta": 7.0}}
    new = hyperparameters("gemma3", "every_6th", old | {"rope_parameters": by_kind})
    assert (new.rope_base, new.local_base) == (5.0, 7.0)
    config = load_golden("gemma3", "images").config
    given = changed(config, {"vision_config.layer_norm_eps": ...})
    full = with_defaults(find("gemma3"), given, normalize(given), recorded(given))
    assert full["vision_config"]["layer_norm_eps"] == 1e-6
    assert "layer_norm_eps" not in given["vision_config"]


def test_a_spelling_that_the_reference_does_not_know_says_nothing():
    for changes in ({"sliding_window_pattern": 3}, {"max_window_layers": 0}):
        assert hyperparameters("gemma2", "published", changes).pattern == [2]
    assert hyperparameters("gemma3", "every_6th", {"sliding_window_pattern": 3}).pattern[2] is False


def test_what_an_architecture_needs_has_no_default():
    config = changed(load_golden("llama", "plain_gqa").config, {"hidden_size": ...})
    given = with_defaults(find("llama"), config, normalize(config), recorded(config))
    with pytest.raises(ConfigError, match="embedding_length"):
        metadata_of(find("llama"), given)


MODEL = """
from ggmodel import kv, register
from ggmodel.models.llama.model import Llama, LlamaConfig


class OwnConfig(LlamaConfig):
    {line}
    mine: int = kv("mine", hf="my_number", default=0)


@register("own", hf="OwnForCausalLM")
class Own(Llama):
    config: OwnConfig
"""


def own(tmp_path: Path, changes: dict[str, Any], line: str = "pass") -> Any:
    """The verdict of `check` on a model whose architecture is the user's."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "own.py").write_text(MODEL.format(line=line))
    path = folder(tmp_path / "model", {"architectures": ["OwnForCausalLM"], **changes})
    ggmodel.load(path, models=models).close()
    with CheckpointSource.open(path, models=models) as source:
        return check(source, models=models)


UNREAD = {"clip_qkv": 5.0, "vision_config": {"depth": 3}, "my_number": 2, "use_cache": False}


def test_without_a_reference_every_unread_key_is_a_warning(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("ggmodel.workbench.check.keys_read", lambda *_: None)
    found = own(tmp_path, UNREAD)
    assert found.ok
    lines = [f.message for f in found.warnings if f.kind == "key"]
    assert "clip_qkv is 5.0; supported: none (leave it out)" in lines
    assert any(line.startswith("vision_config.depth is 3") for line in lines)
    assert not [line for line in lines if "my_number" in line or "use_cache" in line]


def test_an_installed_reference_tells_which_keys_count(tmp_path: Path, monkeypatch: Any):
    reads = {"clip_qkv": None, "my_number": 0}
    monkeypatch.setattr("ggmodel.workbench.check.keys_read", lambda *_: reads)
    found = own(tmp_path, UNREAD)
    assert [f.message for f in found.problems] == [
        "clip_qkv is 5.0; supported: none (leave it out)"
    ]
    assert not [f for f in found.warnings if f.kind == "key"]


def test_a_vocabulary_reads_no_key(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("ggmodel.workbench.check.keys_read", lambda *_: {"my_key": 1.0})
    golden = load_embeddings("bert", "tanh")
    write_model(tmp_path, golden.config | {"my_key": 5.0}, golden.weights())
    write_tokenizer(tmp_path, golden.config["vocab_size"])
    with CheckpointSource.open(tmp_path) as source:
        assert len(source.metadata) > 20  # the vocabulary included
        found = check(source)
    assert [f.message for f in found.problems] == ["my_key is 5.0; supported: 1.0"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('fixed = {"clip_qkv": 5.0}', False),
        ('fixed = {"clip_qkv": ...}', False),
        ('fixed = {"clip_qkv": lambda hf: hf["my_number"] + 3.0}', False),
        ('fixed = {"clip_qkv": 4.0}', True),
    ],
)
def test_an_author_declares_fixed_values(tmp_path: Path, monkeypatch: Any, line: str, wrong: bool):
    reads = {"clip_qkv": 1.0, "layer_types": None}
    monkeypatch.setattr("ggmodel.workbench.check.keys_read", lambda *_: reads)
    found = own(tmp_path, UNREAD | {"layer_types": [FULL] * 2}, line)
    want = ["clip_qkv is 5.0; supported: 4.0"] if wrong else []
    assert [f.message for f in found.problems] == want


def test_every_architecture_is_recorded():
    table = json.loads(TABLE.read_text())
    assert sorted({name.partition(":")[0] for name in table["keys"]}) == served()
    assert all(
        {"hidden_size", "text_config.hidden_size"} & keys.keys() for keys in table["keys"].values()
    )
    assert recorded({"architectures": ["LlamaForCausalLM"]}) == table["keys"]["LlamaForCausalLM"]
    for nobody in ({}, {"architectures": None}, {"architectures": [5, "X"]}, {"architectures": 5}):
        assert recorded(nobody) is None


def test_a_watched_config_notes_what_is_looked_at():
    config = {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}
    watched = Watched(config)
    assert watched.get("a") == 1 and watched["b"]["c"] == 2 and watched.get("x") is None
    assert watched.looked_up == {"a", "b.c"}
    assert list(watched) == ["a", "b", "e"] and len(watched) == 3
    assert watched.config is config


class Scored(LlamaConfig):
    score_scale: float = kv("rope.scaling.score_scale", hf="rope_scaling.mscale_all_dim", default=0)


class ScoredLlama(Llama):
    config: Scored


class Unscored(LlamaConfig):
    fixed = {"rope_scaling.mscale_all_dim": ...}


class UnscoredLlama(Llama):
    config: Unscored


def test_a_second_use_of_yarns_scale_is_declared():
    """DeepSeek's attention multiplies scores by the square of the magnitude that it gives."""
    golden = load_golden("llama", "yarn_scales")
    weights, own = golden.weights(), {**golden.config, "architectures": ["OwnForCausalLM"]}
    from_hf(Llama, golden.config, weights)  # transformers' Llama does not
    with pytest.raises(LoadError, match=r"mscale_all_dim is 2\.0;.* name it .*nn.paper_magnitude"):
        from_hf(Llama, own, weights)
    from_hf(UnscoredLlama, own, weights)
    made = from_hf(ScoredLlama, own, weights)
    assert made.metadata["llama.rope.scaling.score_scale"] == 2.0
    assert paper_magnitude(40, 1.0) ** 2 == pytest.approx(1.8739, abs=1e-4)  # DeepSeek-V3


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("vocab_size", -5, "must be 1 to"),
        ("tie_word_embeddings", "yes", "must be"),
        ("attention_bias", "x", "must be"),
        ("mlp_bias", 3, "must be"),
        ("max_position_embeddings", 1e30, "must be"),
        ("max_position_embeddings", 1 << 70, "must be"),
    ],
)
def test_impossible_values_of_what_tensors_tell(key: str, value: object, reason: str):
    golden = load_golden("llama", "plain_gqa")
    with pytest.raises(ConfigError, match=f"(?s){key}.*{reason}"):
        from_hf(Llama, golden.config | {key: value}, golden.weights())
    for part in ("audio_config", "quantization_config"):  # which a llama does not have
        from_hf(Llama, golden.config | {part: {key: value}}, golden.weights())


@pytest.mark.parametrize("part", ["", "vision_config."])
@pytest.mark.parametrize("case", ["images", "pixtral"])
def test_two_bases_of_one_rope(part: str, case: str):
    golden = load_golden("mistral3", case)
    config = changed(golden.config, {f"{part}rope_parameters": {"rope_theta": 5e4}})
    architecture = find_hf(config["architectures"])
    for base, reason in ((5e4, ""), (1e4, f"{part}rope_theta is 10000.0, {part}rope_parameters")):
        context = pytest.raises(ConfigError, match=reason) if reason else nullcontext()
        with context:
            from_hf(architecture, changed(config, {f"{part}rope_theta": base}), golden.weights())
