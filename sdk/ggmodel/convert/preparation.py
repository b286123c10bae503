"""How a checkpoint prepares pictures, sounds and films: preprocessor_config.json and the files
beside it, as objects of its config.

`hf=` reaches them by the names in `DOCUMENTS`: `kv(..., hf="preprocessor:size.longest_edge")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..model.config import DOCUMENTS
from ..reading import read_json
from .keys import reference_table

# The parts of a processor_config.json that stand in files of their own in older folders.
_PARTS = {"preprocessor": "image_processor", "features": "feature_extractor"}
_PARTS |= {"video": "video_processor"}
# Document → the key that names its class, and how the class's name ends.
_CLASSES = {
    "preprocessor": ("image_processor_type", "ImageProcessor"),
    "features": ("feature_extractor_type", "FeatureExtractor"),
    "video": ("video_processor_type", "VideoProcessor"),
    "processor": ("processor_class", "Processor"),
}


def read_preparation(folder: Path) -> dict[str, dict[str, Any]]:
    """The documents of a folder, without nulls: "preprocessor:" → its keys. As in transformers a
    part of processor_config.json comes before a file of its own, and preprocessor_config.json
    takes the place of files that are missing.

    Raises:
        FormatError: a file is no JSON, or a part of one no object.
    """
    files = {name: folder / file for name, file in DOCUMENTS.items()}
    said = {name: read_json(path) for name, path in files.items() if path.is_file()}
    processor, common = said.get("processor", {}), said.get("preprocessor", {})
    found: dict[str, dict[str, Any]] = {}
    for name, part in _PARTS.items():
        inner = processor.get(part)
        if inner is not None and not isinstance(inner, dict):
            raise FormatError(f"{files['processor']}: {part} should be an object")
        found[name] = inner or (said.get(name) if name == "video" else None) or common
    found["preprocessor"] = found["preprocessor"] or found["features"]  # a model that only hears
    found["processor"] = {k: v for k, v in processor.items() if k not in _PARTS.values()}
    found["generation"] = said.get("generation", {})
    present = {name: {k: v for k, v in d.items() if v is not None} for name, d in found.items()}
    return {f"{name}:": document for name, document in present.items() if document}


def with_preparation(hf: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A config with documents, and the defaults of transformers' processors in these.

    Returns:
        the config, and the keys that the processors read: "preprocessor:size.height" → default.
    """
    config, reference = dict(hf), dict[str, Any]()
    for name, (key, end) in _CLASSES.items():
        document = hf.get(f"{name}:")
        if not isinstance(document, Mapping):
            continue
        keys = _keys(hf, document.get(key), end)
        known = {k: v for k, v in keys.items() if v is not None}
        config[f"{name}:"] = full = {**known, **document}
        for key, default in keys.items():
            values = dict(_leaves(f"{name}:{key}", full.get(key)))
            defaults = dict(_leaves(f"{name}:{key}", default))
            reference |= {path: defaults.get(path) for path in (*defaults, *values)}
    return config, reference


def _keys(hf: Mapping[str, Any], named: Any, end: str) -> Mapping[str, Any]:
    """The keys that a processor reads: the one that its file names, or else the model's."""
    table = reference_table("processors")
    classes = hf.get("architectures")
    classes = classes if isinstance(classes, list) else [classes]
    usual = (p for c in classes if isinstance(c, str) for p in table["of"].get(c, ()))
    names = [str(named).removesuffix("Fast").removesuffix("Pil"), *usual]
    fitting = (n for n in names if n.endswith(end) and (end != "Processor" or _plain(n)))
    return next((table["keys"][n] for n in fitting if n in table["keys"]), {})


def _plain(name: str) -> bool:
    return not name.endswith(("ImageProcessor", "VideoProcessor"))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value
