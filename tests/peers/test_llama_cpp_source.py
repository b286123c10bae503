"""The tables about llama.cpp against its source: the names, keys and tensors that it reads."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from ggmodel.convert.declaration import plan
from ggmodel.convert.from_hf import normalize, read_config
from ggmodel.convert.llama_cpp import knows
from ggmodel.convert.llama_cpp_tables import BY_DEPTH, FIXED, NEEDED, SURPLUS
from ggmodel.model import config_class, find, find_hf, supported
from ggmodel.model.config import key_fields
from ggmodel.model.module import of_tower
from tests.golden.files import HERE, Embeddings, Golden, cases, load_embeddings, load_golden

pytestmark = pytest.mark.timeout(1200)  # the first test downloads the source

# Architectures of ours that llama.cpp does not have.
UNKNOWN = {
    "bart",
    "glm_ocr",
    "idefics3",
    "internvl",
    "lfm2vl",
    "marian",
    "mistral",
    "mllama",
    "moonshine",
    "mpnet",
    "olmo_hybrid",
    "qwen2audio",
    "qwen3asr",
    "voxtral",
    "whisper",
}
FILES = {
    "ernie4_5": "ernie4-5",
    "gpt-oss": "openai-moe",
    "granitehybrid": "granite-hybrid",
    "granitemoe": "granite-moe",
    "hunyuan-dense": "hunyuan-vl",
    "nemotron_h": "nemotron-h",
    "nemotron_h_moe": "nemotron-h",
    "ernie4_5-moe": "ernie4-5",
    "glm4moe": "glm4-moe",
    "paddleocr": "ernie4-5",
    "seed_oss": "seed-oss",
}
# Keys that the source names without taking their values: what it does with them instead.
OVERRIDDEN = {
    ("phi3", "attention.sliding_window"): "hparams.n_swa         = 0;",
    ("llama", "rope.dimension_count"): "invalid n_rot: %u, expected %u",
    ("deepseek4", "hyper_connection.count"): "GGML_ASSERT(hc == 4);",
    **{
        (name, "attention.key_length"): "layer.wo%s= create_tensor(tn(LLM_TENSOR_ATTN_OUT"
        for name in (
            "qwen2",
            "qwen2vl",
            "olmo2",
            "phi3",
            "phimoe",
            "qwen2moe",
            "olmoe",
            "cohere2",
            "command-r",
            "lfm2",
            "lfm2moe",
            "exaone4",
            "nemotron",
            "starcoder2",
        )
    },
    ("bailingmoe2", "attention.key_length"): "{n_embd, n_embd + 2*n_embd_gqa}",
    ("granitehybrid", "attention.head_count_kv"): "recurrent IFF the n_head_kv value is set to 0",
    ("granitehybrid", "ssm.inner_size"): "GGML_ASSERT(2 * n_embd == d_inner);",
    ("nemotron_h_moe", "feed_forward_length"): "if (n_expert != 0) {",
    ("jamba", "ssm.inner_size"): "GGML_ASSERT(2 * n_embd == d_inner);",
    ("mamba", "ssm.inner_size"): "only an expansion factor of 2 is supported for now",
    ("exaone4", "attention.sliding_window"): "if (hparams.n_layer() == 64) {",
    ("dots1", "attention.head_count_kv"): "n_embd_head_k * n_head, n_embd_head_k * n_head, n_embd",
    ("afmoe", "attention.sliding_window_pattern"): "hparams.n_no_rope_layer_step > 0 &&",
    ("ernie4_5-moe", "interleave_moe_layer_step"): "(i) >= hparams.n_layer_dense_lead) {",
    ("gemma2", "attn_logit_softcapping"): "hparams.attn_soft_cap = true;",
    ("gemma2", "final_logit_softcapping"): "1.0f / hparams.f_final_logit_softcapping",
}
# Keys that it computes with and no longer reads: the function "falls through" to nothing.
FORGOTTEN = {"qwen2vl": {"attention.layer_norm_rms_epsilon"}}
# Tensors that it needs in every layer, and that files of ours have in some.
PARTLY = {"gemma3n": {f"blk.*.attn_{part}.weight" for part in ("k", "v", "k_norm")}}
# Tensors that it needs in all layers but those that draft.
FLAGGED = {"bailingmoe2": {f"blk.*.attn_{part}_norm.weight" for part in "qk"}}
# Tensors that some models have: dense or with experts, with an embedding for each layer or not.
_EXPERTS = ("blk.*.ffn_", "blk.*.exp_probs_b")
CHOICES: dict[str, tuple[str, ...]] = {
    "nemotron_h": ("blk.*.ffn_", "blk.*.ssm_", "blk.*.attn_", "blk.*.exp_probs_b"),
    "nemotron_h_moe": ("blk.*.ffn_", "blk.*.ssm_", "blk.*.attn_", "blk.*.exp_probs_b"),
    "kimi-linear": ("blk.*.ffn_", "blk.*.ssm_", "blk.*.attn_", "blk.*.exp_probs_b"),
    "jamba": ("blk.*.ffn_", "blk.*.ssm_", "blk.*.attn_"),
    "granitehybrid": ("blk.*.ffn_", "blk.*.ssm_", "blk.*.attn_"),
    **dict.fromkeys(
        (
            "afmoe",
            "dots1",
            "ernie4_5",
            "ernie4_5-moe",
            "granite",
            "granitemoe",
            "laguna",
            "llama",
            "llama4",
            "lfm2",
            "mistral3",
            "paddleocr",
        ),
        _EXPERTS,
    ),
    "gemma4": (
        *("blk.*.ffn_", "blk.*.post_ffw_norm_", "blk.*.pre_ffw_norm_"),
        *("per_layer_", "blk.*.inp_gate.", "blk.*.proj.", "blk.*.post_norm."),
    ),
}
# create_tensor(tn(LLM_TENSOR_NAME, "weight", i), {shape}, flags); few have no "weight"
_CALL = re.compile(
    r"create_tensor\(\s*tn\((LLM_TENSOR_\w+) *(?:,\s*\"(\w+)\")?[^)]*\),\s*\{[^}]*\},\s*([^;]*)\)"
)


class Source:
    """llama.cpp's source."""

    def __init__(self, folder: Path):
        self.folder = folder / "src"
        self.architecture = (self.folder / "llama-arch.cpp").read_text()
        self.model = (self.folder / "llama-model.cpp").read_text()

    def names(self, kind: str) -> dict[str, str]:
        """Constant → text, of one of the tables of llama-arch.cpp."""
        return dict(re.findall(rf"\{{\s*({kind}_\w+),\s*\"([^\"]+)\"", self.architecture))

    def of(self, architecture: str) -> str:
        return (self.folder / "models" / f"{FILES.get(architecture, architecture)}.cpp").read_text()

    def function(self, text: str, name: str) -> str:
        """The text of a function; an error if it is not there."""
        start = text.index(name)
        return text[start : text.index("\n}\n", start)]

    def keys(self, architecture: str) -> set[str]:
        """The keys, without the architecture, that llama.cpp reads for its models."""
        own, common = self.of(architecture), "void llama_model_base::load_hparams"
        read = set(re.findall(r"LLM_KV_\w+", own + self.function(self.model, common)))
        if "load_swa_pattern(" in own:
            read.add("LLM_KV_ATTENTION_SLIDING_WINDOW_PATTERN")
        names = self.names("LLM_KV")
        return {names[constant].removeprefix("%s.") for constant in read if constant in names}

    def tensors(self, architecture: str) -> dict[str, bool]:
        """Pattern of a tensor's name → whether llama.cpp needs it."""
        text = self.of(architecture)
        for part in ("create_tensor_qkv", "create_tensor_gate_up_exps"):
            if f"{part}(" in text:
                text += self.function(self.model, f"void llama_model_base::{part}")
        text += self.function(self.model, "// generic pass: load optional per-tensor/per-expert")
        names = self.names("LLM_TENSOR")
        found: dict[str, bool] = {}
        for constant, kind, flags in _CALL.findall(text):
            name = ".".join(filter(None, (names[constant].replace("%d", "*"), kind)))
            if "TENSOR_DUPLICATED)" not in f"{flags})" or "?" in flags:
                found[name] = found.get(name, False) or flags.strip() == "0"
        return found


