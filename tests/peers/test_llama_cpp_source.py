"""The tables about llama.cpp against its source: the names, keys and tensors that it reads."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from ggmodel.convert.declaration import plan
from ggmodel.convert.from_hf import normalize, read_config
from ggmodel.convert.llama_cpp import FIXED, NEEDED, SURPLUS, knows
from ggmodel.model import config_class, find, find_hf, supported
from ggmodel.model.config import key_fields
from ggmodel.model.names import of_vision
from tests.golden.files import HERE, cases, load_embeddings, load_golden

pytestmark = pytest.mark.timeout(1200)  # the first test downloads the source

# Architectures of ours that llama.cpp does not have.
UNKNOWN = {"mistral", "mllama"}
FILES = {"gpt-oss": "openai-moe"}
# Keys that the source names without taking their values: what it does with them instead.
OVERRIDDEN = {
    ("phi3", "attention.sliding_window"): "hparams.n_swa         = 0;",
    ("llama", "rope.dimension_count"): "invalid n_rot: %u, expected %u",
    **{
        (name, "attention.key_length"): "layer.wo%s= create_tensor(tn(LLM_TENSOR_ATTN_OUT"
        for name in ("qwen2", "olmo2", "phi3")
    },
    ("gemma2", "attn_logit_softcapping"): "hparams.attn_soft_cap = true;",
    ("gemma2", "final_logit_softcapping"): "1.0f / hparams.f_final_logit_softcapping",
}
# create_tensor(tn(LLM_TENSOR_NAME, "weight", i), {shape}, flags)
_CALL = re.compile(
    r"create_tensor\(tn\((LLM_TENSOR_\w+),\s*\"(\w+)\"[^)]*\),\s*\{[^}]*\},\s*([^;]*)\)"
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
        if "create_tensor_qkv(" in text:
            text += self.function(self.model, "void llama_model_base::create_tensor_qkv")
        names = self.names("LLM_TENSOR")
        found: dict[str, bool] = {}
        for constant, kind, flags in _CALL.findall(text):
            name = f"{names[constant].replace('%d', '*')}.{kind}"
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
    assert SURPLUS.keys() | NEEDED.keys() <= FIXED.keys()


@pytest.mark.parametrize("architecture", FIXED)
def test_every_other_hyperparameter_is_read(source: Source, architecture: str):
    read, table = source.keys(architecture), {fixed.key for fixed in FIXED[architecture]}
    keys = {tag.names[0] for _, tag, _, _ in key_fields(config_class(find(architecture)))}
    overridden = {key for name, key in OVERRIDDEN if name == architecture}
    ours = {key for key in keys if not key.startswith(("vision.", "mm."))}
    assert len(ours & read) >= 5
    assert ours - read == (table - overridden) & ours
    assert overridden <= table & read


@pytest.mark.parametrize(("architecture", "key"), OVERRIDDEN)
def test_what_is_read_and_not_taken(source: Source, architecture: str, key: str):
    said = re.sub(r"\\ +", " *", re.escape(OVERRIDDEN[architecture, key])).replace("%s", " *")
    assert re.search(said, source.of(architecture) + source.model), said


@pytest.mark.parametrize(
    ("architecture", "key", "said"),
    [
        ("gemma2", "attention.scale", "case 46: type = LLM_TYPE_27B"),
        ("gemma2", "attention.scale", "type == LLM_TYPE_27B"),
        ("gemma3", "attention.scale", "case 62: type = LLM_TYPE_27B"),
        ("gemma3", "attention.scale", "type == LLM_TYPE_27B"),
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


def test_constants_of_yarn(source: Source):
    header = re.sub(r" +", " ", (source.folder / "llama-hparams.h").read_text())
    assert "float yarn_beta_fast = 32.0f;" in header and "float yarn_beta_slow = 1.0f;" in header
    context = (source.folder / "llama-context.cpp").read_text()
    assert "cparams.yarn_attn_factor *= 1.0f / (1.0f + 0.1f * logf(factor));" in context


@cache
def written(architecture: str) -> list[set[str]]:
    """The names of the tensors of every golden model with a file of this architecture."""
    found = []
    for folder in HERE.glob("*/cases.py"):
        family = folder.parent.name
        each = [load_golden(family, case) for case in cases(family)]
        each += [load_embeddings(family, case) for case in cases(family, "embeddings")]
        for golden in each:
            cls = find_hf(golden.config["architectures"])
            if cls.stored_as(golden.config) != architecture:
                continue
            _, config = read_config(find(architecture), normalize(golden.config))
            names = {e.name for e in plan(find(architecture), config, golden.tensors).entries}
            found.append({n for n in names if not of_vision(n)})
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
    if architecture in ("llama", "llama4"):  # dense or with experts, as the hyperparameters say
        lacking -= {name for name in lacking if name.startswith("blk.*.ffn_")}
    assert lacking == set(NEEDED.get(architecture, ()))
