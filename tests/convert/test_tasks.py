"""Adapters within a checkpoint, one for each task, against transformers with merged weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.compat import SentenceTransformer
from ggmodel.errors import ConfigError, FormatError, Unsupported
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.loading import open_adapter, open_source
from ggmodel.runner import LoadedModel
from ggmodel.runner.loading.adapters import changes_of
from ggmodel.workbench.adapters import convert_adapter, merge_adapters
from ggmodel.workbench.golden import nmse, uniform
from tests.convert.folders import stored, write_safetensors
from tests.convert.make_task_adapters import (
    ALPHA,
    FILE,
    RANK,
    TASKS,
    changed,
    golden,
    matrices,
    write_folder,
)
from tests.golden.files import checkpoint

# Float32 sums taken in another order; of a task's change at a wrong place it is more than 1e-3.
EXACT = 1e-11
OPTIONS: Any = {"kv_type": "f32", "flash_attention": "off"}
ROWS = dict(zip((None, *TASKS), np.load(FILE), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tasks") / "jina")


@pytest.fixture(scope="module")
def model(folder: Path):
    adapters = {folder / task: 0.0 for task in TASKS}
    with ggmodel.load(folder, adapters=adapters, **OPTIONS) as model:
        yield model


def vectors(model: LoadedModel, adapters: Any = None) -> np.ndarray:
    ways = ("mean", "cls")
    return model.embed(golden().texts, pooling=ways, adapters=adapters)


def write_peft(folder: Path, task: str, fused: bool) -> Path:
    """A task's change as an adapter of PEFT, in the folder of a checkpoint, whose names of modules
    are the checkpoint's or those of transformers, which takes queries, keys and values apart."""
    tensors: dict[str, np.ndarray] = {}
    number = list(TASKS).index(task)
    for name, w in golden().weights().items():
        if not changed(name):
            continue
        a, b = (m[number] for m in matrices(name, w.shape))
        module = "base_model.model." + name.removesuffix(".weight")
        if "_embeddings." in name:
            tensors[f"{module}.lora_embedding_A"] = a.T
            tensors[f"{module}.lora_embedding_B"] = b.T
            continue
        parts = {"Wqkv": b}
        if "Wqkv" in name and not fused:
            parts = dict(zip(("q_proj", "k_proj", "v_proj"), np.split(b, 3), strict=True))
            module = module.replace("encoder.layers", "layers").replace("mixer", "self_attn")
        for part, rows in parts.items():
            at = module.replace("Wqkv", part)
            tensors[f"{at}.lora_A.weight"], tensors[f"{at}.lora_B.weight"] = a, rows
    tensors["base_model.model.pooler.dense.lora_A.weight"] = np.ones((RANK, 64), np.float32)
    tensors["base_model.model.pooler.dense.lora_B.weight"] = np.ones((64, RANK), np.float32)
    path = folder / task.replace(".", "_")
    path.mkdir()
    write_safetensors(
        path / "adapter_model.safetensors", {n: stored(t) for n, t in tensors.items()}
    )
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("fused", [True, False])
def test_adapters_in_folders_of_the_checkpoint(tmp_path: Path, fused: bool):
    checkpoint(tmp_path, golden().config, golden().weights())
    task = "retrieval.query"
    path = write_peft(tmp_path, task, fused)
    with ggmodel.load(tmp_path, adapters={path: 0.0}, **OPTIONS) as model:
        assert nmse(vectors(model, "retrieval_query"), ROWS[task]) < EXACT
        assert nmse(vectors(model), ROWS[None]) < EXACT


