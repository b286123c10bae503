"""Tiny configurations that `ggmodel new` writes: each number can be seen, variants are cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.workbench import golden
from ggmodel.workbench.scaffold import scaffold
from ggmodel.workbench.scaffold.cases import encoder_of, shrunk, variants

GOLDENS = Path(__file__).parents[1] / "golden"


def test_small_configurations_keep_every_kind_of_layer():
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    small = shrunk(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "num_hidden_layers": 8,
            "layer_types": kinds * 2,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192},
            "vision_config": {"image_size": 896, "num_hidden_layers": 27},
            "pad_token_id": 128004,
            "head_dim": None,
        }
    )
    assert small["layer_types"] == kinds
    assert small["num_hidden_layers"] == 4
    assert small["num_key_value_heads"] == small["num_attention_heads"] == 4
    assert small["rope_scaling"] == {"factor": 8.0, "original_max_position_embeddings": 32}
    assert small["vision_config"] == {"image_size": 32, "num_hidden_layers": 2}
    assert small["head_dim"] is None
    assert small["pad_token_id"] == 63


def test_small_configurations_keep_the_sizes_of_heads():
    """As transformers' validators of Granite 4 and DeepSeek ask."""
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20]}
    small = shrunk(
        {
            "hidden_size": 1536,
            "head_dim": 64,
            "qk_rope_head_dim": 64,
            "num_hidden_layers": 4,
            "num_attention_heads_per_layer": [8, 16, 8, 16],
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_expand": 2,
            "mamba_n_groups": 8,
            "attn_layer_offset": 2,
            "vocab_size": 100352,
            "rope_parameters": rope,
        }
    )
    assert small["head_dim"] == small["qk_rope_head_dim"]
    assert small["mamba_n_heads"] * small["mamba_d_head"] == 2 * small["hidden_size"]
    assert small["mamba_n_heads"] % small["mamba_n_groups"] == 0
    assert small["num_hidden_layers"] == 3  # with the first layer of attention
    assert small["num_attention_heads_per_layer"] == [4, 6, 4]
    assert small["rope_parameters"] == rope
    assert small["pad_token_id"] is None  # the default of a class may be beyond the vocabulary


def test_small_configurations_have_a_layer_with_experts():
    small = shrunk({"num_hidden_layers": 61, "first_k_dense_replace": 3})
    assert (small["num_hidden_layers"], small["first_k_dense_replace"]) == (2, 1)
    small = shrunk({"num_hidden_layers": 28, "moe_layer_start_index": 1, "moe_layer_end_index": 27})
    assert small == {"num_hidden_layers": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 1}
    small = shrunk({"layers_block_type": ["mamba", "moe", "mamba", "attention"] * 2})
    assert small == {"layers_block_type": ["mamba", "moe", "mamba", "attention"]}


@pytest.mark.parametrize(
    "config",
    [
        {"attn_layer_offset": None, "num_hidden_layers": 8},
        {"attn_layer_offset": 4},
        {"num_heads": 4, "head_dim": 16, "expand": 2},
        {"num_heads": 4, "head_dim": 16, "expand": 2, "hidden_size": None},
    ],
)
def test_small_configurations_of_keys_without_a_value(config: dict[str, object]):
    assert shrunk(config).keys() == config.keys()


def test_small_configurations_keep_tokens_within_the_vocabulary():
    small = shrunk(
        {
            "vocab_size": 151936,
            "bos_token_id": 151643,
            "image_token_id": 151655,
            "eos_token_id": [151645, 2],
            "image_token_index": 151656,
            "text_config": {"vocab_size": 151936, "pad_token": 151643},
            "vision_config": {"depth": 32, "fullatt_block_indexes": [7, 15, 23, 31]},
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        }
    )
    assert (small["bos_token_id"], small["eos_token_id"]) == (1, 2)
    assert (small["image_token_id"], small["image_token_index"]) == (62, 63)
    assert small["text_config"] == {"vocab_size": 64, "pad_token": 63, "pad_token_id": None}
    assert small["vision_config"] == {"depth": 2, "fullatt_block_indexes": [1]}
    assert small["rope_scaling"]["mrope_section"] == [2, 3, 3]


