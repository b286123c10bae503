"""Folders of sentence-transformers: what their modules say, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.export import convert
from ggmodel.convert.sentence_transformers import read_folder
from ggmodel.errors import FormatError, Unsupported
from tests.convert import sentences
from tests.convert.folders import write_model
from tests.golden.files import load_embeddings, load_golden

MEAN: dict[str, Any] = {"pooling_mode": "mean"}


def module(folder: Path, config: Any) -> Path:
    if isinstance(config, str):
        sentences.write_modules(folder, [("Pooling", {}, {})])
        (folder / "1_Pooling" / "config.json").write_text(config)
        return folder
    return sentences.write_modules(folder, [("Pooling", config, {})])


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, 3),
        ({"pooling_mode_cls_token": False}, 1),
        ({"embedding_dimension": 8, "pooling_mode": "cls"}, 2),
        ({"pooling_mode": ["lasttoken"]}, 3),
    ],
)
def test_what_a_module_says(tmp_path: Path, config: dict[str, Any], number: int):
    assert read_folder(module(tmp_path, config)).pooling == number


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode_max_tokens": True}, ["max"]),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode": ["max", "weightedmean"]}, ["max", "weightedmean"]),
    ],
)
def test_other_ways_have_a_key_of_ours(tmp_path: Path, config: dict[str, Any], modes: list[str]):
    folder = read_folder(module(tmp_path, config))
    assert folder.pooling is None
    assert folder.metadata == {"embedding.pooling": modes}


def test_the_module_of_a_checkpoint_counts(tmp_path: Path):
    golden = load_embeddings("bert", "released")
    write_model(tmp_path, golden.config, golden.weights())
    with CheckpointSource.open(tmp_path) as source:
        before = source.metadata.get("bert.pooling_type")
    module(tmp_path, {"pooling_mode_lasttoken": True})
    with CheckpointSource.open(tmp_path) as source:
        assert source.metadata["bert.pooling_type"] == 3 != before


def test_decoders_pool_as_their_module_says(tmp_path: Path):
    """Saved as the body alone, whose names lack "model."."""
    golden = load_golden("qwen3", "tied")
    weights = {name.removeprefix("model."): data for name, data in golden.weights().items()}
    write_model(tmp_path, golden.config, weights)
    module(tmp_path, {"pooling_mode_lasttoken": True, "include_prompt": True})
    prompt = golden.prompt.tolist()
    with CheckpointSource.open(tmp_path) as source:
        assert source.metadata["qwen3.pooling_type"] == 3
    with ggmodel.load(tmp_path, threads=1) as model:
        [got], [last] = model.embed([prompt]), model.embed([prompt], pooling="last")
        [mean] = model.embed([prompt], pooling="mean")
    np.testing.assert_array_equal(got, last)
    assert np.abs(got - mean).max() > 0.01


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"pooling_mode": "median"}, "pooling by median is unsupported"),
        ({"pooling_mode_first_last": True}, "pooling by pooling_mode_first_last is unsupported"),
        ({"pooling_mode": []}, "pooling by nothing is unsupported"),
    ],
)
def test_another_way_of_pooling_is_refused(tmp_path: Path, config: dict[str, Any], text: str):
    with pytest.raises(Unsupported, match=text):
        read_folder(module(tmp_path, config))


def test_without_modules_nothing_is_said(tmp_path: Path):
    assert read_folder(tmp_path).pooling is None


def test_a_config_that_is_none(tmp_path: Path):
    with pytest.raises(FormatError, match=r"1_Pooling/config\.json"):
        read_folder(module(tmp_path, "[1"))
    (tmp_path / "modules.json").write_text('{"type": 1}')
    with pytest.raises(FormatError, match=r"modules\.json should be a list"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("kind", "config", "text"),
    [
        ("WordWeights", {}, "the module 'sentence_transformers.models.WordWeights' is unsupported"),
        ("Dense", sentences.dense(8, 8, "Softplus"), "activation 'torch.nn.*Softplus' is unsupp"),
        ("Dense", {"activation_function": "my.Tanh"}, "activation 'my.Tanh' is unsupported"),
        ("Dense", {"module_input_name": "token_embeddings"}, "module_input_name is 'token_embed"),
        ("Normalize", {"module_input_name": "x"}, "module_input_name is 'x'; only 'sentence_em"),
        ("LogitScore", {"true_token_id": 1}, "only a score of two tokens is supported"),
    ],
)
def test_modules_are_refused_by_name(tmp_path: Path, kind: str, config: Any, text: str):
    folder = sentences.write_modules(tmp_path, [(kind, config, {})])
    names = ["1_Dense.linear.weight", "1_Dense.linear.bias"]
    with pytest.raises(Unsupported, match=text):
        read_folder(folder, names)


def test_code_of_a_folder_is_not_run(tmp_path: Path):
    folder = module(tmp_path, MEAN)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(Unsupported, match=r"the module 'custom_st\.Transformer' is unsup"):
        read_folder(folder)
    listed[0] |= {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(Unsupported, match="the transformer lies in a folder of its own"):
        read_folder(folder)
    listed[1]["path"] = "../1_Pooling"
    (folder / "modules.json").write_text(json.dumps(listed[1:]))
    with pytest.raises(Unsupported, match="is not named as sentence-transformers does"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("settings", "transformer", "text"),
    [
        ({"model_type": "SparseEncoder"}, None, "model_type 'SparseEncoder' is unsupported"),
        ({"similarity_fn_name": "maxsim"}, None, "similarity_fn_name 'maxsim' is unsupported"),
        (None, {"query_length": 32}, "query_length is 32, which is unsupported"),
        (None, {"processing_kwargs": {"text": {"padding": True}}}, "processing_kwargs is"),
        (None, {"model_kwargs": {"subfolder": "x"}}, "model_kwargs is"),
        (None, {"do_lower_case": True}, "do_lower_case is true, but the tokenizer keeps"),
        (None, {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
        (
            None,
            {"modality_config": {"message": {"method_output_name": "last_hidden_state"}}},
            "modality_config is",
        ),
    ],
)
def test_settings_are_refused_by_name(tmp_path: Path, settings: Any, transformer: Any, text: str):
    folder = sentences.write_modules(tmp_path, [("Pooling", MEAN, {})], settings, transformer)
    with pytest.raises(Unsupported, match=text):
        read_folder(folder)


@pytest.mark.parametrize(
    ("settings", "transformer", "text"),
    [
        ({"prompts": ["a"]}, None, "prompts should be texts by their names"),
        ({"default_prompt_name": "q"}, None, "default_prompt_name 'q' is no name of prompts"),
        ({"truncate_dim": 0}, None, "truncate_dim is 0, no count"),
        (None, {"max_seq_length": True}, "max_seq_length is True, no count"),
    ],
)
def test_damaged_settings(tmp_path: Path, settings: Any, transformer: Any, text: str):
    folder = sentences.write_modules(tmp_path, [("Pooling", MEAN, {})], settings, transformer)
    with pytest.raises(FormatError, match=text):
        read_folder(folder)


def test_settings_without_effect(tmp_path: Path):
    transformer = {
        "max_seq_length": 8,
        "do_lower_case": False,
        "model_args": {"torch_dtype": "bfloat16"},
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "last_hidden_state"}
        },
        "module_output_name": "token_embeddings",
        "query_length": None,
    }
    folder = sentences.write_modules(tmp_path, [("Dropout", {}, {})], None, transformer)
    assert read_folder(folder).metadata == {"embedding.max_tokens": 8}


def test_a_dense_module_without_safetensors(tmp_path: Path):
    config = sentences.dense(8, 8, "Tanh")
    folder = sentences.write_modules(tmp_path, [("Pooling", MEAN, {}), ("Dense", config, {})])
    with pytest.raises(FormatError, match=r"2_Dense has no tensor 'linear\.weight'.*safetensors"):
        read_folder(folder)


def test_the_file_has_the_keys_and_tensors_of_modules(tmp_path: Path):
    folder = sentences.joined(tmp_path / "folder")
    notes = convert(folder, tmp_path / "model.gguf", "q8_0")
    with ggmodel.open_gguf(tmp_path / "model.gguf") as file:
        keys = {k: v for k, v in file.metadata.items() if k.startswith("bert.embedding.")}
        assert {k.removeprefix("bert.embedding."): v for k, v in keys.items()} == {
            "pooling": ["cls", "max"],
            "layers": ["dense_2 tanh", "dense_3 relu residual", "dense_4 gelu residual"],
            "dimensions": 12,
            "max_tokens": 30,
        }
        assert "bert.pooling_type" not in file.metadata
        assert {n for n in file.tensors if n.startswith("dense_4")} == {
            "dense_4.weight",
            "dense_4_residual.weight",
        }
    assert any("no place for dense_2" in note for note in notes)
    with ggmodel.load(folder, threads=1) as model:
        want = model.embed(sentences.TEXTS, truncate=True)
    with ggmodel.load(tmp_path / "model.gguf", threads=1) as model:
        got = model.embed(sentences.TEXTS, truncate=True)
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 0.05


def test_embedding_gemmas_layers_are_its_own(tmp_path: Path):
    """Its declaration computes them; the others remain."""
    golden = load_embeddings("gemma3", "embedding")
    kept = golden.weights()
    write_model(tmp_path, golden.config, {n: x for n, x in kept.items() if "_Dense" not in n})
    out, width = kept["2_Dense.linear.weight"].shape
    modules: Any = [("Pooling", MEAN, {})]
    for shape in ((out, width), (width, out)):
        config = sentences.dense(shape[1], shape[0], "Identity", bias=False)
        modules.append(("Dense", config, {"linear.weight": shape}))
    sentences.write_modules(tmp_path, [*modules, ("Normalize", None, {})])
    with CheckpointSource.open(tmp_path) as source:
        name = source.typed["general.architecture"]
        assert source.typed[f"{name}.embedding.layers"] == ["normalize"]
        assert {"dense_2.weight", "dense_3.weight"} <= source.tensors.keys()
    modules[1][1]["activation_function"] = "torch.nn.modules.activation.Tanh"
    sentences.write_modules(tmp_path, modules)
    with pytest.raises(Unsupported, match="'dense_2 tanh' behind this architecture"):
        CheckpointSource.open(tmp_path)
