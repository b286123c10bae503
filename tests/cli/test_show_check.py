"""`ggmodel show` and `ggmodel check` as printed; what they find is tested in tests/workbench."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


def has_row(text: str, *cells: str) -> bool:
    return (
        re.search(r"^ *" + r" {2,}".join(map(re.escape, cells)) + r"( {2,}|$)", text, re.M)
        is not None
    )


def test_show(program, model_path: Path):
    ran = program("show", model_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert has_row(ran.stdout, "llama.attention.head_count", "u32", "4")
    assert has_row(ran.stdout, "heads", "4", "llama.attention.head_count")
    assert has_row(ran.stdout, "eps", "1e-05", "llama.attention.layer_norm_rms_epsilon")
    assert has_row(ran.stdout, "experts", "0", "default")
    assert '["<|bos|>", "a", "b", "c", "d", "e", … (64 items)]' in ran.stdout
    assert "blk.1" not in ran.stdout
    assert re.search(r"^all +21 tensors", ran.stdout, re.M)
    listed = program("show", model_path, "--tensors").stdout
    assert "blk.1: 9 tensors" in listed
    assert has_row(listed, "blk.1.attn_k.weight", "F32", "[64, 32]", "8,192 bytes")


def test_show_of_an_unknown_architecture(program, file: Callable[..., Path]):
    ran = program("show", file(metadata={"general.architecture": "newest"}), "--tensors")
    assert ran.returncode == 0
    assert "unknown: no architecture 'newest'" in ran.stdout
    assert has_row(ran.stdout, "blk.0.attn_q.weight", "F32", "[64, 64]", "16,384 bytes")


def test_show_as_json(program, model_path: Path):
    shown = json.loads(program("show", model_path, "--json").stdout)
    assert shown["architecture"] == "llama"
    assert {"name": "heads", "value": 4, "key": "llama.attention.head_count"} in shown[
        "hyperparameters"
    ]
    assert [layer["name"] for layer in shown["layers"]] == ["", "blk.0", "blk.1"]
    tokens = next(e for e in shown["metadata"] if e["key"] == "tokenizer.ggml.tokens")
    assert tokens["value"]["length"] == 64


def test_check(program, model_path: Path):
    ran = program("check", model_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    row = ("blk.1.attn_q.weight", "layers[1].attn.q.weight", "F32", "[64, 64]")
    assert has_row(ran.stdout, *row)
    assert "problems" not in ran.stdout
    verdict, unchecked = ran.stdout.splitlines()[-2:]
    assert verdict.endswith("tiny.gguf fits llama: 21 tensors used, the forward traced")
    assert unchecked.startswith("checked: names, shapes and keys; not checked: any number")


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        (
            {"drop": ("blk.1.attn_k.weight",)},
            ("missing", "layers[1].attn.k.weight: no tensor blk.1.attn_k.weight"),
        ),
        (
            {"rename": {"blk.1.ffn_up.weight": "blk.1.ffn_upp.weight"}},
            (
                "missing",
                "layers[1].ffn.up.weight: no tensor blk.1.ffn_up.weight; "
                "the file has blk.1.ffn_upp.weight",
            ),
        ),
        (
            {"tensors": {"output_norm.weight": np.ones(32, np.float32)}},
            ("shape", "output_norm.weight (norm.weight) is [32], not [64]"),
        ),
        ({"tensors": {"extra.weight": np.ones(3, np.float32)}}, ("unused", "extra.weight")),
    ],
)
def test_check_of_what_does_not_fit(
    program, file: Callable[..., Path], changes: dict, row: tuple[str, ...]
):
    path = file(**changes)
    ran = program("check", path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert row[1] in ran.stdout
    assert re.search(r"varied\.gguf cannot be loaded as llama: \d problems?\n$", ran.stdout)
    found = json.loads(program("check", path, "--json").stdout)
    assert found["ok"] is False
    assert any(p["kind"] == row[0] and p["message"].startswith(row[1]) for p in found["problems"])


def test_check_not_strictly(program, file: Callable[..., Path]):
    path = file(tensors={"extra.weight": np.ones(3, np.float32)})
    ran = program("check", path, "--no-strict")
    assert ran.returncode == 0
    assert has_row(ran.stdout, "extra.weight", "(unused)", "F32", "[3]")
    assert has_row(ran.stdout, "unused", "extra.weight")
    assert "21 tensors used, the forward traced, 1 warning\nchecked: " in ran.stdout
    ran = program("run", path, "abc", "-n", 1, "--no-strict")
    assert ran.returncode == 0
    assert ran.stderr.startswith("warning: the architecture 'llama' does not use extra.weight\n")


def test_architectures_from_a_folder(program, file: Callable[..., Path], tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from ggmodel import register\n"
        "from ggmodel.models.llama import Llama\n"
        "@register('mine')\n"
        "class Mine(Llama): pass\n"
    )
    path = file(metadata={"general.architecture": "mine", **_renamed("mine")})
    assert program("check", path).returncode == 1
    assert program("check", path, "--models", tmp_path).returncode == 0
    assert has_row(
        program("show", path, "--models", tmp_path).stdout,
        "heads",
        "4",
        "mine.attention.head_count",
    )


def test_what_a_trace_finds_has_lines_of_its_own(program, model_path: Path, tmp_path: Path):
    (tmp_path / "llama.py").write_text(
        "from ggmodel import register\n"
        "from ggmodel.models import llama\n\n"
        "@register('llama')\n"
        "class Mine(llama.Llama):\n"
        "    def embedded(self, batch):\n"
        "        return self.norm.weight.add(super().embedded(batch))\n"
    )
    ran = program("check", model_path, "--models", tmp_path)
    assert ran.returncode == 1
    assert "\\n" not in ran.stdout
    first, *more = ran.stdout.partition("problems\n")[2].splitlines()
    assert re.match(r"  trace +add: .* does not broadcast into \[64\]$", first.rstrip())
    assert more[0].strip().startswith("operands: ")
    assert any(re.match(r" +at .*llama\.py:7 in embedded", line) for line in more)


def _renamed(name: str) -> dict[str, int | float]:
    return {
        f"{name}.{key}": value
        for key, value in {
            "block_count": 2,
            "embedding_length": 64,
            "feed_forward_length": 128,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
            "attention.layer_norm_rms_epsilon": 1e-5,
        }.items()
    }