def test_no_number_of_a_small_configuration_is_neutral():
    """Nor hides behind another: factors of one, epsilons and bases that change nothing."""
    small = shrunk(
        {
            "hidden_size": 4096,
            "residual_multiplier": 1.0,
            "embedding_multiplier": 12,
            "attention_multiplier": 0.0078125,
            "mlp_multipliers": [1.0, 1.0],
            "routed_scaling_factor": 1.0,
            "logit_scale": 0.0625,
            "rms_norm_eps": 1e-6,
            "layer_norm_epsilon": 1e-5,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000.0,
            "rope_parameters": {"rope_theta": 5e5, "factor": 8.0, "rope_type": "llama3"},
            "scale_attn_weights": True,
            "vision_config": {"scale_factor": 2},
        }
    )
    factors = [v for k, v in small.items() if k.endswith(("multiplier", "factor", "scale"))]
    factors += small["mlp_multipliers"]
    assert len(factors) == 7 and len(set(factors)) == 7 and 1.0 not in factors
    assert all(0.2 < factor < 1.5 for factor in factors)
    assert small["rms_norm_eps"] == small["layer_norm_epsilon"] == 1e-2
    assert (small["rope_theta"], small["rope_local_base_freq"]) == (1000.0, 100.0)
    assert small["rope_parameters"] == {"rope_theta": 707.0, "factor": 8.0, "rope_type": "llama3"}
    assert small["scale_attn_weights"] is True and small["vision_config"] == {"scale_factor": 2}


def test_sizes_of_heads_shrink_together():
    small = shrunk(
        {
            "head_dim": 64,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "qk_head_dim": 192,
            "v_head_dim": 128,
        }
    )
    assert list(small.values()) == [16, 32, 16, 48, 32]
    assert shrunk({"head_dim": 80, "v_head_dim": 128}) == {"head_dim": 20, "v_head_dim": 32}
    state = {"hidden_size": 4096, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 8}
    small = shrunk(state | {"mamba_expand": 2, "mamba_d_ssm": 8192})
    assert small["mamba_n_heads"] * small["mamba_d_head"] == small["mamba_d_ssm"] == 128
    assert small["mamba_n_heads"] % small["mamba_n_groups"] == 0 and small["mamba_n_groups"] > 1


def test_layers_that_share_come_behind_one_of_each_kind():
    kinds = ["sliding_attention"] * 2 + ["full_attention"]
    small = shrunk(
        {
            "num_hidden_layers": 9,
            "num_kv_shared_layers": 4,
            "layer_types": kinds * 3,
            "intermediate_size": [16384] * 9,
            "per_layer_config": {"2": {"head_dim": 512}, "8": {"head_dim": 512}},
        }
    )
    assert (small["num_hidden_layers"], small["num_kv_shared_layers"]) == (6, 3)
    assert small["layer_types"] == kinds * 2
    assert small["intermediate_size"] == [128, 96] * 3
    assert list(small["per_layer_config"]) == ["2"]


LATENT = {"rope_theta": 100.0, "qk_rope_head_dim": 16}
GROUPS = {"n_group": 4, "topk_group": 2}


@pytest.mark.parametrize(
    ("config", "cases"),
    [
        ({"tie_word_embeddings": False}, {"tied": {"tie_word_embeddings": True}}),
        ({"tie_word_embeddings": True}, {"untied": {"tie_word_embeddings": False}}),
        (
            {"attention_bias": True, "norm_topk_prob": False, "use_cache": True},
            {"switched": {"attention_bias": False, "norm_topk_prob": True}},
        ),
        (
            {"rope_scaling": {"type": "yarn"}, "rope_theta": 9.0},
            {"unscaled": {"rope_scaling": None}},
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 9.0}},
            {"unscaled": {"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}},
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}}}, {}),
        (GROUPS, {"ungrouped": {"n_group": 1, "topk_group": 1}}),
        (
            {"n_group": 1, "topk_group": 1, "num_experts": 4},
            {"groups": {**GROUPS, "num_experts": 8}},
        ),
        ({"position_embedding_type": "absolute"}, {}),
    ],
)
def test_variants_are_cases(config: dict[str, Any], cases: dict[str, Any]):
    assert variants(config) == cases


