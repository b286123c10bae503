"""Files, and what llama.cpp makes of them.

The notes were found by running llama.cpp's library (of llama-cpp-python 0.3.36) on the files. It
refuses those that are said to be refused. Its logits of the others differ from the goldens by an
NMSE of 1e-6 or more where a difference is told, and by less where none is. `tests/peers` holds the
tables against its source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import convert
from ggmodel.convert.llama_cpp import refusals
from ggmodel.convert.llama_cpp_tables import FIXED
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.gguf_file import open_gguf
from ggmodel.model import config_class, find
from ggmodel.workbench.golden import nmse
from tests.convert.folders import write_golden, write_model, write_tokenizer
from tests.golden.files import HERE, Golden, cases, load_golden

REFUSES = "llama.cpp refuses this file: "
DIFFERS = "llama.cpp computes something else from this file: "
WINDOW = (
    "attention.sliding_window is {0}, and it computes without: right up to {0} tokens, not beyond"
)
NOTES: dict[str, list[str]] = {
    "apertus/biases": [f"{REFUSES}it needs output.weight"],
    "arcee/biases": [
        f"{REFUSES}it has no place for blk.0.{part}.bias"
        for part in ("attn_output", "ffn_up", "ffn_down")
    ],
    "cohere2/layer_types": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "cohere2/untied": [f"{REFUSES}it has no place for output.weight"],
    "command_r/bias": [
        f"{REFUSES}it has no place for {name}"
        for name in ("blk.0.attn_output.bias", "output.weight")
    ],
    "command_r/plus": [
        f"{REFUSES}it has no place for blk.0.attn_{part}_norm.weight" for part in "qk"
    ],
    **{
        f"exaone4/{name}": [f"{DIFFERS}attention.sliding_window is {n}, and it computes without"]
        for name, n in (("layer_types", 5), ("windows", 8))
    },
    "ernie4_5/wide": [
        f"{REFUSES}it has no place for blk.0.ffn_{part}.bias" for part in ("gate", "up", "down")
    ],
    "afmoe/plain": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "bailingmoe2/drafting": [f"{REFUSES}attention.key_length is 32, not 16"],
    "bailingmoe2/plain": [
        *(f"{REFUSES}it has no place for blk.0.attn_{part}.bias" for part in ("output", "qkv")),
        f"{REFUSES}it needs output.weight",
        *(f"{REFUSES}it needs blk.0.attn_{part}_norm.weight" for part in "qk"),
    ],
    "deepseek2/v2_groups": [
        f"{REFUSES}it has no place for blk.0.attn_{part}.bias"
        for part in ("output", "q_a", "kv_a_mqa")
    ],
    "deepseek2/v3_plain": [f"{DIFFERS}rope.scaling.yarn_attn_factor is 1.1386"],
    "dots1/groups": [f"{REFUSES}attention.head_count_kv is 2, not 4"],
    "dots1/window": [
        f"{REFUSES}it has no place for blk.0.attn_output.bias",
        f"{REFUSES}it needs output.weight",
    ],
    "ernie4_5_moe/sparse": [
        f"{REFUSES}interleave_moe_layer_step is 2, not 1",
        f"{REFUSES}it has no place for output.bias",
        *(f"{REFUSES}it has no place for blk.0.ffn_{p}.bias" for p in ("gate", "up", "down")),
    ],
    "exaone_moe/groups": [f"{REFUSES}it needs output.weight"],
    "gemma/untied": [
        f"{REFUSES}it has no place for {name}"
        for name in ("blk.0.attn_output.bias", "output.weight")
    ],
    "gemma2/low_caps": [f"{DIFFERS}attention.scale is 0.25, and it computes with 0.17677"],
    "gemma2/no_caps": [f"{DIFFERS}{cap}_logit_softcapping is 0" for cap in ("attn", "final")],
    "gemma2/untied": [
        f"{REFUSES}it has no place for {name}"
        for name in ("blk.0.attn_output.bias", "output.weight")
    ],
    "gemma3/scaled_queries": [f"{DIFFERS}attention.scale is 0.25, and it computes with 0.17677"],
    "gemma3n/published": [
        f"{REFUSES}embedding_length_per_layer_input is 32, not 256",
        *(f"{REFUSES}it needs blk.3.attn_{part}.weight" for part in ("k", "v", "k_norm")),
    ],
    **{
        f"gemma3n/{name}": [
            f"{REFUSES}embedding_length_per_layer_input is 32, not 256",
            *(f"{REFUSES}it needs blk.3.attn_{part}.weight" for part in ("k", "v", "k_norm")),
        ]
        for name in ("images", "sounds")
    },
    "gemma4/images": [f"{DIFFERS}attention.bidirectional_images is False, and it computes with Tr"],
    "gemma4/sounds": [
        f"{DIFFERS}attention.bidirectional_images is False",
        f"{DIFFERS}audio.attention.context_left is 5, and it computes with 13",
    ],
    "gemma4/sounds_plain": [
        f"{DIFFERS}attention.bidirectional_images is False",
        f"{DIFFERS}audio.attention.context_left is 3, and it computes with 13",
        f"{DIFFERS}audio.attention.layer_norm_epsilon is 0.05, and it computes with 1e-06",
        f"{DIFFERS}audio.attention.logit_softcapping is 3.0, and it computes with 50.0",
        f"{DIFFERS}audio.residual_scale is 0.25, and it computes with 0.5",
    ],
    **{
        f"{name}/{case}": [f"{REFUSES}it has no architecture {name!r}"]
        for name, kinds in (
            ("bart", ("published", "scaled")),
            ("marian", ("published", "plain")),
            ("moonshine", ("published", "odd")),
        )
        for case in kinds
    },
    "gpt2/untied": [f"{DIFFERS}hidden_activation is relu, and it computes with gelu_fast"],
    **{
        f"t5/{name}": [f"{DIFFERS}{key} is {value}" for key, value in differing]
        for name, differing in (
            ("published", [("logit_scale", "0.125, and it computes with 1.0")]),
            ("gated", [("attention.relative_max_distance", "14, and it computes with 128")]),
            ("silu", [("hidden_activation", "silu, and it computes with relu")]),
            ("gated_silu", [("hidden_activation", "silu"), ("logit_scale", "0.125")]),
        )
    },
    "gptneox/plain": [f"{DIFFERS}hidden_activation is gelu, and it computes with gelu_fast"],
    "gptneox/serial": [
        f"{REFUSES}it needs {name}"
        for name in ("output.weight", "blk.0.attn_qkv.bias", "blk.0.attn_output.bias")
    ],
    "gpt_oss/other_layers": [f"{REFUSES}it needs blk.0.attn_output.bias"],
    "gpt_oss/released": [f"{DIFFERS}rope.scaling.yarn_truncate is False, and it computes with Tr"],
    "gpt_oss/rounded_yarn": [
        f"{DIFFERS}rope.scaling.yarn_attn_factor is 1.25, and it computes with 1.2079",
        f"{DIFFERS}rope.scaling.yarn_beta_fast is 1.2, and it computes with 32.0",
        f"{DIFFERS}rope.scaling.yarn_beta_slow is 0.1, and it computes with 1.0",
    ],
    **{
        f"hunyuan_{kind}/alpha": [f"{REFUSES}it has no place for blk.0.attn_output.bias"]
        for kind in ("dense", "moe")
    },
    **{
        f"mpt/{name}": [f"{DIFFERS}hidden_activation is gelu, and it computes with gelu_fast"]
        for name in ("plain", "clipped")
    },
    "mpt/scaled": [
        f"{DIFFERS}hidden_activation is gelu, and it computes with gelu_fast",
        f"{DIFFERS}attention.scale is 0.6, and it computes with 0.25",
    ],
    "lfm2vl/experts": [f"{DIFFERS}mm.hidden_activation is silu, and it computes with gelu"],
    "lfm2/bias": [
        f"{REFUSES}it has no place for blk.0.shortconv.{part}.bias"
        for part in ("in_proj", "conv", "out_proj")
    ],
    "lfm2/experts_scaled": [
        f"{DIFFERS}expert_weights_norm is False, and it computes with True",
        f"{DIFFERS}expert_weights_scale is 2.5, and it computes with 1.0",
    ],
    "lfm2/two_taps": [f"{REFUSES}attention.key_length is 32, not 16"],
    "llama/yarn": [f"{DIFFERS}rope.scaling.yarn_beta_fast is 2.0, and it computes with 32.0"],
    "llama/yarn_scales": [
        f"{DIFFERS}rope.scaling.yarn_attn_factor is 0.7797",
        f"{DIFFERS}rope.scaling.yarn_truncate is False",
    ],
    **{
        f"internvl/{name}": [f"{DIFFERS}it adds to each patch of a picture the position before"]
        for name in ("experts", "qwen2", "qwen3")
    },
    "llama4/released": [f"{DIFFERS}it lays the rows of a tile column by column"],
    "llama4/untuned": [
        f"{DIFFERS}attention.chunk_size is 64, and it computes with 8192",
        f"{DIFFERS}no_rope_interval is 2, and it computes with 4",
        f"{DIFFERS}attention.temperature_tuning is False, and it computes with True",
    ],
    "mamba/biases": [
        f"{REFUSES}ssm.inner_size is 192, not 128",
        *(f"{REFUSES}it has no place for blk.0.ssm_{part}.bias" for part in ("in", "out")),
        f"{REFUSES}it needs blk.0.ssm_conv1d.bias",
    ],
    "mamba/falcon": [f"{DIFFERS}ssm.dt_b_c_rms_epsilon is 0.01, and it computes with 1e-05"],
    "mamba2/biases": [
        *(f"{REFUSES}it has no place for blk.0.ssm_{part}.bias" for part in ("in", "out")),
        f"{REFUSES}it needs blk.0.ssm_conv1d.bias",
    ],
    "granitehybrid/attention": [
        f"{REFUSES}attention.head_count_kv is [2, 2, 2], not one with 0, a layer with states",
    ],
    "granitehybrid/experts": [
        f"{REFUSES}it has no place for blk.1.ssm_{part}.bias" for part in ("in", "out")
    ],
    **{
        f"falcon_h1/{name}": [
            f"{REFUSES}it has no place for blk.0.ssm_{part}.bias" for part in parts
        ]
        for name, parts in (("norm", ("in", "out")), ("biases", ("in",)))
    },
    "nemotron/biases": [
        f"{REFUSES}attention.key_length is 32, not 16",
        f"{REFUSES}it needs output.weight",
    ],
    "nemotron_h/biases": [
        f"{REFUSES}it has no place for blk.2.ssm_{part}.bias" for part in ("in", "out")
    ],
    "nemotron_h/latent": [
        f"{REFUSES}it has no place for blk.1.ffn_{part}.bias"
        for part in ("up_shexp", "down_shexp", "latent_down", "latent_up")
    ],
    "nemotron_h/mixed": [
        f"{REFUSES}feed_forward_length is [0, 96, 32], not [0, 32, 32]",
    ],
    "kimi_linear/latent": [f"{REFUSES}attention.q_lora_rank is 32, not 0"],
    "deepseek4/rates": [f"{REFUSES}hyper_connection.count is 3, not 4"],
    "deepseek4/linear": [
        f"{REFUSES}hyper_connection.count is 1, not 4",
        *(f"{REFUSES}it has no place for blk.0.ffn_{p}_shexp.bias" for p in ("gate", "up", "down")),
        f"{REFUSES}it needs output.weight",
    ],
    "laguna/full": [
        f"{DIFFERS}rope.scaling.yarn_attn_factor is 1.2, and it computes with 1.138",
        f"{DIFFERS}rope.scaling.yarn_beta_fast is 2.0, and it computes with 32.0",
        f"{DIFFERS}rope.scaling.yarn_beta_slow is 0.5, and it computes with 1.0",
        f"{DIFFERS}router_logit_softcapping is 0.7",
    ],
    "phimoe/window": [
        f"{REFUSES}it needs {name}"
        for name in ("output.weight", "output.bias", "blk.0.attn_output.bias")
    ],
    **{
        f"phimoe/{name}": [f"{DIFFERS}expert_router_jitter is {jitter}"]
        for name, jitter in (("published", 0.3), ("near", 1.5))
    },
    **{
        f"olmo_hybrid/{name}": [f"{REFUSES}it has no architecture 'olmo_hybrid'"]
        for name in ("published", "rope")
    },
    "qwen3next/some_dense": [
        f"{REFUSES}it has no place for blk.0.attn_output.bias",
        *(
            f"{REFUSES}it has no place for blk.1.ffn_{part}.weight"
            for part in ("gate", "up", "down")
        ),
    ],
    "jamba/dense": [
        f"{REFUSES}ssm.inner_size is 192, not 128",
        *(f"{REFUSES}it has no place for blk.1.ssm_{part}.bias" for part in ("in", "out")),
    ],
    "glm_ocr/partial": [
        f"{DIFFERS}vision.rope.freq_base is 100.0, and it computes with 10000.0",
    ],
    "minimax_m2/whole_rope": [f"{REFUSES}it needs output.weight"],
    "mistral/window": [f"{REFUSES}it has no architecture 'mistral'"],
    "mllama/images": [f"{REFUSES}it has no architecture 'mllama'"],
    "mistral3/ministral": [
        f"{DIFFERS}vision.rope.freq_base is 100.0, and it computes with 10000.0",
    ],
    "olmo/clipped": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "olmoe/bias": [
        f"{REFUSES}it has no place for blk.0.attn_output.bias",
        f"{REFUSES}it needs output.weight",
    ],
    "olmo2/bias": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "olmo2/tied": [f"{REFUSES}it needs output.weight"],
    "olmo2/windows": [f"{DIFFERS}rope.scaling.yarn_attn_factor is 1.2, and it computes with 1.207"],
    "phi3/window": [DIFFERS + WINDOW.format(8)],
    "qwen2moe/some_dense": [
        *(f"{REFUSES}it has no place for blk.0.ffn_{p}.weight" for p in ("gate", "up", "down")),
        f"{REFUSES}it needs output.weight",
    ],
    "qwen2moe/window": [DIFFERS + WINDOW.format(8)],
    "qwen2/layer_types": [DIFFERS + WINDOW.format(8)],
    "qwen2/odd_head_dim": [f"{REFUSES}attention.key_length is 24, not 16"],
    "qwen2/window": [DIFFERS + WINDOW.format(8)],
    "paddleocr/biases": [
        f"{REFUSES}it has no place for blk.0.ffn_{part}.bias" for part in ("gate", "up", "down")
    ],
    **{
        f"qwen2vl/{name}": [f"{DIFFERS}vision.window_size is {size}, and it computes with 112"]
        for name, size in (("qwen25", 16), ("qwen25_windows", 24))
    },
    "qwen2vl/qwen2_untied": [DIFFERS + WINDOW.format(16)],
    "qwen3/bias": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "qwen3/experts_window": [DIFFERS + WINDOW.format(8)],
    "qwen3/plain_weights": [f"{DIFFERS}expert_weights_norm is False, and it computes with True"],
    "qwen3/some_dense": [
        f"{REFUSES}it has no place for blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")
    ],
    "qwen2audio/odd": [
        f"{DIFFERS}audio.hidden_activation is relu, and it computes with gelu",
        f"{DIFFERS}it fills sounds up to 30 s",
    ],
    "qwen2audio/published": [f"{DIFFERS}it fills sounds up to 30 s"],
    **{
        f"qwen3asr/{name}": [
            *activation,
            f"{DIFFERS}audio.window_frames is {frames}, and it computes with 800",
            f"{DIFFERS}it hears a frame more of each sound, and silence up to a whole second",
        ]
        for name, frames, activation in (
            ("published", 200, ()),
            (
                "odd",
                100,
                (f"{DIFFERS}audio.hidden_activation is relu, and it computes with gelu",),
            ),
        )
    },
    "qwen35/bias": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "qwen3/window": [DIFFERS + WINDOW.format(8)],
    "muse_glimmer/by_number": [
        f"{DIFFERS}attention.post_norm_rms_epsilon is 0.1, and it computes with 1e-08"
    ],
    "muse_glimmer/rotated": [f"{REFUSES}it has no place for blk.0.attn_output.bias"],
    "seed_oss/wide": [
        f"{REFUSES}it has no place for blk.0.{part}.bias"
        for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ],
    "smollm3/interval": [f"{DIFFERS}rope.layers is [True, False, True]"],
    "smollm3/untied": [
        f"{REFUSES}it has no place for blk.0.{part}.bias"
        for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ],
    "stablelm/parallel": [f"{REFUSES}it needs output.weight"],
    "starcoder2/window": [
        f"{REFUSES}it needs blk.0.{part}.bias" for part in ("attn_output", "ffn_up", "ffn_down")
    ],
    "voxtral/published": [f"{DIFFERS}it averages pairs of the encoder's rows"],
    "voxtral/stacked": [
        f"{DIFFERS}audio.hidden_activation is relu, and it computes with gelu",
        f"{DIFFERS}mm.hidden_activation is silu, and it computes with gelu",
        f"{DIFFERS}it averages pairs of the encoder's rows",
    ],
}
# llama.cpp computes the same: there are no notes.
SAME = """
    afmoe/published bailingmoe2/published dots1/published ernie4_5_moe/published
    exaone_moe/published minimax_m2/published deepseek4/published
    deepseek2/lite deepseek2/v3 glm4moe/air glm4moe/groups glm4moe/whole_rope
    olmoe/published olmoe/linear_rope qwen2moe/published
    cohere2/linear_rope cohere2/published command_r/published gemma2/published gemma3/images
    gemma3/softcap gemma3/untied gemma4/dense gemma4/experts gemma4/images_dense
    arcee/published gemma/published granitemoe/published granitemoe/shared nemotron/published
    muse_glimmer/published
    apertus/plain ernie4_5/plain exaone4/plain glm4/plain glm4/wide glm_ocr/published gpt2/plain
    bloom/plain bloom/three_heads bloom/twelve_heads hunyuan_moe/plain
    hunyuan_dense/plain olmo/plain seed_oss/plain smollm3/plain stablelm/plain starcoder2/plain
    gemma4/published granite/plain granite/tied idefics3/smolvlm idefics3/tiles idefics3/docling
    lfm2/experts lfm2/published lfm2/untied lfm2vl/published
    llama/attention_bias llama/experts
    llama/linear_rope llama/llama3_rope llama/longrope llama/tied
    mamba/published mamba2/published
    jamba/published kimi_linear/published laguna/published
    qwen3next/published
    rwkv7/published rwkv7/heads
    nemotron_h/published nemotron_h/experts
    falcon_h1/published
    granitehybrid/dense
    mistral/no_window mistral3/images mistral3/pixtral mistral3/text
    olmo2/plain paddleocr/pages phi3/long phi3/partial qwen2/tied qwen2/unused_window qwen2/yarn
    qwen3/experts
    qwen2vl/qwen2
    qwen3/plain qwen3/tied qwen35/experts qwen35/interval qwen35/published
    qwen3vl/experts qwen3vl/images qwen3vl/qwen35
