"""Files of authors, with every block written out: they keep working, or are told the new word."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggmodel
from ggmodel import nn
from ggmodel.convert import from_hf
from ggmodel.errors import ArchitectureError, ConfigError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.workbench import golden

OUTSIDE = Path(__file__).parent / "outside"
GOLDENS = Path(__file__).parents[1] / "golden"
CASES = {
    "llama": ["plain_gqa", "experts", "llama3_rope", "yarn", "longrope", "tied"],
    "mistral": ["window", "no_window"],
    "gemma2": ["published", "no_caps"],
}


@pytest.mark.parametrize(
    ("architecture", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_a_file_that_says_everything_itself(architecture: str, case: str):
    assert find(architecture, OUTSIDE) is not find(architecture)
    (outcome,) = golden.check(GOLDENS / architecture, case, models=OUTSIDE)
    assert outcome.ok


@pytest.mark.parametrize("name", ["linear_factor", "linear_scale", "linear_type"])
def test_former_functions_of_rope(name: str, tmp_path: Path):
    text = (OUTSIDE / "gemma2.py").read_text()
    old = "    causal: bool = kv("
    assert text.count(old) == 1
    (tmp_path / "gemma2.py").write_text(text.replace(old, f"    x = nn.{name}\n{old}"))
    with pytest.raises(ArchitectureError, match=rf"nn\.{name} is gone: inherit nn\.RopeConfig"):
        find("gemma2", tmp_path)
    with pytest.raises(Unsupported, match=r"rotary: nn\.Rotary"):
        getattr(nn, name)
    with pytest.raises(AttributeError):
        nn.no_such_name  # noqa: B018


WIDENED = """
from ggmodel import gguf, register
from ggmodel.models.llama import Llama
from ggmodel.nn import Linear

@register("widened")
class Widened(Llama):
    extra: Linear | None = gguf("extra", shape=("{width}", None))
"""


def test_the_former_name_of_a_width(tmp_path: Path):
    want = golden.Golden.load(GOLDENS / "llama" / "plain_gqa.npz")
    for width in ("hidden", "width"):
        (tmp_path / "widened.py").write_text(WIDENED.format(width=width))
        source = from_hf(find("widened", tmp_path), want.config, want.weights())
        more = source.tensors["token_embd.weight"]
        data = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
        data["extra.weight"] = more.dtype, more.shape, bytes(source.data("token_embd.weight"))
        file = MemorySource(source.metadata, data)
        if width == "width":
            ggmodel.load(file, models=tmp_path).close()
            continue
        with pytest.raises(ConfigError, match=r"LlamaConfig\.hidden is called width now"):
            ggmodel.load(file, models=tmp_path)