@pytest.fixture(scope="module")
def source(llama_cpp_dir: Path) -> Source:
    return Source(llama_cpp_dir)


def test_it_has_the_architectures_that_are_said_to_be_its(source: Source):
    names = set(source.names("LLM_ARCH").values())
    ours = set(supported())
    assert {name for name in ours if knows(name)} == ours & names == ours - UNKNOWN
    assert set(FIXED) == ours - UNKNOWN
    assert SURPLUS.keys() | NEEDED.keys() | BY_DEPTH.keys() <= FIXED.keys()


def test_it_has_the_projectors_of_pairs(source: Source):
    """The types that it reads beside a plain text."""
    text = (source.folder.parent / "tools" / "mtmd" / "clip-impl.h").read_text()
    types = dict(re.findall(r"\{ *(PROJECTOR_TYPE_\w+), *\"([^\"]+)\"", text)).values()
    pairs = [pair for name in supported() for pair in find(name).pairs.items()]
    assert ("llama", "idefics3") in pairs
    assert {kind for _, kind in pairs} <= {*types}
    assert all(knows(name) for name, _ in pairs)


@pytest.mark.parametrize("architecture", FIXED)
def test_every_other_hyperparameter_is_read(source: Source, architecture: str):
    read, table = source.keys(architecture), {fixed.key for fixed in FIXED[architecture]}
    keys = {tag.names[0] for _, tag, _, _ in key_fields(config_class(find(architecture)))}
    overridden = {key for name, key in OVERRIDDEN if name == architecture}
    ours = {key for key in keys if not key.startswith(("vision.", "audio.", "mm."))}
    assert len(ours & read) >= 5
    forgotten = FORGOTTEN.get(architecture, set())
    assert not forgotten & read
    assert ours - read - forgotten == (table - overridden) & ours
    assert overridden <= table & read


