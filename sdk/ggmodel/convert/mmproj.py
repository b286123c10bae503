"""Two files instead of one: the text model, and what it sees with, as llama.cpp wants them.

The declaration says all of it: a tensor's name in the second file is the second name of its field;
the key of a hyperparameter there is the alternate that begins with "clip."; and what that file says
besides is the model's `clip`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import Unsupported
from ..model import Model, config_class
from ..model.config import key_fields
from .checkpoint import read_json

_KEYS = ("vision.", "mm.")


def text_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture's metadata without what is about seeing."""
    own = f"{metadata['general.architecture']}."
    return {k: v for k, v in metadata.items() if not k.removeprefix(own).startswith(_KEYS)}


def clip_metadata(
    architecture: type[Model], config: Any, metadata: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """The metadata of the file that a model sees with.

    Raises:
        Unsupported: the architecture has no such file.
    """
    if architecture.clip is None:
        raise Unsupported(
            f"{architecture.architecture} has no file of its own for what it sees with; "
            "convert it into one file, without --mmproj"
        )
    name = metadata["general.architecture"]
    found: dict[str, Any] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": name,
        "clip.use_gelu": True,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
        "clip.vision.projection_dim": metadata[f"{name}.embedding_length"],
    }
    for field, tag, _, _ in key_fields(config_class(architecture)):
        key = next((n for n in tag.names if n.startswith("clip.")), None)
        if key is not None:
            found[key] = getattr(config, field)
    for key, value in architecture.clip.items():
        found[f"clip.{key}"] = value(config) if callable(value) else value
    found |= _preprocessing(folder)
    return {k: v for k, v in found.items() if v is not None}


def _preprocessing(folder: Path) -> dict[str, Any]:
    """Mean and deviation of pixels, where the folder says them."""
    said: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            said |= read_json(folder / name)
            inner = said.get("image_processor")
            said |= inner if isinstance(inner, Mapping) else {}
    found = {}
    for key in ("image_mean", "image_std"):
        value = said.get(key)
        if isinstance(value, list) and all(isinstance(n, int | float) for n in value):
            found[f"clip.vision.{key}"] = [float(n) for n in value]
    return found
