"""The model of a loaded file that takes images."""

from __future__ import annotations

from ggmodel import LoadedModel
from ggmodel.model import VisionModel


def vision_model(model: LoadedModel) -> VisionModel:
    assert isinstance(model.model, VisionModel)
    return model.model
