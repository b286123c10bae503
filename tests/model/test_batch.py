"""The view of a batch that a model's code is given."""

from __future__ import annotations

import pytest

from ggmodel.errors import TensorError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import new_backend
from ggmodel.model import Batch
from tests.ml.harness import METADATA


def test_the_last_layer_goes_on_with_the_wanted_rows():
    with new_backend(MemorySource(METADATA, {})) as backend, backend.new_context() as ctx:
        with ctx.trace():
            batch = Batch(ctx, 5, 2, {1: "second", 0: "first"})
        near, far = object(), object()
        assert list(batch.through([near, far])) == [
            (near, "first", None),
            (far, "second", batch.outputs),
        ]
        # A layer may come more than once.
        assert list(batch.through([near, near])) == [
            (near, "first", None),
            (near, "second", batch.outputs),
        ]
        for layers in ([], [near], [near] * 3):
            with pytest.raises(TensorError, match=r"layers, but caches\(\) declared 2"):
                next(batch.through(layers))
