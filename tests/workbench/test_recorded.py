"""Graphs are recorded from files whose weights are not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ConfigError, FormatError, LoadError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.workbench.diagram import record
from tests.workbench.models import SHAPES, STORIES


def test_both_graphs_of_a_multimodal_model():
    assert [g.title for g in record(SHAPES)] == [
        "vision: an image of 64 x 64 pixels", "text: 512 tokens",
    ]  # fmt: skip
    for parts, count in ((["vision"], 1), (["text"], 1), (["vision", "text"], 2)):
        titles = [g.title.partition(":")[0] for g in record(SHAPES, parts=parts)]
        assert titles == parts and len(titles) == count
    (text,) = record(SHAPES, parts=["text"])
    assert any(x is not None and x.name == "multimodal" for op in text.ops for x in op.sources)
    (text,) = record(SHAPES, parts=["text"], tokens=1)
    assert not any(x is not None and x.name == "multimodal" for op in text.ops for x in op.sources)


def test_what_cannot_be_recorded(tmp_path: Path, source: MemorySource, vary: Any):
    with pytest.raises(ConfigError, match="0 tokens; there must be at least 1"):
        record(STORIES, tokens=0)
    with pytest.raises(Unsupported, match="holds no vision tensors"):
        record(STORIES, parts=["vision"])
    (tmp_path / "none.gguf").write_bytes(b"no model, but long enough to be one" * 9)
    with pytest.raises(FormatError):
        record(tmp_path / "none.gguf")
    with pytest.raises(LoadError):
        record(vary(source, drop=("output_norm.weight",)))


def test_a_source_stays_open(source: MemorySource):
    record(source, tokens=4)
    assert len(source.data("output_norm.weight")) == 4 * 64
    assert np.frombuffer(source.data("output_norm.weight"), np.float32).all()
