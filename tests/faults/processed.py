"""The pixels and tokens of pictures beside those of transformers' image processors.

`ggmodel diff --image` compares them with the processor of the checkpoint. Tiny checkpoints have
none; what processors make of pictures of noise is in `tests/image/goldens.npz`, for three
architectures with tokens, and in `tests/preparation/goldens.npz` for the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tests.image
from ggmodel.runner import LoadedModel
from ggmodel.workbench.diff.inputs import placeholder_of, same_tokens
from ggmodel.workbench.diff.preparation import same_item
from ggmodel.workbench.golden import Golden, Picture
from tests.faults.subjects import Subject
from tests.image.noise import SIDE, SIZES, noise
from tests.preparation.cases import CASES, check_preparation, model_of, recorded
from tests.vision import vision_model

_GOLDENS = Path(tests.image.__path__[0]) / "goldens.npz"
# Architectures with recordings of their processors → the hyperparameter of a tile's side.
RECORDED = {"gemma3": "side", "llama4": "tile", "mllama": "tile"}


def differing_inputs(subject: Subject, model: LoadedModel) -> str:
    """How a model's pixels or tokens differ from the processor's, as `diff` says it; "" if they do
    not."""
    with np.load(_GOLDENS, allow_pickle=False) as file:
        recorded = {name: file[name] for name in file.files}
    for n, size in enumerate(SIZES):
        said = _pixels(subject, model, size, n, recorded)
        if not said and subject.architecture == "llama4":
            said = _tokens(subject, model, size, recorded[f"llama4.grid.{n}"].tolist())
        if said:
            return said
    return ""


def prepares_otherwise(architecture: str, models: Path) -> bool:
    """Whether a model prepares pictures otherwise than its processor.

    Args:
        models: the folder with its file.
    """
    golden = recorded()
    for name, case in CASES.items():
        if (case.arch, case.kind) == (architecture, "image"):
            try:
                check_preparation(golden, name, model_of(name, models=models))
            except AssertionError:
                return True
    return False


def _pixels(
    subject: Subject, model: LoadedModel, size: tuple[int, int], n: int, recorded: dict[str, Any]
) -> str:
    config, name = model.model.config, RECORDED[subject.architecture]
    usual = getattr(config, name)
    setattr(config, name, SIDE)
    try:
        ours = vision_model(model).preprocess(noise(*size, channels=3 + n % 2))
        inputs = {"pixel_values": recorded[f"{subject.architecture}.{n}"]}
        return same_item(model, "image", ours, inputs)
    finally:
        setattr(config, name, usual)


def _tokens(subject: Subject, model: LoadedModel, size: tuple[int, int], grid: list[int]) -> str:
    """For tiles of the checkpoint: a picture as many times larger lies in the same grid."""
    golden, module = subject.golden, subject.cases.module
    assert isinstance(golden, Golden)
    tile = model.model.config.tile
    picture = noise(*(side * tile // SIDE for side in size))
    shape = (grid[0] * grid[1], 3, tile, tile)
    ids = module.image_tokens(golden.config, Picture("", shape, {"aspect_ratio": grid}))
    image = placeholder_of(golden.config, "image")
    return same_tokens(model, [picture], ids, image)
