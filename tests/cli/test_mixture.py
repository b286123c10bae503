"""`ggmodel quantize --target-bits`; the choice is tested in tests/workbench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggmodel.gguf_file import open_gguf
from ggmodel.workbench.mixture import Mixture, digest
from tests.workbench.models import STORIES

TEXT = "Once upon a time, there was a little fox who lived near the river. " * 20


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_a_recipe(program: Any, text: Path, tmp_path: Path):
    """Types as a search would choose them: its file is written by the same recipe again."""
    made, again = tmp_path / "made.gguf", tmp_path / "again.gguf"
    with open_gguf(STORIES) as source:
        from ggmodel.workbench import mixture

        types = {name: t.dtype for name, t in source.tensors.items()}
        types["blk.0.ffn_down.weight"] = mixture.DType.Q4_K
        recipe = Mixture(types, {"blk.0.ffn_down.weight": 0.5}, 8.25, digest(TEXT))
        mixture.write_quantized(source, made, types, None, recipe.metadata())
    arguments = ("--recipe", made, "--text", text, "--allow-requantize")
    ran = program("quantize", STORIES, again, *arguments)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith(f"{again}: ")
    with open_gguf(again) as source:
        assert Mixture.read(source) == recipe


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of TYPE, --target-bits and --recipe"),
        (("q8_0", "--target-bits", 5), "give one of TYPE, --target-bits and --recipe"),
        (("--target-bits", 5), "need --text"),
        (("q8_0", "--text", "TEXT"), "TYPE has no use for it"),
        (("--target-bits", 1, "--text", "TEXT", "--allow-requantize"), "bits a weight"),
        (("--target-bits", "nan", "--text", "TEXT", "--allow-requantize"), "target_bits is nan"),
        (("--recipe", STORIES, "--text", "TEXT"), "has no recipe of types"),
    ],
)
def test_wrong_use(program: Any, text: Path, tmp_path: Path, arguments: Any, message: str):
    given = [text if a == "TEXT" else a for a in arguments]
    ran = program("quantize", STORIES, tmp_path / "out.gguf", *given)
    assert ran.returncode == 1
    assert message.replace("target_bits", "--target-bits") in ran.stderr
    assert not (tmp_path / "out.gguf").exists()