def changed_parts(parts: str, dora: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tensors of an adapter of q, k or v in transformers' names, and weights that hold it."""
    tensors: dict[str, np.ndarray] = {}
    weights = dict(golden().weights())
    for name, w in golden().weights().items():
        if not name.endswith("Wqkv.weight"):
            continue
        held: dict[str, np.ndarray] = dict(zip("qkv", np.split(w, 3), strict=True))
        module = "base_model.model." + name.removesuffix("Wqkv.weight")
        module = module.replace("encoder.layers", "layers").replace("mixer", "self_attn")
        for part in parts:
            at, rows = f"{module}{part}_proj", len(w) // 3
            a = uniform(f"{at}.a", (RANK, w.shape[1])) / 4
            b = uniform(f"{at}.b", (rows, RANK)) / 4
            tensors[f"{at}.lora_A.weight"], tensors[f"{at}.lora_B.weight"] = a, b
            held[part] = held[part] + ALPHA / RANK * b @ a
            if dora:
                lengths = np.linalg.norm(held[part], axis=1)
                magnitude = lengths * (1 + uniform(f"{at}.m", (rows,)) / 4)
                magnitude = magnitude.astype(np.float32)
                tensors[f"{at}.lora_magnitude_vector"] = magnitude
                held[part] = held[part] * (magnitude / lengths)[:, None]
        weights[name] = np.concatenate([*held.values()]).astype(np.float32)
    return tensors, weights


def written(path: Path, tensors: dict[str, np.ndarray], **keys: Any) -> Path:
    path.mkdir()
    stored_ = {n: stored(t) for n, t in tensors.items()}
    write_safetensors(path / "adapter_model.safetensors", stored_)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **keys}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(("parts", "dora"), [("qv", False), ("k", False), ("qkv", True)])
def test_parts_of_the_matrix_of_queries_keys_and_values(tmp_path: Path, parts: str, dora: bool):
    tensors, weights = changed_parts(parts, dora)
    checkpoint(tmp_path / "plain", golden().config, golden().weights())
    checkpoint(tmp_path / "merged", golden().config, weights)
    path = written(tmp_path / "adapter", tensors, use_dora=dora)
    with ggmodel.load(tmp_path / "plain", adapters={path: 0.0}, **OPTIONS) as model:
        rows = vectors(model, "adapter")
    with ggmodel.load(tmp_path / "merged", **OPTIONS) as merged:
        assert nmse(rows, vectors(merged)) < EXACT
    assert nmse(rows, ROWS[None]) > 1e-4


def test_dora_of_parts_is_refused(tmp_path: Path):
    tensors, _ = changed_parts("qv", True)
    checkpoint(tmp_path / "plain", golden().config, golden().weights())
    path = written(tmp_path / "adapter", tensors, use_dora=True)
    with (
        ggmodel.load(tmp_path / "plain", **OPTIONS) as model,
        pytest.raises(Unsupported, match=r"DoRA of 'layers\.\d\.self_attn\.q_proj\.weight' alone"),
    ):
        model.adapters.add(path)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_gives_the_rows_of_merged_weights_in_transformers(model: LoadedModel, task: str):
    assert model.model.architecture == "jina-bert-v3"
    assert nmse(vectors(model, task), ROWS[task]) < EXACT
    assert nmse(vectors(model), ROWS[None]) < EXACT
    others = [rows for name, rows in ROWS.items() if name != task]
    assert min(nmse(vectors(model, task), rows) for rows in others) > 1e-3


def test_the_class_of_sentence_transformers_takes_a_task(model: LoadedModel):
    texts: Any = golden().texts
    class_ = SentenceTransformer(model)
    assert class_.prompts["retrieval.query"] == TASKS["retrieval.query"]
    rows = class_.encode(texts, task="text-matching", prompt="")
    assert nmse(rows, ROWS["text-matching"][:, :64]) < EXACT
    with pytest.raises(ConfigError, match="no adapter 'query'"):
        class_.encode(texts, task="query")


def test_tasks_follow_one_another_and_share_a_strength(model: LoadedModel):
    for task in reversed(TASKS):
        assert nmse(vectors(model, [task]), ROWS[task]) < EXACT
    model.adapters["separation"] = 1.0
    try:
        assert nmse(vectors(model), ROWS["separation"]) < EXACT
        assert nmse(vectors(model, []), ROWS[None]) < EXACT
    finally:
        model.adapters["separation"] = 0.0