""".split()
NOTES |= {name: list[str]() for name in SAME}


def converted(tmp_path: Path, name: str, **options: Any) -> tuple[list[str], Path, Golden]:
    """The notes on a golden's file, and the file."""
    arch, _, case = name.partition("/")
    folder, golden = write_golden(tmp_path / "hf", arch, case)
    towers = {"audio_config", "vision_config"} & golden.config.keys()
    apart = towers and arch not in ("mllama", "muse_glimmer")
    if apart and "mmproj" not in options:
        options["mmproj"] = tmp_path / "mmproj.gguf"
    return convert(folder, tmp_path / "a.gguf", pre="gpt-2", **options), tmp_path / "a.gguf", golden


@pytest.mark.parametrize("name", NOTES)
def test_what_llama_cpp_makes_of_a_file_is_told(tmp_path: Path, name: str):
    notes, _, _ = converted(tmp_path, name)
    assert [note[: len(want)] for note, want in zip(notes, NOTES[name], strict=True)] == NOTES[name]


def test_every_architecture_is_among_them():
    families = {name.partition("/")[0] for name in NOTES}
    encoders = {
        "bert",
        "eurobert",
        "jina_bert_v3",
        "modern_bert",
        "mpnet",
        "nomic_bert",
        "t5encoder",
    }  # no logits
    assert families | encoders | {"whisper"} == {
        path.parent.name for path in HERE.glob("*/cases.py")
    }
    assert all(case in cases(family) for family, case in (name.split("/") for name in NOTES))


