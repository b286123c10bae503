"""Metadata for llama.cpp's two files: the text model, and its vision tensors (mmproj).

All of it follows from the declaration. In the second file a tensor has the second name of its
field, a hyperparameter the alternate key that begins with "clip."; `Model.clip` has further keys.
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
    """The architecture's metadata without the keys of vision."""
    own = f"{metadata['general.architecture']}."
    return {k: v for k, v in metadata.items() if not k.removeprefix(own).startswith(_KEYS)}


def clip_metadata(
    architecture: type[Model], config: Any, metadata: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """The metadata of the mmproj file.

    Raises:
        Unsupported: the architecture has no such file.
    """
    if architecture.clip is None:
        raise Unsupported(
            f"{architecture.architecture} has no layout with a file of its own for vision; "
            "convert it into one file, without --mmproj"
        )
    name = metadata["general.architecture"]
    found: dict[str, Any] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": name,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
        "clip.vision.projection_dim": metadata[f"{name}.embedding_length"],
    }
    for field, tag, kind, _ in key_fields(config_class(architecture)):
        key = next((n for n in tag.names if n.startswith("clip.")), None)
        value = getattr(config, field)
        if key is not None and (kind is not str or value != tag.default):
            found[key] = value
    activation = found.get("clip.vision.hidden_activation", "gelu")
    # As llama.cpp's flags say it; with neither it computes quick_gelu.
    found |= {"clip.use_gelu": activation.startswith("gelu")}
    found |= {"clip.use_silu": True} if activation in ("silu", "swish") else {}
    for key, value in architecture.clip.items():
        found[f"clip.{key}"] = value(config) if callable(value) else value
    found |= _preprocessing(folder)
    return {k: v for k, v in found.items() if v is not None}


def _preprocessing(folder: Path) -> dict[str, Any]:
    """Mean and deviation of pixels, if the folder has them."""
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