def test_files_of_the_model_and_of_a_task(folder: Path, write_gguf: Any, tmp_path: Path):
    """The layout is that of llama.cpp's converter, whose file of a task has the same names."""
    with open_source(folder) as source:
        base = write_gguf(tmp_path / "jina.gguf", source)
    task = tmp_path / "query.gguf"
    convert_adapter(base, folder / "retrieval.query", task)
    with open_gguf(base) as source, open_gguf(task) as adapter:
        names = source.metadata["jina-bert-v3.embedding.prompt_names"]
        assert names == list(TASKS)
        assert source.metadata["jina-bert-v3.embedding.prompts"] == list(TASKS.values())
        keys = {
            "general.architecture": "jina-bert-v3",
            "general.name": "retrieval.query",
            "adapter.lora.alpha": ALPHA,
            "adapter.lora.task_name": "retrieval.query",
            "adapter.lora.prompt_prefix": TASKS["retrieval.query"],
        }
        assert {key: adapter.metadata[key] for key in keys} == keys
        shapes = {name: info.shape for name, info in adapter.tensors.items()}
        assert shapes["token_embd.weight.lora_a"] == (RANK, 96)
        assert shapes["token_embd.weight.lora_b"] == (RANK, 64)
        assert shapes["token_types.weight.lora_a"] == (64, RANK)
        assert shapes["token_types.weight.lora_b"] == (RANK, 1)
        assert shapes["blk.0.attn_qkv.weight.lora_b"] == (RANK, 192)
        assert len(shapes) == 2 * (2 + 3 * 4)
    with ggmodel.load(base, adapters=task, **OPTIONS) as model:
        assert nmse(vectors(model), ROWS["retrieval.query"]) < EXACT


def test_folders_of_sentence_transformers_with_code_for_tasks(folder: Path, tmp_path: Path):
    """Their prompts are those of their own settings."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    modules = [{"type": "custom_st.Transformer", "path": "", "kwargs": ["task"]}]
    (copy / "modules.json").write_text(json.dumps(modules))
    settings = {"prompts": {"separation": "Separate: "}}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with open_source(copy) as source:
        assert source.metadata["jina-bert-v3.embedding.prompts"] == ["Separate: "]
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "lora_adaptations": None}))
    with pytest.raises(Unsupported, match=r"the module 'custom_st\.Transformer' is unsupported"):
        open_source(copy)


def test_a_merged_model(folder: Path, write_gguf: Any, tmp_path: Path):
    with open_source(folder) as source:
        base = write_gguf(tmp_path / "jina.gguf", source)
    merge_adapters(base, {str(folder / "classification"): 1.0}, tmp_path / "merged.gguf")
    with ggmodel.load(tmp_path / "merged.gguf", **OPTIONS) as merged:
        assert nmse(vectors(merged), ROWS["classification"]) < EXACT


def test_unknown_tasks_list_those_that_there_are(folder: Path, model: LoadedModel):
    for path in (folder / "clustering", folder):
        with pytest.raises(ConfigError, match=r"for each of: retrieval\.query, retr"):
            model.adapters.add(path)
    with pytest.raises(ConfigError, match=r"no adapter 'clustering'; loaded: 'retrieval\.query'"):
        vectors(model, "clustering")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lora_adaptations": "separation"}, "lora_adaptations should be a list of names"),
        ({"lora_adaptations": ["separation"]}, "are not 1 changes of rank 4"),
        ({"lora_rank": 3}, "are not 5 changes of rank 3 of"),
        ({"lora_rank": 4.5}, "are not 5 changes of rank 4.5 of"),
        ({"lora_rank": float("inf")}, "lora_rank is inf; it must be a number above 0"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan; it must be a number above 0"),
        ({"lora_alpha": 0}, "lora_alpha is 0; it must be a number above 0"),
        ({"task_instructions": ["text"]}, "task_instructions should be texts by tasks"),
    ],
)
def test_damaged_configurations(
    folder: Path, model: LoadedModel, keys: dict[str, Any], message: str, tmp_path: Path
):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **keys}))
    with pytest.raises(FormatError, match=message):
        model.adapters.add(copy / "separation", "other")


def test_a_rope_without_a_base_is_refused(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    del config["rotary_emb_base"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="lacks rotary_emb_base"):
        ggmodel.load(copy)


def test_lengths_of_rows_of_an_embedding_are_refused(folder: Path, model: LoadedModel):
    adapter = open_adapter(folder / "separation", model.model)
    name = "token_types.weight"
    arrays: Any = {
        f"{name}.lora_a": np.ones((RANK, 64), np.float32),
        f"{name}.lora_b": np.ones((1, RANK), np.float32),
        f"{name}.lora_magnitude": np.ones(1, np.float32),
    }
    with pytest.raises(Unsupported, match="DoRA of the embedding 'token_types"):
        changes_of(MemorySource(adapter.metadata, arrays), model.source)