def test_images_need_a_file_of_their_own(tmp_path: Path):
    notes, _, _ = converted(tmp_path, "gemma3/images", mmproj=None)
    assert notes == [
        f"{REFUSES}it reads images only from a file of their own (--mmproj FILE, mmproj=)"
    ]


def test_a_vocabulary_shorter_than_the_embedding_is_told(tmp_path: Path):
    golden = load_golden("llama", "tied")
    size = golden.config["vocab_size"] - 1
    folder = write_model(tmp_path / "hf", golden.config | {"vocab_size": size}, golden.weights())
    write_tokenizer(folder, size)
    notes = convert(folder, tmp_path / "a.gguf")
    assert notes == [f"{REFUSES}the embedding has {size + 1} rows for {size} tokens"]


def test_a_mistral_without_a_window_is_a_llama(tmp_path: Path):
    notes, path, golden = converted(tmp_path, "mistral/no_window")
    assert notes == []
    with open_gguf(path) as file:
        assert file.metadata["general.architecture"] == "llama"
        rows = np.frombuffer(file.data("blk.0.attn_q.weight"), np.float32)
    source = golden.weights()["model.layers.0.self_attn.q_proj.weight"]
    heads, width = golden.config["num_attention_heads"], golden.config["hidden_size"]
    # Rows i and i + half of a head become neighbours, as ggml's rope of llama rotates them.
    want = source.reshape(heads, 2, -1, width).swapaxes(1, 2)
    assert np.array_equal(rows, want.reshape(-1).astype(np.float32))
    for model in (path, tmp_path / "hf"):
        with ggmodel.load(model, kv_type="f32", flash_attention="off") as loaded:
            assert loaded.model.architecture == "llama"
            assert nmse(loaded.logits(golden.prompt.tolist()), golden.logits) < 1e-8


