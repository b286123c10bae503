"""Configurations of checkpoints, normalised; a checkpoint in memory as a source of tensors.

preprocessor_config.json and the files beside it become objects of the config; `hf=` reaches
them by the names in `DOCUMENTS`: `kv(..., hf="preprocessor:size.longest_edge")`. The tensors are
the object "tensors:".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, FormatError
from ..gguf_file import DType, MemorySource
from ..gguf_file.values import KeyValues
from ..model import Model, config_class
from ..model.config import DOCUMENTS, key_fields
from ..model.operations import Computed, Indices, Stack
from ..reading import read_json
from .declaration import PlannedTensor, plan
from .keys import Watched, listed_classes, recorded, reference_table, unread_keys, with_defaults

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

_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
# How the keys end that a model with a `text_config` has for itself.
_OF_THE_WHOLE = ("architectures", "model_type", "tie_word_embeddings", "_token_id")


def read_preparation(folder: Path) -> dict[str, dict[str, Any]]:
    """The documents of a folder, without nulls: "preprocessor:" → its keys. As in transformers a
    part of processor_config.json comes before a file of its own, and preprocessor_config.json
    takes the place of files that are missing.

    Raises:
        FormatError: a file is no JSON, or a part of one no object.
    """
    files = {name: folder / file for name, file in DOCUMENTS.items()}
    contents = {name: read_json(path) for name, path in files.items() if path.is_file()}
    processor, common = contents.get("processor", {}), contents.get("preprocessor", {})
    documents: dict[str, dict[str, Any]] = {}
    for name, part in _PARTS.items():
        inner = processor.get(part)
        if inner is not None and not isinstance(inner, dict):
            raise FormatError(f"{files['processor']}: {part} should be an object")
        documents[name] = inner or (contents.get(name) if name == "video" else None) or common
    # A model that only hears has the latter alone.
    documents["preprocessor"] = documents["preprocessor"] or documents["features"]
    documents["processor"] = {k: v for k, v in processor.items() if k not in _PARTS.values()}
    documents["generation"] = contents.get("generation", {})
    present = {name: {k: v for k, v in d.items() if v is not None} for name, d in documents.items()}
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
        usual = {k: v for k, v in keys.items() if v is not None}
        config[f"{name}:"] = full = {**usual, **document}
        for key, default in keys.items():
            values = dict(_leaves(f"{name}:{key}", full.get(key)))
            defaults = dict(_leaves(f"{name}:{key}", default))
            reference |= {path: defaults.get(path) for path in (*defaults, *values)}
    return config, reference


def _keys(hf: Mapping[str, Any], named: Any, end: str) -> Mapping[str, Any]:
    """The keys that a processor reads: the one that its file names, or else the model's."""
    table = reference_table("processors")
    usual = (p for c in listed_classes(hf) for p in table["of"].get(c, ()))
    names = [str(named).removesuffix("Fast").removesuffix("Pil"), *usual]
    others = ("ImageProcessor", "VideoProcessor") if end == "Processor" else ()
    fitting = (n for n in names if n.endswith(end) and not n.endswith(others))
    return next((table["keys"][n] for n in fitting if n in table["keys"]), {})


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value


def normalize(hf: Mapping[str, Any]) -> dict[str, Any]:
    """A config in one spelling. `rope_theta`, `partial_rotary_factor` and `rope_scaling` stand
    beside each other (newer transformers nest all in `rope_parameters`); nulls are left out. A
    table of `rope_parameters` by kind of layer stays as it is; otherwise the rest of it is
    `rope_scaling`. The keys of `text_config`, which models with images have, are at the top as
    `with_text` puts them there.

    Raises:
        ConfigError: one of these is no object.
    """
    hf = with_text(hf)
    config = {k: v for k, v in hf.items() if v is not None}
    rope = dict(_object(hf, "rope_parameters"))
    if not rope or any(isinstance(v, Mapping) for v in rope.values()):
        return config
    del config["rope_parameters"]
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is not None:
            config[key] = rope[key]  # as in transformers
        rope.pop(key, None)
    if rope.keys() - {"rope_type"} or rope.get("rope_type", "default") != "default":
        config.setdefault("rope_scaling", rope)
    return config


