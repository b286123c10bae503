"""Certified: good files are, and files with a fault are not, and are told which."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.certify_faults import EDITS, FAULTS, Contents, Edit, Fault, edit
from benchmarks.certify_files import SHAPES, write_folder, write_importance

import ggmodel
from ggmodel.convert import convert
from ggmodel.convert.quantize import decode, encode
from ggmodel.errors import ConfigError, FormatError
from ggmodel.gguf_file import DType, open_gguf
from ggmodel.workbench.certify import certify
from ggmodel.workbench.certify.behaviour import divergence
from ggmodel.workbench.certify.bounds import HAVE_BOUNDS, beyond
from ggmodel.workbench.certify.page import page
from ggmodel.workbench.certify.texts import CONVERSATIONS, TEXTS, conversations, texts

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Folders, matrices and files by their properties, made once."""
    root = tmp_path_factory.mktemp("certify")

    def folder(name: str, seed: int = 1) -> Path:
        path = root / f"{name}-{seed}"
        return path if path.exists() else write_folder(path, name, seed)

    def make(name: str, kind: str = "", seed: int = 1, matrix: int | None = None) -> Path:
        if not kind:
            return folder(name, seed)
        if kind == "imatrix":
            with open_gguf(make(name, "bf16")) as source:
                shapes = {t.name: t.shape for t in source.tensors.values() if len(t.shape) > 1}
            shapes.pop("token_embd.weight")
            return write_importance(root / f"{name}-{seed}.imatrix.gguf", shapes, seed)
        path = root / f"{name}-{kind}-{seed}-{matrix}.gguf"
        if not path.exists():
            weights = None if matrix is None else make(name, "imatrix", matrix)
            convert(folder(name, seed), path, kind, imatrix=weights)
        return path

    return make


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_K_M", "iq4_xs"])
def test_a_good_file_has_no_fault(made: Make, name: str, kind: str):
    found = certify(made(name, kind), made(name))
    assert found.faults == []
    assert set(found.counts) == {"equal"}
    assert "every key is the same" in found.checked["tokenizer"]
    assert found.checked["template"] == "the same text for the same vocabulary"


@pytest.mark.parametrize("kind", ["q4_K_M", "q5_0", "q3_K_M", "iq4_nl", "iq3_XXS"])
def test_with_an_importance_matrix(made: Make, kind: str):
    file, matrix = made("llama", kind, matrix=3), made("llama", "imatrix", 3)
    assert set(certify(file, made("llama"), imatrix=matrix).counts) == {"equal"}
    without = certify(file, made("llama"))
    assert without.faults == [] and without.counts["bounded"] > 2
    assert any("give --imatrix" in line for line in without.unchecked)
    assert "cannot be recomputed without --imatrix" in without.verdict


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_named(made: Make, tmp_path: Path, fault: Fault):
    in_file, given = fault.matrix or (None, None)
    contents = Contents.read(made(fault.shape, fault.base, fault.stale or 1, in_file))
    fault.mutate(contents)
    file = contents.write(tmp_path / "faulty.gguf")
    matrix = None if given is None else made(fault.shape, "imatrix", given)
    kinds = {f.kind for f in certify(file, made(fault.shape), imatrix=matrix).faults}
    assert kinds & {*fault.kinds}


@pytest.mark.parametrize("at", range(len(EDITS)))
def test_an_edited_block_is_found(made: Make, tmp_path: Path, at: int):
    e: Edit = EDITS[at]
    name = list(SHAPES)[at % 4]
    contents = Contents.read(made(name, e.base, matrix=3 if e.matrix else None))
    tensor = edit(contents, e, at)
    matrix = made(name, "imatrix", 3) if e.matrix else None
    found = certify(contents.write(tmp_path / "edited.gguf"), made(name), imatrix=matrix)
    assert [(f.kind, f.name) for f in found.faults] == [("edited", tensor)]
    assert f"{e.blocks} of " in found.faults[0].message


