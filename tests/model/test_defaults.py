"""Tensors that a file need not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ArchitectureError, ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import config_class, find, gguf
from ggmodel.model.loader import completed
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_golden

MODEL = """
import numpy as np
from ggmodel import Config, Model, Module, Tensor, gguf, kv, register
from ggmodel.kvcache import Causal
from ggmodel.nn import Embedding

def ramp(h):
    return np.arange(h.hidden, dtype=np.float32) if h.hidden < 100 else None

class SmallConfig(Config):
    hidden: int = kv("embedding_length")

class Inner(Module):
    ramp: Tensor | None = gguf("ramp.weight", root=True, default=RAMP)

@register("ramped")
class Ramped(Model):
    config: SmallConfig
    embed: Embedding = gguf("token_embd")
    inner: list[Inner] = gguf("blk", n=2)

    def caches(self):
        return []

    def forward(self, ctx, batch):
        x = self.embed(batch.inputs).rows(batch.outputs)
        return x if self.inner[1].ramp is None else x + self.inner[1].ramp
"""
TABLE = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ramped.py").write_text(MODEL.replace("RAMP", "ramp"))
    return tmp_path


def source(width: int = 4, **tensors: np.ndarray) -> MemorySource:
    metadata = {"general.architecture": "ramped", "ramped.embedding_length": width}
    named = {f"{n}.weight": t for n, t in tensors.items()}
    return MemorySource(metadata, {"token_embd.weight": TABLE, **named})


@pytest.mark.parametrize("backend", ["ggml", "reference"])
def test_a_default_is_a_weight_like_any_other(folder: Path, backend: str):
    with ggmodel.load(source(), models=folder, backend=backend) as model:
        assert np.array_equal(model.logits([1, 3]), TABLE[[1, 3]] + np.arange(4, dtype=np.float32))


def test_what_the_file_has_counts(folder: Path):
    given = np.ones(4, np.float32)
    with ggmodel.load(source(ramp=given), models=folder) as model:
        assert np.array_equal(model.logits([1, 3]), TABLE[[1, 3]] + 1)


def test_there_may_be_nothing_to_compute(folder: Path):
    with ggmodel.load(source(width=100), models=folder) as model:
        assert np.array_equal(model.logits([1, 3]), TABLE[[1, 3]])


def test_a_function_that_fails_is_named(tmp_path: Path):
    (tmp_path / "ramped.py").write_text(MODEL.replace("RAMP", "lambda h: h.nothing"))
    with pytest.raises(ArchitectureError, match=r"ramped\.py:\d+ in <lambda>: .*default"):
        ggmodel.load(source(), models=tmp_path)


def test_a_name_must_be_absolute():
    with pytest.raises(ConfigError, match="absolute"):
        gguf("ramp.weight", default=lambda h: None)


def test_a_source_that_lacks_nothing_stays_itself():
    architecture = find("llama")
    for case, lacks in (("plain_gqa", False), ("llama3_rope", False), ("yarn", True)):
        whole = source_of(load_golden("llama", case))
        config = config_class(architecture).read(KeyValues(whole.metadata))
        found = completed(whole, architecture, config)
        assert (found is not whole) == lacks
        assert found.name == whole.name
        more = {"rope_freqs.weight"} if lacks else set()
        assert found.tensors.keys() - whole.tensors.keys() == more