@pytest.mark.parametrize(("architecture", "key"), OVERRIDDEN)
def test_what_is_read_and_not_taken(source: Source, architecture: str, key: str):
    said = re.sub(r"\\ +", " *", re.escape(OVERRIDDEN[architecture, key])).replace("%s", " *")
    assert re.search(said, source.of(architecture) + source.model), said


@pytest.mark.parametrize("architecture", BY_DEPTH)
def test_tensors_of_deep_models(source: Source, architecture: str):
    text, known = source.of(architecture), source.tensors(architecture)
    for depth, name in BY_DEPTH[architecture]:
        assert f"if (n_layer >= {depth}){{" in text
        assert known[name] is True


@pytest.mark.parametrize(
    ("architecture", "key", "said"),
    [
        ("gemma2", "attention.scale", "case 46: type = LLM_TYPE_27B"),
        ("gemma2", "attention.scale", "type == LLM_TYPE_27B"),
        ("gemma3", "attention.scale", "case 62: type = LLM_TYPE_27B"),
        ("gemma3", "attention.scale", "type == LLM_TYPE_27B"),
        ("gemma3n", "attention.shared_kv_layers", "hparams.n_layer_kv_from_start = 20;"),
        ("gemma3n", "activation_sparsity_scale", "ggml_scale(ctx0, std, f_sparsity_std_mul)"),
        ("gemma3n", "activation_sparsity_scale", "if (il < n_layer_sparsity) {"),
        ("llama4", "attention.chunk_size", "hparams.n_swa = 8192;"),
        ("llama4", "attention.floor_scale", "hparams.n_attn_temp_floor_scale = 8192;"),
        ("llama4", "attention.scale", "hparams.f_attn_temp_scale = 0.1f;"),
        ("llama4", "no_rope_interval", "load_swa_pattern(ml, 4);"),
        ("llama4", "use_qk_norm", "case 128: type = LLM_TYPE_17B_128E;"),
        ("llama4", "use_qk_norm", "hparams.use_kq_norm = type != LLM_TYPE_17B_128E;"),
    ],
)
def test_values_that_it_computes_with(source: Source, architecture: str, key: str, said: str):
    assert key in {fixed.key for fixed in FIXED[architecture]}
    assert said in re.sub(r" +", " ", source.of(architecture))