def test_a_mistral_with_a_window_keeps_it(tmp_path: Path):
    _, path, golden = converted(tmp_path, "mistral/window")
    with ggmodel.load(path, kv_type="f32", flash_attention="off") as loaded:
        assert loaded.model.architecture == "mistral"
        assert nmse(loaded.logits(golden.prompt.tolist()), golden.logits) < 1e-8


def test_for_llama_cpp_the_window_is_left_out_and_that_is_told(tmp_path: Path):
    notes, path, golden = converted(tmp_path, "mistral/window", program="llama.cpp")
    window = golden.config["sliding_window"]
    assert notes == [DIFFERS + WINDOW.format(window)]
    with ggmodel.load(path, kv_type="f32", flash_attention="off") as loaded:
        assert loaded.model.architecture == "llama"
        logits = loaded.logits(golden.prompt.tolist())
    assert nmse(logits[:window], golden.logits[:window]) < 1e-8
    assert nmse(logits[window:], golden.logits[window:]) > 1e-2


@pytest.mark.parametrize(("layers", "parts"), [(63, ""), (64, "qk"), (65, "qk")])
def test_a_deep_command_r_needs_norms_of_heads(layers: int, parts: str):
    config = config_class(find("command-r"))
    h = config(layers=layers, width=64, ffn=128, heads=4, eps=1e-5, context=128)
    notes = refusals("command-r", h, {"tokenizer.ggml.tokens": ["a"]}, {})
    assert list(notes) == [f"it needs blk.0.attn_{part}_norm.weight" for part in parts]


