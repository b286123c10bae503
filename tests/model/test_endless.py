"""Model files without an end, or without enough memory: errors with a path and a line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ggmodel
from ggmodel import Module, Tensor, gguf
from ggmodel.errors import ArchitectureError, ConfigError, Error, OutOfMemory
from ggmodel.model import fill
from ggmodel.model.registry import find
from ggmodel.model.walk import instances
from tests.conftest import ROOT

STORIES = ROOT / "examples" / "assets" / "stories.gguf"
LAYER = "class Layer(nn.PreNormLayer):\n"
ATTENTION = "class Attention(nn.PermutedAttention):\n"
FORWARD = "    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:\n"
OWN = f"{ATTENTION}{FORWARD}        return super().forward(x, batch, cache)\n\n\n"
# With a class of its own for attention.
LLAMA = (
    (ROOT / "models" / "llama" / "model.py")
    .read_text("utf-8")
    .replace("from ggmodel import ", "from ggmodel import Tensor, ", 1)
    .replace(LAYER, f"{OWN}{LAYER}")
    .replace("attn: nn.PermutedAttention", "attn: Attention")
)


def load(folder: Path, *changes: tuple[str, str]) -> Any:
    """Loads a model whose file is llama's, with these changes."""
    text = LLAMA
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "llama.py").write_text(text)
    with ggmodel.load(STORIES, models=folder, threads=1) as model:
        return model.generate("Once", max_tokens=1)


@pytest.mark.parametrize(
    ("cls", "field", "path"),
    [
        (LAYER, 'me: "Layer" = gguf("x")', "layers[0].me"),
        (LAYER, 'me: "Layer | None" = gguf("x")', "layers[0].me"),
        (LAYER, 'me: "list[Layer]" = gguf("x", n=2)', "layers[0].me[0]"),
        (LAYER, 'me: "Tensor | Layer" = gguf("x", "y")', "layers[0].me"),
        (LAYER, 'me: "Layer"', "layers[0].me"),
        (ATTENTION, 'layer: "Layer" = gguf("x")', "layers[0].attn.layer"),
        (ATTENTION, 'layer: "Llama" = gguf("x")', "layers[0].attn.layer"),
    ],
)
def test_a_module_within_its_own_class(tmp_path: Path, cls: str, field: str, path: str):
    with pytest.raises(ConfigError, match=r"holds itself, without end") as caught:
        load(tmp_path, (cls, f"{cls}    {field}\n"))
    line = 1 + LLAMA[: LLAMA.index(cls)].count("\n") + 1
    assert str(caught.value).startswith(f"{tmp_path / 'llama.py'}:{line}: {path}: ")


def test_an_empty_list_of_its_own_class_has_an_end(tmp_path: Path):
    assert load(tmp_path, (LAYER, f'{LAYER}    more: "list[Layer]" = gguf("x", n=0)\n'))


class Ring(Module):
    weight: Tensor = gguf("weight")
    other: Module

    def __init__(self, config: Any):
        super().__init__(config)
        self.other = self


class Outer(Module):
    ring: Ring = gguf("ring")


class Nothing:
    def get(self, name: str) -> None:
        return None


def test_a_module_that_its_constructor_puts_into_itself():
    model = Outer(SimpleNamespace())
    with pytest.raises(ConfigError, match=r"ring\.other: Ring holds itself"):
        fill(model, Nothing(), {}, "test")
    model.ring = Ring(None)
    with pytest.raises(ConfigError, match=r"ring\.other: Ring holds itself"):
        list(instances(model))


END = "class Llama(nn.Decoder):\n"


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("return self.forward(x, batch, cache)", ArchitectureError, "RecursionError"),
        ("raise MemoryError", OutOfMemory, "memory ran out"),
        ("[0] * (1 << 45)", OutOfMemory, "memory ran out"),
    ],
)
def test_a_forward_without_end_or_memory_names_its_line(
    tmp_path: Path, code: str, kind: type[Error], reason: str
):
    with pytest.raises(kind, match=reason) as caught:
        load(tmp_path, (FORWARD, f"{FORWARD}        {code}\n"))
    line = 2 + LLAMA[: LLAMA.index(FORWARD)].count("\n")
    assert f"{tmp_path / 'llama.py'}:{line} in forward" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def caches(self):\n        return self.caches()", ArchitectureError),
        ("def caches(self):\n        raise MemoryError", OutOfMemory),
        ("def validate(self):\n        self.validate()", ArchitectureError),
        ("def post_load(self):\n        raise MemoryError", OutOfMemory),
    ],
)
def test_other_methods_without_end_or_memory(tmp_path: Path, code: str, kind: type[Error]):
    with pytest.raises(kind, match=rf"{tmp_path}/llama\.py:\d+ in"):
        load(tmp_path, (LLAMA, f"{LLAMA}\n    {code}\n"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [("def f(): f()\nf()\n", ArchitectureError), ("raise MemoryError\n", OutOfMemory)],
)
def test_a_file_without_end_or_memory(tmp_path: Path, text: str, kind: type[Error]):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(kind, match=rf"{tmp_path}/mine\.py:1"):
        find("mine", tmp_path)


@pytest.mark.parametrize(
    "text", ["class A(Module): pass", "class A: pass", "def a(): pass"], ids=repr
)
def test_only_models_are_registered(tmp_path: Path, text: str):
    head = "from ggmodel import Module, register\n\n@register('mine')\n"
    (tmp_path / "mine.py").write_text(head + text + "\n")
    with pytest.raises(ArchitectureError, match=r"@register\('mine'\) stands before") as caught:
        find("mine", tmp_path)
    assert f"{tmp_path / 'mine.py'}:3" in str(caught.value)


def test_a_folder_of_models_with_too_long_a_name():
    with pytest.raises(ArchitectureError, match="is no folder") as caught:
        find("llama", "x" * 5000)
    assert len(str(caught.value)) < 300
