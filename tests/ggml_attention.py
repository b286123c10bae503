"""Backends whose attention is ggml's, as on x86 processors without AVX2: caches make masks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ggmodel.ml.ggml import attention


@contextmanager
def ggml_attention() -> Iterator[None]:
    """Backends that are made meanwhile do not use the kernel of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "instructions", attention.ANY)
        yield
