"""Our files against those that llama.cpp's converter wrote of the same models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.convert import from_hf
from ggmodel.convert.checkpoint_source import CheckpointSource, Contents
from ggmodel.convert.export import convert, write_source
from ggmodel.gguf_file import GGUF, Array
from ggmodel.model import find_hf
from ggmodel.workbench.golden import weight
from tests.convert.folders import write_model
from tests.golden import converted
from tests.golden.files import load_golden
from tests.golden.gemma3 import cases as gemma3

TESTS = Path(__file__).parents[1]
Shapes = dict[str, tuple[int, ...]]

# As the scripts beside the committed files give them to transformers.
SHARED = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 256,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
}
LLAMA: dict[str, dict[str, Any]] = {
    "plain": {
        **SHARED,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    },
    "llama3": {
        **SHARED,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": True,
    },
}
SMALL = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 16,
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "sliding_window_pattern": 6,
    "vocab_size": 300,
}


def text_shapes(config: dict[str, Any]) -> Shapes:
    """The tensors of a llama, or of gemma3's text, below "model."."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, k = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (k, hidden),
        "self_attn.v_proj": (k, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    if "sliding_window" in config:
        layer |= {f"{n}_feedforward_layernorm": (hidden,) for n in ("pre", "post")}
        layer |= {f"self_attn.{n}_norm": (dim,) for n in "qk"}
    layers = range(config["num_hidden_layers"])
    shapes = {f"layers.{i}.{n}.weight": shape for i in layers for n, shape in layer.items()}
    return {
        **shapes,
        "embed_tokens.weight": (config["vocab_size"], hidden),
        "norm.weight": (hidden,),
    }


def vision_shapes(config: dict[str, Any], text: int) -> Shapes:
    hidden, ffn, patch = (config[k] for k in ("hidden_size", "intermediate_size", "patch_size"))
    linear = {f"self_attn.{n}": (hidden, hidden) for n in "q_proj k_proj v_proj out_proj".split()}
    linear |= {"mlp.fc1": (ffn, hidden), "mlp.fc2": (hidden, ffn)}
    shapes: Shapes = {}
    for i in range(config["num_hidden_layers"]):
        for n, shape in {**linear, "layer_norm1": (hidden,), "layer_norm2": (hidden,)}.items():
            shapes[f"encoder.layers.{i}.{n}.weight"] = shape
            shapes[f"encoder.layers.{i}.{n}.bias"] = shape[:1]
    shapes |= {f"post_layernorm.{n}": (hidden,) for n in ("weight", "bias")}
    shapes["embeddings.patch_embedding.weight"] = (hidden, 3, patch, patch)
    shapes["embeddings.patch_embedding.bias"] = (hidden,)
    patches = (config["image_size"] // patch) ** 2
    shapes["embeddings.position_embedding.weight"] = (patches, hidden)
    tower = {f"vision_tower.vision_model.{n}": shape for n, shape in shapes.items()}
    projector = "multi_modal_projector.mm_"
    return {
        **tower,
        f"{projector}input_projection_weight": (hidden, text),
        f"{projector}soft_emb_norm.weight": (hidden,),
    }


def write_llama(folder: Path, name: str) -> Path:
    config = LLAMA[name]
    shapes = {f"model.{n}": shape for n, shape in text_shapes(config).items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], config["hidden_size"])
    return write_model(folder, config, {n: weight(n, shape) for n, shape in shapes.items()})


def write_gemma3(folder: Path) -> Path:
    config = gemma3.vision(9, {"hidden_size": 32}, **SMALL)
    text = text_shapes(config["text_config"])
    shapes = {f"language_model.model.{n}": shape for n, shape in text.items()}
    # The weights come from the names that transformers 5 has.
    seen = vision_shapes(config["vision_config"], SMALL["hidden_size"])
    values = {n: gemma3.weight(n, shape) for n, shape in shapes.items()}
    for n, shape in seen.items():
        values[n] = gemma3.weight(n.replace("tower.vision_model.", "tower."), shape)
    return write_model(folder, config, values)


def write_embedding(folder: Path) -> Path:
    changes = {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    config = gemma3.text(**{**SMALL, **changes})
    values = {n: gemma3.weight(n, shape) for n, shape in text_shapes(config).items()}
    write_model(folder, config, values)
    for name, shape in {"2_Dense": (64, 32), "3_Dense": (32, 64)}.items():
        dense = gemma3.weight(f"{name}.linear.weight", shape)
        write_model(folder / name, {}, {"linear.weight": dense})
    (folder / "modules.json").write_text("[]")
    return folder


def write_llama4(folder: Path) -> Path:
    golden = load_golden("llama4", "released")
    return write_model(folder, golden.config, golden.weights())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("folders")
    return {
        **{name: write_llama(root / f"tiny-llama-{name}", name) for name in LLAMA},
        "gemma3": write_gemma3(root / "tiny-gemma3"),
        "embedding": write_embedding(root / "gemma" / "tiny-gemma3"),
        "llama4": write_llama4(root / "tiny-llama4"),
    }


# File of the converter: our folder, type and part.
FILES: dict[str, tuple[str, str, Contents]] = {
    "fixtures/llama-converter-plain-f32.gguf": ("plain", "f32", "all"),
    "fixtures/llama-converter-llama3-f32.gguf": ("llama3", "f32", "all"),
    "fixtures/llama-converter-llama3-q8_0.gguf": ("llama3", "q8_0", "all"),
    "golden/gemma3/converted/text.gguf": ("gemma3", "f32", "text"),
    "golden/gemma3/converted/mmproj.gguf": ("gemma3", "f32", "vision"),
    "golden/gemma3/converted/embedding.gguf": ("embedding", "f32", "all"),
    "golden/llama4/converted/text.gguf": ("llama4", "f32", "text"),
    "golden/llama4/converted/mmproj.gguf": ("llama4", "f32", "vision"),
}
# Keys of our files alone. llama.cpp knows them by heart; other models differ in them.
GEMMA3 = {"attention.scale", "attention.sliding_window_pattern", "rope.scaling.factor"}
ONLY_OURS = {
    "gemma3": GEMMA3,
    "gemma-embedding": GEMMA3,
    "llama4": {
        "attention.chunk_size",
        "attention.floor_scale",
        "attention.scale",
        "attention.temperature_tuning",
        "no_rope_interval",
        "use_qk_norm",
    },
}
# A tensor has another name in theirs; and only theirs say how wide the dense layers of an embedding
# model are, which their tensors say: see docs/convert.md.
THEIR_NORM = ("v.blk.", ".attn_post_norm.", ".ln2.")


def typed(file: GGUF) -> dict[str, tuple[str, str, Any]]:
    """Key → type, type of items, value; without the vocabulary, which has tests of its own."""
    found = {}
    for key, value in file.metadata.items():
        if not key.startswith("tokenizer."):
            items = value.dtype if isinstance(value, Array) else ""
            found[key] = (file.metadata_types[key], items, value)
    return found


@pytest.fixture(params=FILES)
def pair(request: Any, folders: dict[str, Path], tmp_path: Path) -> Any:
    """Our file and the converter's."""
    folder, kind, part = FILES[request.param]
    with CheckpointSource.open(folders[folder], kind, contents=part) as source:
        vars(source)["vocabulary"] = {}
        with (tmp_path / "ours.gguf").open("wb") as file:
            write_source(source, file, file.name)
    with GGUF(tmp_path / "ours.gguf") as ours, GGUF(TESTS / request.param) as theirs:
        yield ours, theirs


def test_tensors_are_the_converters_byte_for_byte(pair: tuple[GGUF, GGUF]):
    ours, theirs = pair
    start, old, new = THEIR_NORM
    llama4 = theirs.metadata.get("clip.projector_type") == "llama4"
    names = [n.replace(old, new) if llama4 and n.startswith(start) else n for n in theirs.tensors]
    assert list(ours.tensors) == names
    for name, info in zip(names, theirs.tensors.values(), strict=True):
        mine = ours.info(name)
        assert (mine.shape, mine.dtype) == (info.shape, info.dtype), name
        assert ours.data(name) == theirs.data(info.name), name


def test_metadata_is_the_converters_type_by_type(pair: tuple[GGUF, GGUF]):
    ours, theirs = typed(pair[0]), typed(pair[1])
    architecture = pair[0].metadata["general.architecture"]
    theirs = {key: value for key, value in theirs.items() if "_feat_" not in key}
    more = {f"{architecture}.{key}" for key in ONLY_OURS.get(architecture, ())}
    if pair[0].metadata.get("clip.projector_type") == "llama4":
        more |= {"clip.vision.preproc_max_tiles", "clip.vision.rope.freq_base"}
    assert ours.keys() - theirs.keys() == more
    assert {key: ours[key] for key in theirs} == theirs


@pytest.mark.parametrize("kind", converted.TYPES)
@pytest.mark.parametrize("name", converted.NAMES)
def test_a_file_is_the_converters_in_all_that_it_holds(name: str, kind: str, tmp_path: Path):
    file = tmp_path / "ours.gguf"
    pre = None if name == "rwkv7" else "gpt-2"
    convert(converted.write(tmp_path / f"tiny-{name}", name), file, kind, pre=pre)
    theirs = json.loads(converted.expected(name).read_text("utf-8"))[kind]
    assert theirs["metadata"].pop("bailingmoe2.nextn_predict_layers", 0) == 0  # as without it
    assert converted.described(file) == theirs


def test_mixes_of_older_checkpoints_lie_in_one_tensor():
    golden = load_golden("rwkv7", "published")
    weights, older = golden.weights(), golden.weights()
    for i in range(golden.config["num_hidden_layers"]):
        each = [older.pop(f"model.layers.{i}.attn.x_{x}")[0, 0] for x in "rwkvag"]
        older[f"model.layers.{i}.attn.x_x"] = np.stack(each)
    model = find_hf(golden.config["architectures"])
    new, old = (from_hf(model, golden.config, x) for x in (weights, older))
    assert new.tensors == old.tensors
    assert all(new.data(name) == old.data(name) for name in new.tensors)
