"""The prepared values of an item beside those of the reference's processor: where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import Error
from ...model import Prepared
from ...runner import LoadedModel
from .inputs import same_tokens

_METHODS = {"image": "preprocess"}  # what the preparation is called by default
LEVEL = 1 / 255  # a level of an 8-bit pixel, of the reference's largest value
# Pillow rounds levels otherwise than torchvision, to both sides: noise is 0.1 of a level brighter
# at most. With another rescaling, by 1/256, it is darker by 0.5.
_BRIGHTER = 1 / 8
# Float32 rounds to 6e-8; the steps of one preparation round a few times each, those of a
# spectrum's logarithm by more where a band is faint.
EXACT = {"image": 1e-6, "audio": 1e-5}
_AGREES = 1e-4  # the squared error of levels that are a line of the others, but for rounding
_EXPLAINED = 0.1  # the share of a squared error that a line may leave


def differing(
    model: LoadedModel,
    kind: str,
    ours: Prepared,
    inputs: Mapping[str, np.ndarray],
    prompt: Sequence[Any],
    placeholder: int,
    exact: bool = False,
) -> str:
    """How an item and the prompt around it are prepared otherwise than by the reference's
    processor, as "preparation, STEP: …"; "" if they are not.

    Args:
        ours: the item as the model prepares it.
        inputs: keywords of the reference's forward.
        prompt: with the item, as `LoadedModel.logits` takes it.
        placeholder: the reference's token for a row of the item.
        exact: as for `same_item`.
    """
    step = same_item(model, kind, ours, inputs, exact) or _same_data(kind, ours.data, inputs)
    if not step:
        ids = inputs["input_ids"].reshape(-1).tolist()
        step = same_tokens(model, prompt, ids, placeholder)
    return step and f"preparation, {step}"


def same_item(
    model: LoadedModel,
    kind: str,
    ours: Prepared,
    inputs: Mapping[str, np.ndarray],
    exact: bool = False,
) -> str:
    """How the values that a model prepares, such as pixels, differ from the reference's, and in
    which step of the preparation; "" if they do not.

    Args:
        inputs: keywords of the reference's forward.
        exact: pixels are no level apart: the reference resizes with torchvision.
    """
    mine = np.asarray(ours.values, np.float32)
    made = f"{_METHODS.get(kind, 'prepare')} makes"
    called = "values" if kind == "audio" else "pixels"
    try:
        theirs = model.model.reference_item(kind, inputs, ours.data).values
    except Error:
        raise
    except (ValueError, IndexError) as error:
        return (
            f"size: {made} {called} {list(mine.shape)}, which the reference's do not fit: {error}"
        )
    if mine.shape != theirs.shape and mine.squeeze().shape != theirs.squeeze().shape:
        # A processor may pad the list of tiles.
        tiles = len(mine)
        if mine.shape[1:] != theirs.shape[1:] or tiles > len(theirs) or theirs[tiles:].any():
            there = f"{called} {list(mine.shape)}, the reference {list(theirs.shape)}"
            return f"{'spectrum' if kind == 'audio' else 'size'}: {made} {there}"
        theirs = theirs[:tiles]
    theirs = np.asarray(theirs, np.float32).reshape(mine.shape)
    distance = mine.astype(np.float64) - theirs
    largest, bias = float(np.abs(distance).max()), float(distance.mean())
    scale = max(1.0, float(np.abs(theirs).max()))
    if largest <= EXACT.get(kind, EXACT["image"]) * scale:
        return ""
    level = LEVEL * float(np.abs(theirs).max())
    if not exact and largest <= 1.01 * level and abs(bias) <= _BRIGHTER * level:
        return ""
    step = "spectrum" if kind == "audio" else _step(mine, theirs)
    return f"{step}: {made} other {called} than the reference, by {largest:.2g} at most"


def _same_data(kind: str, data: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> str:
    """How whole numbers beside the values, such as a grid, differ from the input of the reference
    that has their name in its own, as `image_grid_thw` has; "" if they do not."""
    for name, value in data.items():
        mine = np.ravel(value)
        for other, array in inputs.items():
            theirs = np.ravel(array)[-mine.size :]
            if name not in other or mine.dtype.kind not in "iu" or theirs.size != mine.size:
                continue
            if not np.array_equal(mine, theirs):
                made = f"{_METHODS.get(kind, 'prepare')} makes {name} {mine.tolist()}"
                return f"numbers: {made}, the reference's {other} ends in {theirs.tolist()}"
    return ""


def _step(ours: np.ndarray, theirs: np.ndarray) -> str:
    """The step of a picture's preparation that differs: the same levels in other places, other
    numbers for the same levels, or other levels."""
    if np.allclose(np.sort(ours, None), np.sort(theirs, None), rtol=0, atol=LEVEL / 10):
        return "order of channels, patches or tiles"
    mine, other = _by_channel(ours), _by_channel(theirs)
    if all(_same_levels(a, b) for a, b in zip(mine, other, strict=True)):
        return "normalisation"
    if all(any(_same_levels(a, b) for b in other) for a in mine):
        return "order of channels, patches or tiles"
    return "resampling or padding"


def _by_channel(values: np.ndarray) -> np.ndarray:
    """[3, n]: tiles [.., 3, height, width], or patches [n, 3 · …]."""
    if values.ndim > 2 and values.shape[-3] == 3:
        return np.moveaxis(values, -3, 0).reshape(3, -1)
    return np.moveaxis(values.reshape(len(values), 3, -1), 1, 0).reshape(3, -1)


def _same_levels(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether numbers of a stand for the same levels as those of b: each goes with one of b, in
    the same order, or the best line through (b, a) explains their difference."""
    pairs = np.unique(np.stack([b, a]), axis=1)
    kinds = max(len(np.unique(a)), len(np.unique(b)))
    if 2 < pairs.shape[1] <= kinds and (np.diff(pairs[1]) >= 0).all():
        return True
    x, y = b - b.mean(dtype=np.float64), a - a.mean(dtype=np.float64)
    squares, products = float(x @ x), float(x @ y)
    if not squares:
        return False
    left = float(y @ y) - products**2 / squares
    return left <= _AGREES * float(y @ y) and left <= _EXPLAINED * float(np.sum((a - b) ** 2))
