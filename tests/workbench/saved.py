"""The tiny models whose activations, as transformers computes them, are in `references/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggmodel.convert import from_hf
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.workbench import golden
from ggmodel.workbench.activations import Activations
from tests.golden import files
from tests.golden.files import Picture
from tests.golden.gemma3 import cases as gemma3
from tests.golden.idefics3 import cases as idefics3
from tests.golden.llama.cases import llama
from tests.golden.llama4 import cases as llama4
from tests.golden.mllama import cases as mllama
from tests.golden.qwen2audio import cases as qwen2audio

HERE = Path(__file__).parent / "references"


@dataclass(frozen=True)
class Case:
    """A model and what it is given.

    Attributes:
        ids: the prompt, with placeholders for the rows of the picture.
    """

    arch: str
    config: dict[str, Any]
    ids: list[int]
    picture: Picture | None = None


SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "head_dim": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
}
_TILED: dict[str, Any] = {"vision_config": {"image_size": 8, "patch_size": 2}, "scale_factor": 2}
_WIDE = Picture("wide", (3, 3, 8, 8), {"grid": [1, 2]})
CASES = {
    "llama": Case(
        "llama", llama(hidden_size=32, intermediate_size=64, vocab_size=48), [1, 9, 30, 17, 40]
    ),
    # The fixtures that llama.cpp's converter has made: "The cats watched"
    "converted": Case(
        "llama",
        llama(
            head_dim=32,
            hidden_size=32,
            intermediate_size=64,
            max_position_embeddings=256,
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_scaling={
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
            rope_theta=500000.0,
            tie_word_embeddings=True,
            vocab_size=320,
        ),
        [1, 285, 286, 263, 266, 307, 259, 303],
    ),
    "mixtral": Case(
        "llama",
        llama(
            architectures=["MixtralForCausalLM"],
            model_type="mixtral",
            hidden_size=32,
            intermediate_size=32,
            vocab_size=48,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
        [1, 22, 7, 35, 13],
    ),
    "gemma3": Case(
        "gemma3",
        gemma3.vision(
            1,
            {
                "hidden_size": 32,
                "image_size": 8,
                "intermediate_size": 32,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
            },
            **SMALL,
        ),
        [1, 9, gemma3.NEWLINES, gemma3.BEGIN, gemma3.IMAGE, gemma3.END, gemma3.NEWLINES],
        Picture("red", (1, 3, 8, 8)),
    ),
    # Two tiles and a view of the whole, whose patches the projector merges.
    "idefics3": Case(
        "idefics3",
        idefics3.idefics3(
            {
                **_TILED["vision_config"],
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
            },
            None,
            **{**SMALL, "num_hidden_layers": 1},
        ),
        [1, 9, *idefics3.image_tokens(_TILED, _WIDE), 7],
        _WIDE,
    ),
    "llama4": Case(
        "llama4",
        llama4.vision(
            {
                "image_size": 8,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "vision_output_dim": 32,
            },
            hidden_size=32,
            head_dim=16,
            intermediate_size=32,
            intermediate_size_mlp=32,
            interleave_moe_layer_step=2,
            no_rope_layers=[1, 0],
            num_hidden_layers=2,
            num_key_value_heads=1,
        ),
        [1, 9, llama4.START, llama4.IMAGE, llama4.PATCH, llama4.END],
        Picture("one", (1, 3, 8, 8), {"aspect_ratio": [1, 1]}),
    ),
    # A sound that does not fill its window: transformers' encoder has rows for silence.
    "qwen2audio": Case(
        "qwen2audio",
        qwen2audio.qwen2audio(
            {
                "d_model": 16,
                "encoder_ffn_dim": 16,
                "encoder_layers": 1,
                "max_source_positions": 12,
            },
            **{k: v for k, v in SMALL.items() if k != "head_dim"},
        ),
        [1, 9, qwen2audio.BEGIN, *[qwen2audio.AUDIO] * 3, qwen2audio.END, 7],
        Picture("short", (8, 24), {"frames": 13}, kind="audio"),
    ),
    "mllama": Case(
        "mllama",
        mllama.mllama(
            {"num_global_layers": 1, "num_hidden_layers": 2, "intermediate_layers_indices": [1]},
            side=8,
            tiles=1,
            cross_attention_layers=[1],
            hidden_size=32,
            intermediate_size=32,
            num_attention_heads=2,
            num_hidden_layers=2,
            num_key_value_heads=1,
        ),
        [1, mllama.IMAGE, 9],
        Picture("one", (1, 3, 8, 8), {"aspect_ratio_id": 1}),
    ),
}


def saved(name: str) -> Activations:
    """The activations that transformers computed."""
    return Activations.load(HERE / f"{name}.npz")


def source_of(name: str, store: Any = None) -> MemorySource:
    """The model, converted by its declaration."""
    case, reference = CASES[name], saved(name)
    weight = golden.Cases(files.HERE / case.arch).weight
    weights = {key: weight(key, tuple(shape)) for key, shape in reference.tensors.items()}
    return from_hf(find(case.arch), case.config, weights, store)
