"""Batches that are prepared while the one before is computed, without another processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ggmodel.ml.ggml.compute import ComputeBuffer


@contextmanager
def prepared(when: str) -> Iterator[None]:
    """Batches are prepared "when needed" or, as where another processor computes, "ahead": while
    the one before is computed."""
    compute = ComputeBuffer.compute

    def prepare_first(self: ComputeBuffer, cgraph: Any, meanwhile: Any = None) -> int:
        if meanwhile is not None:
            meanwhile()
        return compute(self, cgraph)

    with pytest.MonkeyPatch.context() as patch:
        if when == "ahead":
            patch.setattr(ComputeBuffer, "compute", prepare_first)
        yield