def test_constants_of_gemma_3n(source: Source):
    header = re.sub(r" +", " ", (source.folder / "llama-hparams.h").read_text())
    for said in ("n_altup = 4;", "i_altup_act = 0;", "n_embd_altup = 256;"):
        assert f"uint32_t {said}" in header
    assert "float f_final_logit_softcapping = 30.0f;" in header
    models = re.sub(r" +", " ", (source.folder / "models" / "models.h").read_text())
    assert "f_sparsity_std_mul = 1.6448533535003662f;" in models
    assert "n_layer_sparsity = 10;" in models


def test_constants_of_yarn(source: Source):
    header = re.sub(r" +", " ", (source.folder / "llama-hparams.h").read_text())
    assert "float yarn_beta_fast = 32.0f;" in header and "float yarn_beta_slow = 1.0f;" in header
    context = (source.folder / "llama-context.cpp").read_text()
    assert "cparams.yarn_attn_factor *= 1.0f / (1.0f + 0.1f * logf(factor));" in context


@cache
def stored() -> dict[str, list[Golden | Embeddings]]:
    """The golden models by the architecture of their files."""
    found = defaultdict[str, list[Golden | Embeddings]](list)
    for folder in HERE.glob("*/cases.py"):
        family = folder.parent.name
        each = [load_golden(family, case) for case in cases(family)]
        for golden in [*each, *(load_embeddings(family, c) for c in cases(family, "embeddings"))]:
            cls = find_hf(golden.config["architectures"])
            found[cls.stored_as(golden.config)].append(golden)
    return found


@cache
def written(architecture: str) -> list[set[str]]:
    """The names of the tensors of every golden model with a file of this architecture."""
    found = []
    for golden in stored()[architecture]:
        _, config = read_config(
            find(architecture), normalize(golden.config) | {"tensors:": golden.weights()}
        )
        names = {e.name for e in plan(find(architecture), config, golden.tensors).entries}
        found.append({n for n in names if not of_tower(n)})
    return found


@pytest.mark.parametrize("architecture", FIXED)
def test_every_other_tensor_is_read_and_every_needed_one_is_written(
    source: Source, architecture: str
):
    known = source.tensors(architecture)
    assert known["token_embd.weight"] is True
    files = written(architecture)
    assert files
    patterns = [{re.sub(r"\.\d+\.", ".*.", name) for name in names} for names in files]
    surplus = set(SURPLUS.get(architecture, ()))
    assert set[str]().union(*patterns) - known.keys() <= surplus
    assert not surplus & known.keys()
    needed = {name for name, is_needed in known.items() if is_needed}
    lacking = {name for names in patterns for name in needed - names}
    lacking -= {name for _, name in BY_DEPTH.get(architecture, ())}
    lacking -= {name for name in lacking if name.startswith(CHOICES.get(architecture, ()))}
    assert lacking.isdisjoint(PARTLY.get(architecture, ()))
    lacking |= PARTLY.get(architecture, set()) | FLAGGED.get(architecture, set())
    assert lacking == set(NEEDED.get(architecture, ()))


@pytest.mark.parametrize("architecture", PARTLY)
def test_what_some_layers_lack(source: Source, architecture: str):
    assert "create_tensor_qkv(layer, i, n_embd, n_embd_head_k * n_head, n_embd_k_gqa, " in (
        text := source.of(architecture)
    )
    assert "n_embd_v_gqa, 0);" in text
    known = source.tensors(architecture)
    for name in PARTLY[architecture]:
        assert name in known
        assert any(name.replace("*", "5") not in names for names in written(architecture))