@pytest.mark.parametrize("name", ["mllama/images", "qwen2/odd_head_dim", "olmo2/bias"])
def test_for_llama_cpp_nothing_is_written_that_it_refuses(tmp_path: Path, name: str):
    reason = NOTES[name][0].removeprefix(REFUSES)
    with pytest.raises(Unsupported, match=f"llama.cpp would refuse the file: {reason}"):
        converted(tmp_path, name, program="llama.cpp")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_of_architectures_of_others_only_the_name_is_looked_up(tmp_path: Path):
    own = tmp_path / "own"
    own.mkdir()
    for name in ("gemma2", "gemma9"):
        text = f'''from ggmodel import Config, Model, gguf, kv, nn, register
class Own(Config):
    rows: int = kv("rows", hf="vocab_size")
    scale: float = kv("attention.scale", hf=lambda hf: 7.0)
@register("{name}", hf="OwnForCausalLM")
class Gemma(Model):
    ignore_hf = ("*.layers.*", "model.norm.weight")
    config: Own
    embed: nn.Embedding = gguf("token_embd", hf="model.embed_tokens", shape=(None, "rows"))
    head: nn.Linear | None = gguf("output", hf="lm_head", shape=(None, "rows"))
'''
        (own / "gemma.py").write_text(text)
        folder, golden = write_golden(tmp_path / name, "gemma2", "untied")
        config = {"architectures": ["OwnForCausalLM"], "vocab_size": golden.config["vocab_size"]}
        (folder / "config.json").write_text(json.dumps(config))
        notes = convert(folder, tmp_path / f"{name}.gguf", models=own, pre="gpt-2")
        known = name == "gemma2"
        assert notes == ([] if known else [f"{REFUSES}it has no architecture 'gemma9'"])


def test_other_programs_are_unknown(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"program is 'ollama'; .* for 'llama\.cpp'"):
        converted(tmp_path, "llama/tied", program="ollama")


def test_tables_name_keys_once():
    for name, table in FIXED.items():
        keys = [fixed.key for fixed in table]
        assert len(keys) == len(set(keys)), name