@pytest.mark.parametrize("dtype", sorted(HAVE_BOUNDS))
def test_values_that_are_not_the_nearest_are_beyond_the_bound(dtype: DType):
    random = np.random.default_rng(5)
    x = (random.standard_normal((8, 512)) * 0.1).astype(np.float32)
    weights = np.exp(random.standard_normal((1, 512)) * 2).astype(np.float32)
    raw = encode(x, dtype, importance=weights)
    assert not beyond(raw, dtype, x).any()
    blocks = raw.reshape(-1, dtype.type_size)
    blocks[1, dtype.type_size // 2] ^= 0x7  # two values, three steps or more
    wrong = beyond(raw, dtype, x)
    assert wrong[1] and wrong.sum() == 1
    assert decode(raw, dtype, x.size).size == x.size


def test_the_report_is_always_the_same(made: Make):
    file = made("llama", "q4_K_M")
    one, two = (certify(file, made("llama"), module_diff=True) for _ in range(2))
    assert json.dumps(one.as_dict()) == json.dumps(two.as_dict())
    assert page(one) == page(two)
    assert one.digest and one.ok


def test_a_page_shows_every_tensor(made: Make):
    found = certify(made("qwen3moe", "q4_K_M"), made("qwen3moe"))
    html = page(found)
    assert html.count("<rect ") == len(found.tensors)
    assert "http" not in html.replace("http-equiv", "") and "<script" not in html


def test_what_is_computed(made: Make):
    found = certify(made("qwen3", "q4_K_M"), made("qwen3"), text="A text. " * 40, module_diff=True)
    assert 0 < found.divergence["mean"] <= found.divergence["largest"] < 0.1
    assert found.modules[0]["module"] == "embed"
    assert all(0 <= m["nmse"] < 0.2 for m in found.modules)
    exact = certify(made("qwen3", "bf16"), made("qwen3"), module_diff=True)
    assert exact.divergence["largest"] < 1e-6


def test_divergence_is_that_of_distributions():
    p = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    q = np.log(np.array([[0.25, 0.5, 0.25]], np.float32)) + 3
    assert divergence(q, p)["mean"] == pytest.approx(0.25 * np.log(2), rel=1e-3)
    assert divergence(p + 1, p) == {"mean": 0.0, "largest": 0.0, "same_top": 1.0}


def test_a_key_of_no_effect_is_a_note(made: Make, tmp_path: Path):
    contents = Contents.read(made("llama", "q8_0"))
    contents.metadata["tokenizer.ggml.pre"] = "llama-bpe"
    key = contents.key("chat_template")
    contents.metadata[key] += "{# the same #}"
    found = certify(contents.write(tmp_path / "same.gguf"), made("llama"))
    assert found.faults == []
    assert found.checked["tokenizer"] == f"ids of {TEXTS} texts"
    assert found.checked["template"].startswith(f"{CONVERSATIONS} conversations")
    assert {f.kind for f in found.findings} >= {"pre", "spelling"}


def test_texts_and_conversations_are_always_the_same():
    assert len(list(texts())) == TEXTS and list(texts(("a", "b"))) == list(texts(("a", "b")))
    given = list(conversations())
    assert given == list(conversations()) and len(given) == CONVERSATIONS
    assert {bool(c.get("tools")) for c in given} == {True, False}


def test_another_architecture_is_one_fault(made: Make):
    found = certify(made("qwen3", "q8_0"), made("llama"))
    assert [f.kind for f in found.faults] == ["architecture"]


def test_bad_input(made: Make, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        certify(tmp_path / "none.gguf", made("llama"))
    with pytest.raises(FormatError, match="give one with config"):
        certify(made("llama", "q8_0"), tmp_path / "none")
    with pytest.raises(ConfigError, match="certify takes a GGUF file"):
        certify(made("llama"), made("llama"))
    with pytest.raises(FormatError):
        certify(made("llama", "q8_0"), made("llama"), imatrix=made("llama", "q8_0"))
    assert ggmodel.certify is certify