def test_a_rope_that_is_scaled_is_a_case():
    (name,), (yarn,) = variants(LATENT), variants(LATENT).values()
    rope = yarn["rope_scaling"]
    assert name == "yarn" and rope["rope_type"] == "yarn"
    # Latent attention scales scores by the ratio of both, and by the second alone.
    assert 1.0 != rope["mscale"] != rope["mscale_all_dim"] != 1.0
    rope = variants({"rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}})["yarn"]
    assert rope["rope_parameters"].items() >= {"rope_theta": 9.0, "rope_type": "yarn"}.items()
    assert "mscale" not in rope["rope_parameters"]


def test_a_router_is_drawn_with_a_bias_that_is_seen():
    bias = golden.weight("model.layers.1.mlp.gate.e_score_correction_bias", (8,))
    assert np.abs(bias).min() > 0.001 and len(set(bias.tolist())) == 8


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        ("XLMRobertaForMaskedLM", "XLMRobertaModel"),
        ("ModernBertModel", "ModernBertModel"),
        ("BertForSequenceClassification", "BertModel"),
        ("GPT2LMHeadModel", None),
        ("LlamaForCausalLM", None),
        (5, None),
    ],
)
def test_encoders_are_known_by_their_classes(name: Any, encoder: str | None):
    assert encoder_of({"architectures": [name]}) == encoder


def test_encoders_get_cases_of_embeddings(tmp_path: Path):
    want = golden.Embeddings.load(GOLDENS / "bert" / "embeddings" / "released.npz")
    config = want.config | {"architectures": ["ElseForMaskedLM"], "rope_theta": 10000.0}
    golden.checkpoint(tmp_path / "hf", config, want.weights())
    begun = scaffold("new-one", tmp_path / "own", hf=tmp_path / "hf")
    assert begun.template == "bert"
    cases = golden.Cases(tmp_path / "own" / "goldens" / "new_one")
    assert cases.names == ["plain", "yarn"] and not cases.configs
    plain, layers, lengths = cases.embeddings["plain"]
    assert plain["architectures"] == ["ElseModel"] and plain["layer_norm_eps"] == 1e-2
    assert layers == {} and max(lengths) < plain["max_position_embeddings"]
    assert cases.embeddings["yarn"][0]["rope_scaling"]["rope_type"] == "yarn"
    assert np.allclose(cases.weight("a.LayerNorm.weight", (4,)), 1.0, atol=0.2)
    # Its golden is that of bert: the model that it begins with computes it.
    want.folder, want.config = cases.folder, config
    want.save("plain")
    assert [o.ok for o in golden.check(cases.folder, "plain", models=tmp_path / "own")] == [True]


def test_a_case_of_a_model_with_media_changes_its_text(tmp_path: Path):
    want = golden.Golden.load(GOLDENS / "gemma3" / "images.npz")
    config: dict[str, Any] = want.config | {"architectures": ["UnknownForConditionalGeneration"]}
    config["text_config"] = config["text_config"] | {"tie_word_embeddings": False}
    golden.checkpoint(tmp_path / "hf", config, want.weights())
    scaffold("new-one", tmp_path / "own", hf=tmp_path / "hf")
    cases = golden.Cases(tmp_path / "own" / "goldens" / "new_one").configs
    assert cases["tied"]["text_config"] == cases["plain"]["text_config"] | {
        "tie_word_embeddings": True
    }
    assert cases["tied"]["vision_config"] == cases["plain"]["vision_config"]
