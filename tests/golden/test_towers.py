"""Each tower, by its goldens: one graph for all items of a shape; arrays that do not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import PromptError
from ggmodel.model import Model, find, find_hf, supported
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import HERE, Golden, cases, load_golden

# The same ops on the same numbers; threads may share the rows otherwise.
EXACT = 1e-12

WITH_ITEMS = [
    (folder.name, case)
    for folder in sorted(path.parent for path in HERE.glob("*/cases.py"))
    for case in cases(folder.name)
    if load_golden(folder.name, case).pictures
]


def load(golden: Golden) -> LoadedModel:
    return ggmodel.load(source_of(golden), threads=1, context_length=256)


def test_all_towers_are_here():
    def encoder(cls: type[Model]) -> object:
        """Relatives share one."""
        methods = ("encode_multimodal", "encode_audio", "modalities")
        return tuple(getattr(cls, name, None) for name in methods)

    classes = {find(name) for name in supported()}
    # Other tests register classes of their own.
    towers = {c for c in classes if c.takes_items() and c.__module__.startswith("ggmodel.")}
    here = {find_hf(load_golden(*one).config["architectures"]) for one in WITH_ITEMS}
    assert set(map(encoder, towers)) == set(map(encoder, here))


@pytest.mark.parametrize(("architecture", "case"), WITH_ITEMS, ids=map("/".join, WITH_ITEMS))
def test_a_second_item_of_a_shape_is_not_recorded(architecture: str, case: str):
    golden = load_golden(architecture, case)
    first = next(iter(golden.pictures.values()))
    other = np.ascontiguousarray(first.pixels[..., ::-1])
    assert not np.array_equal(other, first.pixels)

    def rows(model: LoadedModel, values: np.ndarray) -> list[np.ndarray]:
        found: list[Any] = model.embeddings(values, first.kind, **first.data)
        return [x for one in found for x in (one.rows, *one.parts)]

    with load(golden) as model:
        before, got = rows(model, first.pixels), rows(model, other)
        encoders = model.engine.images.encoders
        assert (encoders.recorded, encoders.replayed) == (1, 1)
    with load(golden) as model:
        want = rows(model, other)
    for b, c in zip(got, want, strict=True):
        assert nmse(b, c) < EXACT
    # Rows of some models are those of tokens, whatever is heard.
    assert max(map(nmse, before, want)) > 1e-6


@pytest.mark.parametrize(("architecture", "case"), WITH_ITEMS, ids=map("/".join, WITH_ITEMS))
def test_an_array_of_another_shape_is_named(architecture: str, case: str):
    """Not the line of the encoder that fails at it."""
    golden = load_golden(architecture, case)
    item = next(iter(golden.pictures.values()))
    shape = item.shape
    others = [(2, 3), (1, 2, 3, 4, 5), (1, *shape)]
    if item.kind != "source" and shape[:-1] != (1,):  # a text and samples may have any length
        others.append((*shape[:-1], shape[-1] + 1))
    others += [shape[1:]] if len(shape) > 2 else []
    if len(shape) == 4:
        others.append((shape[0], 4, *shape[2:]))
    with load(golden) as model:
        for other in others:
            fixed = model.engine.images.modality(item.kind).shape
            assert fixed is not None
            said = rf"this {item.kind} is an array {re.escape(str(list(other)))}; this model takes"
            if len(other) == len(shape) == 4 and isinstance(fixed[-1], str) and other[1] == 3:
                said = "pixels; "  # of any width, in whole patches
            with pytest.raises(PromptError, match=said) as caught:
                model.embeddings(np.ones(other, np.float32), item.kind, **item.data)
            assert len(str(caught.value)) < 300


def test_a_recording_that_nobody_needs_is_closed():
    """The largest item's graph is always recorded, though that of another one may serve."""
    with load(load_golden("gemma3", "images")) as model:
        images = model.engine.images
        for replayed in (0, 1):
            largest = images.largest("image")
            ctx = largest.ctx
            assert ctx is not None and len(largest.embeddings[0].rows)
            assert images.encoders.replayed == replayed
            assert largest.ctx is None
            assert ctx.graph.closed == bool(replayed)  # the first one's is kept


@pytest.mark.parametrize(("architecture", "case"), WITH_ITEMS, ids=map("/".join, WITH_ITEMS))
def test_data_that_no_model_reads_are_refused(architecture: str, case: str):
    golden = load_golden(architecture, case)
    with load(golden) as model:
        for item in {one.kind: one for one in golden.pictures.values()}.values():
            with pytest.raises(PromptError, match="data named 'nonsense'; this model takes"):
                model.embeddings(item.pixels, item.kind, **item.data, nonsense="x")
