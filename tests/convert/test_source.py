"""A Hugging Face folder as a model: the tensors, the metadata, and loading it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.quantize import decode, quantize
from ggmodel.errors import (
    ArchitectureError,
    ConfigError,
    Error,
    FormatError,
    LoadError,
    TokenizerError,
    Unsupported,
)
from ggmodel.gguf_file import DType, open_gguf
from ggmodel.model import AddConstant, Part, PermuteRope, Stack, Transpose, find, find_hf
from ggmodel.workbench.golden import Cases
from tests.convert.folders import stored, write_golden, write_model, write_safetensors
from tests.golden import files as golden_files
from tests.golden.files import cases, load_embeddings, load_golden
from tests.golden.gpt_oss.cases import packed

ARCHITECTURES = sorted(p.parent.name for p in golden_files.HERE.glob("*/cases.py"))
GOLDENS = [(arch, case) for arch in ARCHITECTURES for case in cases(arch)]
EMBEDDED = [(arch, case) for arch in ARCHITECTURES for case in cases(arch, "embeddings")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden(tmp_path_factory.mktemp("llama"), "llama", "plain_gqa")[0]


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    difference = got.astype(np.float64) - want
    return float(np.sum(difference**2) / np.sum(want.astype(np.float64) ** 2))


# tensors


@pytest.mark.parametrize(("arch", "case"), GOLDENS)
def test_a_folder_has_the_tensors_of_the_checkpoint_in_memory(tmp_path: Path, arch: str, case: str):
    golden = load_golden(arch, case)
    write_model(tmp_path, golden.config, golden.weights(), shards=2)
    architecture = find(find_hf(golden.config["architectures"]).stored_as(golden.config))
    held = from_hf(architecture, golden.config, golden.weights())
    with CheckpointSource.open(tmp_path, "f32") as source:
        assert set(source.tensors) == set(held.tensors)
        for name, info in held.tensors.items():
            mine = source.info(name)
            dtype = DType.I32 if info.dtype is DType.I32 else DType.F32  # indices stay indices
            assert (mine.shape, mine.dtype, mine.nbytes) == (info.shape, dtype, info.nbytes)
            assert source.data(name) == held.data(name), name


@pytest.mark.parametrize(("arch", "case"), EMBEDDED)
def test_a_folder_of_an_encoder_has_the_tensors_in_memory(tmp_path: Path, arch: str, case: str):
    golden = load_embeddings(arch, case)
    behind = Cases(golden.folder).embeddings[case][1]  # layers in folders of their own
    weights = {name: x for name, x in golden.weights().items() if name not in behind}
    write_model(tmp_path, golden.config, weights, shards=2)
    architecture = find(find_hf(golden.config["architectures"]).stored_as(golden.config))
    held = from_hf(architecture, golden.config, weights)
    with CheckpointSource.open(tmp_path, "f32") as source:
        assert set(source.tensors) == set(held.tensors)
        for name, info in held.tensors.items():
            assert source.info(name).shape == info.shape, name
            assert source.data(name) == held.data(name), name


@pytest.mark.parametrize(("arch", "case"), [("gemma2", "published"), ("gemma3", "every_6th")])
@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_constant_is_added_before_rounding(tmp_path: Path, arch: str, case: str, dtype: str):
    _, golden = write_golden(tmp_path, arch, case, dtype)
    stored_as = np.float16 if dtype == "F16" else np.uint16
    for kind in (None, "f32"):
        with CheckpointSource.open(tmp_path, kind) as source:
            norm = source.info("blk.0.attn_norm.weight")
            got = np.frombuffer(source.data(norm.name), np.float32)
            _, _, raw = stored(golden.weights()["model.layers.0.input_layernorm.weight"], dtype)
        weight = np.frombuffer(raw, stored_as)
        exact = weight if dtype == "F16" else (weight.astype(np.uint32) << 16).view(np.float32)
        assert norm.dtype is DType.F32
        assert np.array_equal(got, (exact.astype(np.float64) + 1).astype(np.float32))
        assert not np.array_equal(
            got, (exact.astype(np.float16) + np.float16(1)).astype(np.float32)
        )


def test_tensors_that_are_as_they_should_be_are_mapped(tmp_path: Path):
    write_golden(tmp_path, "llama", "plain_gqa", "BF16", shards=2)
    with CheckpointSource.open(tmp_path) as source:
        up, q, norm = (source.info(f"blk.0.{n}.weight") for n in ("ffn_up", "attn_q", "attn_norm"))
        assert (up.dtype, q.dtype, norm.dtype) == (DType.BF16, DType.BF16, DType.F32)
        view = source.mapped(up.file)
        assert view is not None
        assert view[up.offset : up.offset + up.nbytes] == source.data("blk.0.ffn_up.weight")
        # Rows of q are in another order, norms are of another type.
        assert source.mapped(q.file) is source.mapped(norm.file) is None
        same = source.checkpoint.array("model.layers.0.mlp.up_proj.weight")
        assert np.array_equal(
            decode(source.data("blk.0.ffn_up.weight"), up.dtype, same.size), same.ravel()
        )


@pytest.mark.parametrize(
    ("kind", "held", "matrix", "number"),
    [
        (None, "BF16", DType.BF16, 32),
        (None, "F16", DType.F16, 1),
        (None, "F64", DType.F32, 0),
        ("f16", "BF16", DType.F16, 1),
        ("q8_0", "BF16", DType.Q8_0, 7),
        ("Q4_K_M", "F32", DType.Q5_0, 15),
    ],
)
def test_matrices_have_the_type_that_is_asked_for(
    tmp_path: Path, kind: str | None, held: str, matrix: DType, number: int
):
    write_golden(tmp_path, "llama", "experts", held)
    with CheckpointSource.open(tmp_path, kind) as source:
        assert source.info("blk.1.attn_output.weight").dtype is matrix
        assert source.metadata["general.file_type"] == number
        assert source.info("blk.1.ffn_gate_inp.weight").dtype is DType.F32
        assert source.info("blk.1.attn_norm.weight").dtype is DType.F32


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q3_K_M"])
def test_a_type_gives_what_quantising_the_file_gives(tmp_path: Path, folder: Path, kind: str):
    from ggmodel.convert.export import convert

    convert(folder, tmp_path / "f32.gguf", "f32")
    with open_gguf(tmp_path / "f32.gguf") as whole:
        quantize(whole, tmp_path / "q.gguf", kind)
    with open_gguf(tmp_path / "q.gguf") as want, CheckpointSource.open(folder, kind) as got:
        assert got.metadata["general.file_type"] == want.metadata["general.file_type"]
        assert set(got.tensors) == set(want.tensors)
        for name, info in want.tensors.items():
            assert got.info(name).dtype is info.dtype
            assert got.data(name) == want.data(name), name


def test_tokens_have_rows_of_the_embedding(tmp_path: Path):
    folder, golden = write_golden(tmp_path, "llama", "plain_gqa")
    rows = golden.config["vocab_size"]
    file = folder / "tokenizer_config.json"
    added = {"added_tokens_decoder": {str(rows): {"content": "<|x|>", "special": True}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | added))
    with (
        pytest.raises(FormatError, match=rf"to {rows}, .* has {rows} \(rows of its embedding\)"),
        CheckpointSource.open(folder) as source,
    ):
        _ = source.vocabulary


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path):
    golden = load_golden("llama", "plain_gqa")
    weights = {
        n: np.tile(w, (16, 16)) if w.ndim > 1 else np.tile(w, 16)
        for n, w in golden.weights().items()
    }
    config = golden.config | {
        key: 16 * golden.config[key]
        for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim")
        if key in golden.config
    }
    write_model(tmp_path, config, weights, "BF16")
    with CheckpointSource.open(tmp_path, "q8_0") as source:
        most = max(4 * t.n_elements + t.nbytes for t in source.tensors.values())
        total = sum(4 * t.n_elements for t in source.tensors.values())
        tracemalloc.start()
        for name in source.tensors:
            source.data(name)
            source.release(name)
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
        assert tracemalloc.get_traced_memory()[1] < 2.5 * most + (1 << 20) < total
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [None, "bf16", "q8_0"])
def test_blocks_of_four_bits_stay_as_they_are(tmp_path: Path, kind: str | None):
    golden = load_golden("gpt_oss", "released")
    weights: dict[str, np.ndarray] = {}
    for name, values in golden.weights().items():
        whole = name.endswith(("gate_up_proj", "down_proj"))
        weights |= packed(name, values.shape) if whole else {name: values}
    config = {**golden.config, "quantization_config": {"quant_method": "mxfp4"}}
    held = from_hf(find_hf(config["architectures"]), config, weights)
    tensors = {n: stored(w, "U8" if w.dtype == np.uint8 else "BF16") for n, w in weights.items()}
    write_model(tmp_path, config, {})
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with CheckpointSource.open(tmp_path, kind) as source:
        assert source.metadata["general.file_type"] == (7 if kind == "q8_0" else 38)
        experts = [n for n, t in held.tensors.items() if t.dtype is DType.MXFP4]
        assert len(experts) == 3 * config["num_hidden_layers"]
        for name in experts:
            assert source.info(name).dtype is DType.MXFP4
            assert source.info(name).shape == held.info(name).shape
            assert source.data(name) == held.data(name)
        assert source.info("blk.0.attn_q.weight").dtype is (
            DType.Q8_0 if kind == "q8_0" else DType.BF16
        )


OPERATIONS = [
    (PermuteRope(2), [(8, 3)]),
    (PermuteRope(2), [(8,)]),
    (Transpose(), [(4, 2, 3)]),
    (Transpose(), [(5,)]),
    (AddConstant(1), [(4,)]),
    (Stack("{}", 3), [(2, 5)] * 3),
    (Part("a", 1, (3, 5)), [(8, 2)]),
    (Part("a", 0, (3, 5), axis=-1), [(4, 2, 8)]),
]


@pytest.mark.parametrize(("op", "shapes"), OPERATIONS)
def test_operations_say_the_shape_of_what_they_make(op: Any, shapes: list[tuple[int, ...]]):
    parts = [np.ones(shape, np.float32) for shape in shapes]
    if hasattr(op, "join"):
        assert op.shape(shapes, None) == op.join(parts, None).shape
    else:
        assert op.shape(shapes[0], None) == op.to_gguf(parts[0], None).shape


# metadata


def test_metadata_says_what_the_file_is(folder: Path):
    with CheckpointSource.open(folder, "q4_K_M") as source:
        keys = source.metadata
        assert keys["general.architecture"] == "llama"
        assert (keys["general.type"], keys["general.file_type"]) == ("model", 15)
        assert keys["general.name"].startswith("Llama")
        assert keys["llama.embedding_length"] == 64
        assert keys["tokenizer.ggml.model"] == "gpt2"
        assert len(keys["tokenizer.ggml.tokens"]) == 64
        assert len(list(keys)) == len(keys) > 20
        assert "tokenizer.nothing" not in keys and "nothing" not in keys


def test_the_folder_says_more_about_itself(tmp_path: Path):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags: [a, b]\n---\n# It\n")
    (tmp_path / "generation_config.json").write_text('{"top_k": 7, "temperature": 0.5}')
    with CheckpointSource.open(tmp_path) as source:
        assert source.metadata["general.license"] == "mit"
        assert list(source.metadata["general.tags"]) == ["a", "b"]
        assert source.metadata["general.sampling.top_k"] == 7
        assert source.metadata["general.sampling.temp"] == 0.5


def test_a_broken_description_is_an_error(tmp_path: Path):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "README.md").write_text("---\na: [\n---\n")
    with pytest.raises(FormatError, match=r"README.md, config.json or generation_config.json"):
        CheckpointSource.open(tmp_path)


@pytest.mark.parametrize("value", ['"x"', "1e400", "99999999999999", "[1]"])
def test_numbers_of_a_description_that_are_none(tmp_path: Path, value: str):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "generation_config.json").write_text(f'{{"top_k": {value}}}')
    with pytest.raises(FormatError, match=r"README.md or generation_config.json: "):
        CheckpointSource.open(tmp_path)


def test_languages_that_yaml_takes_for_something_else(tmp_path: Path):
    write_golden(tmp_path, "llama", "plain_gqa")
    (tmp_path / "README.md").write_text("---\nlanguage: [en, 3]\n---\n")
    with CheckpointSource.open(tmp_path) as source:
        assert list(source.metadata["general.languages"]) == ["en", "3"]


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "factor": 2.0}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
BAD = [
    ("llama/plain_gqa", {"rope_parameters": 0}, "rope_parameters should be an object, but is 0"),
    ("llama/plain_gqa", {"text_config": ["a"]}, "text_config should be an object"),
    ("llama/plain_gqa", {"rms_norm_eps": 10**400}, "must be a number, but holds int"),
    ("gpt_oss/released", {"num_hidden_layers": 1 << 40}, "num_hidden_layers is 1099511627776, but"),
    ("llama/longrope", {"rope_scaling": {**LONGROPE, "long_factor": "x"}}, "rope_factors_long"),
    ("llama/llama3_rope", {"rope_scaling": {"rope_type": "llama3"}}, "rope_freqs.* KeyError"),
    (
        "llama/llama3_rope",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, **LLAMA3}, "head_dim": 1 << 40},
        "at most 65536 are possible",
    ),
]


@pytest.mark.parametrize(("case", "changes", "message"), BAD, ids=[str(b[1])[:40] for b in BAD])
def test_a_config_that_makes_no_sense(
    tmp_path: Path, case: str, changes: dict[str, Any], message: str
):
    golden = load_golden(*case.split("/"))
    write_model(tmp_path, golden.config | changes, golden.weights())
    with pytest.raises(ConfigError, match=message):
        CheckpointSource.open(tmp_path)


def test_a_text_config_of_null_is_none(tmp_path: Path):
    golden = load_golden("llama", "plain_gqa")
    write_model(tmp_path, golden.config | {"text_config": None}, golden.weights())
    CheckpointSource.open(tmp_path).close()


def test_parts_that_are_not_the_whole_show_at_once(tmp_path: Path):
    golden = load_golden("llama4", "images")
    text = golden.config["text_config"] | {"intermediate_size": 10**400}
    write_model(tmp_path, golden.config | {"text_config": text}, golden.weights())
    with pytest.raises(ConfigError, match=r"gate_up_proj: .* rows, not 2000"):
        CheckpointSource.open(tmp_path)


def test_a_folder_without_a_tokenizer_takes_token_ids(tmp_path: Path):
    golden = load_golden("llama", "plain_gqa")
    write_model(tmp_path, golden.config, golden.weights())
    with ggmodel.load(tmp_path, kv_type="f32", flash_attention="off") as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < 1e-8
    with CheckpointSource.open(tmp_path) as source, pytest.raises(TokenizerError, match="no vocab"):
        source.vocabulary  # noqa: B018


# loading


@pytest.mark.parametrize(("arch", "case"), [g for g in GOLDENS if g[1] in ("images", "experts")])
def test_a_folder_computes_what_transformers_computes(tmp_path: Path, arch: str, case: str):
    path, golden = write_golden(tmp_path, arch, case, shards=2)
    with ggmodel.load(path, kv_type="f32", flash_attention="off") as model:
        gelu = arch in ("gemma3", "gemma3n", "gemma4", "qwen3vl")  # ggml's reads a table in F16
        bound = 1e-6 if gelu else 1e-8
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < bound
        assert ("image" in model.model.modalities()) == ("vision_config" in golden.config)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_folder_is_quantised_on_the_fly(folder: Path, kind: str):
    golden = load_golden("llama", "plain_gqa")
    with ggmodel.load(folder, type=kind, kv_type="f32", flash_attention="off") as model:
        want = golden.logits_f16 if kind == "f16" else golden.logits_q8_0
        assert nmse(model.logits(golden.prompt.tolist()), want) < (1e-6 if kind == "f16" else 1e-3)


def test_a_folder_has_its_tokenizer(folder: Path):
    with ggmodel.load(folder) as model:
        assert model.tokenize("ABA", add_special=False) == [2, 35]
        assert model.generate("ABA", max_tokens=4).usage.prompt_tokens == 2


def test_a_type_is_for_folders(folder: Path, tmp_path: Path):
    from ggmodel.convert.export import convert

    convert(folder, tmp_path / "a.gguf")
    with pytest.raises(ConfigError, match="ggmodel quantize IN OUT TYPE"):
        ggmodel.load(tmp_path / "a.gguf", type="q8_0")
    with pytest.raises(ConfigError, match="is a folder, which has all of its model"):
        ggmodel.load(folder, mmproj="x.gguf")


# what cannot be read


def read_all(folder: Path) -> None:
    with CheckpointSource.open(folder, "f32") as source:
        for tensor in source.tensors:
            source.data(tensor)


def spoilt(folder: Path, **changes: Any) -> Path:
    golden = load_golden("llama", changes.pop("case", "plain_gqa"))
    config = {k: v for k, v in {**golden.config, **changes}.items() if v is not None}
    return write_model(folder, config, golden.weights())


BROKEN: dict[str, tuple[dict[str, Any], type[Error], str]] = {
    "unknown": (
        {"architectures": ["LlamaForCausalLN"]},
        ArchitectureError,
        r"no architecture serves LlamaForCausalLN\. `ggmodel new NAME --hf FOLDER` .*--models.* "
        r"Served are \d+ classes; .* names: LlamaForCausalLM, (\w+, ){2}\w+\.$",
    ),
    "none": ({"architectures": None}, ArchitectureError, r"\(config.json names none\)"),
    "no list": ({"architectures": 5}, ArchitectureError, "serves 5"),
    "a missing number": ({"hidden_size": None}, ConfigError, "embedding_length"),
    "a word for a number": ({"hidden_size": "64"}, ConfigError, "'hidden_size' must be an integer"),
    "many layers": ({"num_hidden_layers": 10**9}, Error, "is 1000000000, but there are 21 tensors"),
    "no layers": ({"num_hidden_layers": -1}, Error, "-1 entries"),
    "many experts": ({"case": "experts", "num_local_experts": 10**9}, Error, "experts"),
    "other heads": ({"num_attention_heads": 7}, Error, "7 heads"),
    "no heads": ({"num_attention_heads": 0}, ConfigError, "head_dim"),
    "packed": (
        {"quantization_config": {"quant_method": "gptq"}},
        Unsupported,
        "quantised with 'gptq', which cannot be read; take the model's checkpoint in BF16",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_config_that_cannot_be(tmp_path: Path, name: str):
    changes, kind, message = BROKEN[name]
    folder = spoilt(tmp_path, **changes)
    with pytest.raises(kind, match=message):
        read_all(folder)


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("norm.weight", None, LoadError, "missing  norm"),
        ("layers.1.mlp.up_proj.weight", None, LoadError, r"missing  layers\[1\].ffn"),
        ("layers.0.self_attn.q_proj.weight", ("F32", (3, 2), bytes(24)), Error, "heads"),
        (
            "layers.0.mlp.up_proj.weight",
            ("F8_E5M2", (128, 64), bytes(8192)),
            Unsupported,
            "F8_E5M2",
        ),
        ("layers.0.mlp.up_proj.weight", ("I8", (128, 64), bytes(8192)), Unsupported, "is I8"),
        ("norm.weight", ("F32", (0,), b""), LoadError, r"is \[0\]; 1 to 4 dims > 0"),
        ("norm.weight", ("F32", (1, 1, 1, 1, 1), bytes(4)), LoadError, "1 to 4 dims"),
    ],
)
def test_a_tensor_that_cannot_be(
    tmp_path: Path, name: str, value: Any, kind: type[Error], message: str
):
    golden = load_golden("llama", "plain_gqa")
    write_model(tmp_path, golden.config, {})
    tensors = {n: stored(w) for n, w in golden.weights().items()}
    del tensors[f"model.{name}"]
    if value is not None:
        tensors[f"model.{name}"] = value
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(kind, match=message):
        read_all(tmp_path)


MODEL = """
from ggmodel import Config, Model, Tensor, gguf, kv, register
from ggmodel.model import Operation

