"""The findings of `check`; it has problems exactly where `load` raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.gguf_file import MemorySource
from ggmodel.workbench.check import check
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_golden

EXTRA = np.ones(3, np.float32)
# Changes to a good model, and the kinds of problems they make.
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "good": ({}, set()),
    "no vocabulary": ({"metadata": {"tokenizer.ggml.model": "no_vocab"}}, set()),
    "tied": ({"drop": ("output.weight",)}, set()),
    "removed": ({"drop": ("blk.0.attn_q.weight",)}, {"missing"}),
    "renamed": ({"rename": {"blk.0.ffn_up.weight": "blk.0.ffn_upp.weight"}}, {"missing", "unused"}),
    "wrong shape": ({"tensors": {"output_norm.weight": np.ones(32, np.float32)}}, {"shape"}),
    "extra": ({"tensors": {"extra.weight": EXTRA}}, {"unused"}),
    "unknown architecture": ({"metadata": {"general.architecture": "lama"}}, {"model"}),
    "no architecture": ({"metadata": {"general.architecture": None}}, {"model"}),
    "missing key": ({"metadata": {"llama.block_count": None}}, {"model"}),
    "wrong key": ({"metadata": {"llama.block_count": "two"}}, {"model"}),
    "too many layers": ({"metadata": {"llama.block_count": 3}}, {"missing"}),
    "unknown pre": ({"metadata": {"tokenizer.ggml.pre": "brand-new"}}, {"vocabulary"}),
    "two at once": (
        {"drop": ("blk.0.attn_q.weight",), "metadata": {"tokenizer.ggml.pre": "brand-new"}},
        {"missing", "vocabulary"},
    ),
    "no context": ({"metadata": {"llama.context_length": 0}}, {"trace"}),
    "wrong rope factors": ({"tensors": {"rope_freqs.weight": EXTRA}}, {"trace"}),
}


@pytest.mark.filterwarnings("ignore:the architecture")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_problems_exactly_where_load_raises(source, vary, case: str, strict: bool):
    changes, kinds = CASES[case]
    varied = vary(source, **changes)
    result = check(varied, strict=strict)
    assert {p.kind for p in result.problems} == (kinds if strict else kinds - {"unused"})
    if result.ok:
        ggmodel.load(varied, strict=strict).close()
    else:
        with pytest.raises(ggmodel.Error):
            ggmodel.load(varied, strict=strict)


def test_every_tensor_and_its_field(source: MemorySource, vary):
    result = check(vary(source, drop=("output.weight",), tensors={"extra.weight": EXTRA}))
    rows = {t.name: t for t in result.tensors}
    assert set(rows) == set(source.tensors) - {"output.weight"} | {"extra.weight"}
    assert rows["token_embd.weight"].fields == ["embed.weight", "head.weight"]
    assert rows["blk.1.attn_v.weight"].fields == ["layers[1].attn.v.weight"]
    assert rows["blk.1.attn_v.weight"].shape == (64, 32)
    assert (rows["extra.weight"].fields, rows["extra.weight"].status) == ([], "unused")


def test_a_tensor_that_the_architecture_makes():
    source = source_of(load_golden("llama", "yarn"))
    result = check(source)
    assert result.ok
    made = [t for t in result.tensors if t.name not in source.tensors]
    assert [(t.name, t.status, t.shape) for t in made] == [("rope_freqs.weight", "computed", (16,))]
    assert all(t.status == "used" for t in result.tensors if t not in made)


def test_the_nearest_name(source: MemorySource, vary):
    result = check(vary(source, rename={"blk.1.ffn_down.weight": "blk.1.fn_down.weight"}))
    (missing,) = (p for p in result.problems if p.kind == "missing")
    assert "the file has blk.1.fn_down.weight" in missing.message


def test_tensors_of_an_unknown_architecture_are_listed(source: MemorySource, vary):
    result = check(vary(source, metadata={"general.architecture": "lama"}))
    assert result.architecture is None
    assert [t.name for t in result.tensors] == list(source.tensors)
    assert {t.status for t in result.tensors} == {"unknown"}


# Architectures of their own files, each with a fault.
HEAD = "from ggmodel import *\nfrom ggmodel.models.llama import Llama\n@register('faulty')\n"
FAULTS = {
    "trace": (
        "class Faulty(Llama):\n"
        "    def forward(self, ctx, batch):\n"
        "        return self.embed.weight.mulmat(self.norm.weight.reshape(32, 2))\n",
        "faulty.py:6",
    ),
    "refused": (
        "class Faulty(Llama):\n    def validate(self):\n        raise Error('not this one')\n",
        "not this one",
    ),
}


@pytest.fixture
def faulty(source: MemorySource, vary) -> MemorySource:
    """The model under the name of another architecture."""
    keys = {k.replace("llama.", "faulty.", 1): v for k, v in source.metadata.items()}
    return vary(source, metadata={**keys, "general.architecture": "faulty"})


@pytest.mark.parametrize("kind", FAULTS)
def test_faulty_models(faulty: MemorySource, tmp_path: Path, kind: str):
    code, message = FAULTS[kind]
    (tmp_path / "faulty.py").write_text(HEAD + code)
    result = check(faulty, models=tmp_path)
    assert [p.kind for p in result.problems] == [kind]
    assert message in result.problems[0].message
    assert not result.traced
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(faulty, models=tmp_path)


def test_a_weight_that_the_forward_forgets(faulty: MemorySource, tmp_path: Path):
    (tmp_path / "faulty.py").write_text(
        HEAD + "class Faulty(Llama):\n"
        "    def forward(self, ctx, batch):\n"
        "        for layer in self.layers:\n"
        "            layer.attn.v = layer.attn.k\n"
        "        return super().forward(ctx, batch)\n"
    )
    result = check(faulty, models=tmp_path)
    assert result.ok
    assert result.traced
    assert [w.kind for w in result.warnings] == ["unread"] * 2
    assert result.warnings[0].message.startswith("blk.0.attn_v.weight (layers[0].attn.v.weight)")
