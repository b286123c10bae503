"""Metadata of converted files: `general.*`, the projector file (mmproj).

The second file's metadata follows from the declaration: a tensor has the second name of its
field, a hyperparameter the alternate key that begins with "clip."; `Model.clip` has further
keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ..bounds import limits
from ..errors import FormatError, Unsupported
from ..gguf_file import DType, TensorInfo
from ..model import Model, config_class
from ..model.config import key_fields
from ..reading import decoded, read_file, read_json, too_large
from .tensor_types import RECIPES, Recipe

_KEYS = ("vision.", "audio.", "mm.")


def text_metadata(metadata: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The architecture's metadata without the keys of towers, as those of the architecture of the
    text's file."""
    own = f"{metadata['general.architecture']}."
    kept: dict[str, Any] = {}
    for key, value in metadata.items():
        bare = key.removeprefix(own)
        if not bare.startswith(_KEYS):
            kept[key if bare == key else f"{text}.{bare}"] = value
    return kept | {"general.architecture": text}


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
    clip: dict[str, Any] = {
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
            clip[key] = value
    width = metadata[f"{name}.embedding_length"]
    if clip.get("clip.audio.block_count"):
        clip |= {"clip.has_audio_encoder": True, "clip.audio.projection_dim": width}
    if any(key.startswith("clip.vision.") for key in clip):
        clip |= _of_vision(width, clip)
    for key, value in architecture.clip.items():
        clip[f"clip.{key}"] = value(config) if callable(value) else value
    return {k: v for k, v in clip.items() if v is not None}


def _of_vision(width: int, clip: Mapping[str, Any]) -> dict[str, Any]:
    activation = clip.get("clip.vision.hidden_activation", "gelu")
    vision = {
        "clip.has_vision_encoder": True,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
        "clip.vision.projection_dim": width,
        # As llama.cpp's flags say it; with neither it computes quick_gelu.
        "clip.use_gelu": activation.startswith("gelu"),
    }
    vision |= {"clip.use_silu": True} if activation in ("silu", "swish") else {}
    return {**vision, **clip}


QUANTIZATION_VERSION = 2  # of ggml's block formats
_NAME = "([0-9A-Za-z_-]+)"  # as PyYAML reads it
_ANCHOR, _ALIAS = re.compile("&" + _NAME), re.compile(r"\*" + _NAME)
_MOST_ALIASES = 4


def describe(
    folder: Path,
    kind: str,
    metadata: Mapping[str, Any],
    tensors: Iterable[TensorInfo],
    recipe: Recipe | None,
) -> dict[str, Any]:
    """The metadata of a file: `general.*` around that of its architecture. As in llama.cpp's
    converter it comes from config.json, generation_config.json, README.md and the folder's name.

    Args:
        kind: `general.type`, "model" or "mmproj".
        recipe: None where tensors keep their types.

    Raises:
        FormatError: one of these files cannot be read.
    """
    infos = list(tensors)
    in_blocks = any(t.dtype is DType.MXFP4 for t in infos)  # as the checkpoint has them
    if recipe is None or (in_blocks and not recipe.dtype.is_quantized):
        number = _file_type(infos)
    else:
        number = recipe.file_type
    return {
        "general.architecture": metadata["general.architecture"],
        "general.type": kind,
        **_general_keys(folder, infos),
        **metadata,
        "general.file_type": number,
        "general.quantization_version": QUANTIZATION_VERSION,
    }


def _general_keys(folder: Path, infos: list[TensorInfo]) -> dict[str, Any]:
    from gguf import GGUFValueType, GGUFWriter, Metadata, size_label

    total, shared, expert, experts = _parameters(infos)
    folder = folder.resolve()
    generation = _check_files(folder)
    try:
        card = Metadata.load(None, folder, None, total)
    except Exception as error:  # of YAML and JSON, and whatever odd values lead to
        raise FormatError(
            f"{folder}: README.md, config.json or generation_config.json cannot be read: {error}"
        ) from error
    card.name = card.name or folder.name
    if card.size_label is None and total > 0:
        card.size_label = size_label(total, shared, expert, experts)
    if card.sampling_penalty_repeat is None:  # the package knows another name for it
        card.sampling_penalty_repeat = generation.get("repetition_penalty")
    writer = GGUFWriter(None, "")
    try:
        card.set_gguf_meta_model(writer)
        keys = {}
        for key, value in writer.kv_data[0].items():
            keys[key] = value.value
            if value.type == GGUFValueType.INT32:
                keys[key] = np.int32(int(value.value))
            elif value.type == GGUFValueType.FLOAT32:
                keys[key] = _float32(key, value.value)
            elif value.type == GGUFValueType.ARRAY:
                # Tags and languages: YAML reads 3 and no as other things than texts.
                keys[key] = [str(v) if isinstance(v, int | float) else v for v in value.value]
    except Exception as error:
        raise FormatError(f"{folder}: README.md or generation_config.json: {error}") from error
    keys.pop("general.architecture", None)
    return keys


def _float32(key: str, value: Any) -> np.float32:
    """A number of generation_config.json, whatever number JSON made of it."""
    if isinstance(value, bool):
        raise TypeError(f"{key} is {value}, no number")
    with np.errstate(over="ignore"):
        return np.float32(float(value))


def _check_files(folder: Path) -> dict[str, Any]:
    """generation_config.json, after bounding the cost of the files that the gguf package reads by
    itself."""
    _, generation = (
        read_json(folder / name) if (folder / name).exists() else {}
        for name in ("config.json", "generation_config.json")
    )
    _check_card(folder / "README.md")
    return generation


def _check_card(card: Path) -> None:
    if not card.exists():
        return
    lines = decoded(read_file(card, "text_file_bytes"), str(card)).splitlines()
    header = "\n".join(takewhile(lambda line: line != "---", lines[1:]))
    if not lines or lines[0] != "---":
        return
    if len(header) > limits.model_card_bytes:
        size = f"a header of {len(header):,} letters"
        raise FormatError(too_large(str(card), size, "model_card_bytes"))
    # An alias repeats what it names, so that a chain of them makes thousands of millions of lines.
    # Words between stars that no anchor names are Markdown, or an error of YAML.
    anchors = set(_ANCHOR.findall(header))
    if sum(name in anchors for name in _ALIAS.findall(header)) > _MOST_ALIASES:
        raise FormatError(
            f"{card} has more than {_MOST_ALIASES} aliases (*name) in its header; write them out"
        )


def _parameters(infos: list[TensorInfo]) -> tuple[int, int, int, int]:
    """(total, used by every token, of one expert, experts)."""
    total = sum(t.n_elements for t in infos)
    stacks = [t for t in infos if "_exps." in t.name and len(t.shape) > 2]
    experts = sum(t.shape[2] for t in stacks) // len(stacks) if stacks else 0
    shared = total - sum(t.n_elements for t in stacks)
    return total, shared, sum(t.n_elements // t.shape[2] for t in stacks), experts


def _file_type(infos: list[TensorInfo]) -> int:
    """The number of the type that most parameters have."""
    sizes: Counter[DType] = Counter()
    for t in infos:
        sizes[t.dtype] += t.n_elements
    dtype = sizes.most_common(1)[0][0] if sizes else DType.F32
    numbers = (r.file_type for r in RECIPES.values() if r.dtype is dtype)
    return next(numbers, RECIPES["f32"].file_type)
