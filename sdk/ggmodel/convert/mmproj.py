"""Metadata for llama.cpp's two files: the text model, and its towers (mmproj).

All of it follows from the declaration. In the second file a tensor has the second name of its
field, a hyperparameter the alternate key that begins with "clip."; `Model.clip` has further keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Unsupported
from ..model import Model, config_class
from ..model.config import key_fields

_KEYS = ("vision.", "audio.", "mm.")


def text_metadata(metadata: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The architecture's metadata without the keys of towers, as those of the architecture of the
    text's file."""
    own = f"{metadata['general.architecture']}."
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        bare = key.removeprefix(own)
        if not bare.startswith(_KEYS):
            found[key if bare == key else f"{text}.{bare}"] = value
    return found | {"general.architecture": text}


def clip_metadata(
    architecture: type[Model], config: Any, metadata: Mapping[str, Any], text: str
) -> dict[str, Any]:
    """The metadata of the mmproj file.

    Args:
        text: the architecture of the file beside it.

    Raises:
        Unsupported: the architecture has no such file.
    """
    if architecture.clip is None:
        raise Unsupported(
            f"{architecture.architecture} has no layout with a file of its own for towers; "
            "convert it into one file, without --mmproj"
        )
    name = metadata["general.architecture"]
    found: dict[str, Any] = {
        "general.architecture": "clip",
        "clip.projector_type": architecture.pairs.get(text, name),
    }
    unheard = not any(key.startswith(f"{name}.audio.") for key in metadata)
    for field, tag, kind, _ in key_fields(config_class(architecture)):
        key = next((n for n in tag.names if n.startswith("clip.")), None)
        value = getattr(config, field)
        if key is not None and key.startswith("clip.audio.") and unheard:
            continue
        if key is not None and (kind is not str or value != tag.default):
            found[key] = value
    width = metadata[f"{name}.embedding_length"]
    if found.get("clip.audio.block_count"):
        found |= {"clip.has_audio_encoder": True, "clip.audio.projection_dim": width}
    if any(key.startswith("clip.vision.") for key in found):
        found |= _of_vision(width, found)
    for key, value in architecture.clip.items():
        found[f"clip.{key}"] = value(config) if callable(value) else value
    return {k: v for k, v in found.items() if v is not None}


def _of_vision(width: int, said: Mapping[str, Any]) -> dict[str, Any]:
    activation = said.get("clip.vision.hidden_activation", "gelu")
    found = {
        "clip.has_vision_encoder": True,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
        "clip.vision.projection_dim": width,
        # As llama.cpp's flags say it; with neither it computes quick_gelu.
        "clip.use_gelu": activation.startswith("gelu"),
    }
    found |= {"clip.use_silu": True} if activation in ("silu", "swish") else {}
    return {**found, **said}