def with_text(hf: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the keys of its `text_config` at the top, too. The text's values count, nulls
    included, as in transformers and llama.cpp's converter; a rope of the text leaves nothing of
    another at the top. The model's own are its names, whether its head is its embedding, and ids
    of tokens (transformers, GenerationConfig.from_model_config), unless they are null there.

    Raises:
        ConfigError: `text_config` is no object.
    """
    text = _object(hf, "text_config")
    other = _ROPE if text.keys() & set(_ROPE) else ()
    top = {k: v for k, v in hf.items() if k not in other}
    whole = {k: v for k, v in top.items() if v is not None and k.endswith(_OF_THE_WHOLE)}
    return {**top, **text, **whole}


def _object(hf: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = hf.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"config.json: {key} should be an object, but is {value!r:.40}")
    return value or {}


def metadata_of(architecture: type[Model], hf: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture's metadata of a normalized config: the keys of the config, and defaults
    computed from other hyperparameters.

    Raises:
        ConfigError: a hyperparameter is missing, or has the wrong type.
    """
    metadata: dict[str, Any] = {"general.architecture": architecture.architecture}
    keys = KeyValues(metadata, "config.json")
    declared = config_class(architecture)
    metadata |= {keys.full(k): v for k, v in declared.from_hf(hf).items()}
    config = declared.read(keys, hf)
    for name, tag, kind, _ in key_fields(declared):
        refers = isinstance(tag.default, str) and kind is not str
        value = getattr(config, name) if refers or callable(tag.default) else None
        if value is not None:
            metadata.setdefault(keys.full(tag.names[0]), value)
    return metadata


def read_config(architecture: type[Model], hf: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """`metadata_of` a normalized config, and the hyperparameters that it gives."""
    metadata = metadata_of(architecture, hf)
    return metadata, config_class(architecture).read(KeyValues(metadata, "config.json"))


def from_hf(
    architecture: type[Model],
    hf: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    store: Callable[[str, np.ndarray], np.ndarray | tuple[DType, tuple[int, ...], bytes]]
    | None = None,
    *,
    strict: bool = True,
) -> MemorySource:
    """A tensor source of a checkpoint held in memory.

    Args:
        hf: the config.json; further files as `read_preparation` gives them.
        store: maps a GGUF tensor's name and float32 values to its stored form; None keeps them.
        strict: tensors that no field reads are errors, otherwise a warning.

    Raises:
        LoadError: required fields without a source, or tensors that no field reads.
    """
    reference = recorded(hf)
    raw, prepared = with_preparation(hf)
    full = with_defaults(architecture, raw, normalize(raw), reference)
    hf = Watched({**full, "tensors:": tensors})
    metadata, config = read_config(architecture, hf)
    made: dict[str, Any] = {}
    fit = plan(architecture, config, tensors)
    for entry in fit.entries:
        value = value_of_entry(entry, config, hf, tensors.__getitem__)
        if value is None:
            continue
        if entry.join is not None and entry.join.dtype is not None:
            shape = entry.join.shape([tensors[s].shape for s in entry.sources], config)
            made[entry.name] = entry.join.dtype, shape[::-1], value.tobytes()
        else:
            whole = isinstance(entry.op, Indices)
            made[entry.name] = value if store is None or whole else store(entry.name, value)
    both = {**(reference or {}), **prepared}
    fit.report.add_unread({}, unread_keys(architecture, raw, hf, both))
    fit.report.check(strict)
    return MemorySource(metadata, made, name="checkpoint")


def value_of_entry(
    entry: PlannedTensor, config: Any, hf: Mapping[str, Any], read: Callable[[str], np.ndarray]
) -> np.ndarray | None:
    """The GGUF tensor of an entry; None if it is not needed.

    Args:
        read: gives a tensor of the checkpoint by its name.

    Raises:
        ConfigError: a computed tensor cannot be computed from the config.
    """
    if isinstance(entry.join, Computed):
        try:
            return entry.join.function(hf, config)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{entry.name} cannot be made of config.json: {error!r}") from error
    parts = (_widened(read(s)) for s in entry.sources)
    if entry.join is None:
        value = next(parts)
    elif isinstance(entry.join, Stack):
        value = _stacked(parts, len(entry.sources))
    else:
        value = entry.join.join([*parts], config)
    return value if entry.op is None else entry.op.to_gguf(value, config)


def _stacked(parts: Iterator[np.ndarray], n: int) -> np.ndarray:
    """n parts in one array; each is read once the one before it has its place."""
    first = next(parts)
    stack = np.empty((n, *first.shape), first.dtype)
    stack[0] = first
    for i, part in enumerate(parts, 1):
        if part.shape != first.shape:
            raise ValueError(f"{list(part.shape)} cannot be stacked on {list(first.shape)}")
        stack[i] = part
    return stack


def _widened(x: np.ndarray) -> np.ndarray:
    """Float16 as float32, so that operations round once, when the result is stored."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