class Twice(Operation):
    def to_gguf(self, x, config):
        return {result}

    def to_hf(self, x, config):
        return x

class SmallConfig(Config):
    size: int = kv("embedding_length", hf="hidden_size")

@register("own_one", hf="OwnForCausalLM")
class Own(Model):
    config: SmallConfig
    w: Tensor = gguf("w.weight", op=Twice())
"""


def own(tmp_path: Path, result: str) -> tuple[Path, Path]:
    models = tmp_path / "models"
    models.mkdir()
    (models / "own_one.py").write_text(MODEL.format(result=result))
    config = {"architectures": ["OwnForCausalLM"], "hidden_size": 3}
    return write_model(tmp_path / "a", config, {"w.weight": np.ones((2, 3), np.float32)}), models


def test_an_architecture_out_of_tree_serves_its_class(tmp_path: Path):
    path, models = own(tmp_path, "x * 2")
    with CheckpointSource.open(path, models=models) as source:
        assert np.array_equal(np.frombuffer(source.data("w.weight"), np.float32), np.full(6, 2))
    with pytest.raises(ArchitectureError, match="OwnForCausalLM"):
        CheckpointSource.open(path)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("x.T", r"w.weight of w.weight should be \[2, 3\], but is \[3, 2\]; .*shape"),
        ("x.reshape(7)", "w.weight cannot be made of w.weight: cannot reshape"),
    ],
)
def test_an_operation_that_fails_is_named(tmp_path: Path, result: str, message: str):
    path, models = own(tmp_path, result)
    with (
        CheckpointSource.open(path, models=models) as source,
        pytest.raises(LoadError, match=message),
    ):
        source.data("w.weight")


def test_a_model_file_that_cannot_be_imported_is_named(tmp_path: Path):
    path, models = own(tmp_path, "x")
    (models / "broken.py").write_text("import nothing_of_that_name")
    with pytest.raises(ArchitectureError, match=r"broken.py:1"):
        CheckpointSource.open(path, models=models)


def test_a_folder_is_closed_after_an_error(tmp_path: Path):
    path = spoilt(tmp_path, hidden_size="x")
    before = len(list(Path("/proc/self/maps").read_text().splitlines()))
    for _ in range(5):
        with pytest.raises(ConfigError):
            CheckpointSource.open(path)
    after = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    assert not after and before


def test_json_of_the_config_is_kept_raw(folder: Path):
    with CheckpointSource.open(folder) as source:
        assert source.checkpoint.config == json.loads((folder / "config.json").read_text())
