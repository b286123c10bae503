"""A checkpoint held in memory as a source of GGUF tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..gguf_file import DType, MemorySource
from ..gguf_file.metadata import KeyValues
from ..model import Model, config_class
from ..model.config import key_fields
from ..model.operations import Computed
from .declaration import Entry, plan
from .keys import Watched, recorded, unread_keys, with_defaults
from .preparation import with_preparation


def normalize(hf: Mapping[str, Any]) -> dict[str, Any]:
    """A config in one spelling. `rope_theta`, `partial_rotary_factor` and `rope_scaling` stand
    beside each other (newer transformers nest all in `rope_parameters`); nulls are left out. A
    table of `rope_parameters` by kind of layer stays as it is; otherwise the rest of it is
    `rope_scaling`. The keys of `text_config`, which models with images have, are
    copied to the top.

    Raises:
        ConfigError: one of these is no object.
    """
    hf = {**_object(hf, "text_config"), **hf}
    config = {k: v for k, v in hf.items() if v is not None}
    rope = dict(_object(hf, "rope_parameters"))
    if not rope or any(isinstance(v, Mapping) for v in rope.values()):
        return config
    del config["rope_parameters"]
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is not None:
            config.setdefault(key, rope[key])
        rope.pop(key, None)
    if rope.keys() - {"rope_type"} or rope.get("rope_type", "default") != "default":
        config.setdefault("rope_scaling", rope)
    return config


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
    given, prepared = with_preparation(hf)
    hf = Watched(with_defaults(architecture, given, normalize(given), reference))
    metadata, config = read_config(architecture, hf)
    made: dict[str, Any] = {}
    fit = plan(architecture, config, tensors)
    for entry in fit.entries:
        value = value_of_entry(entry, config, hf, tensors)
        if value is None:
            continue
        if entry.join is not None and entry.join.dtype is not None:
            shape = entry.join.shape([tensors[s].shape for s in entry.sources], config)
            made[entry.name] = entry.join.dtype, shape[::-1], value.tobytes()
        else:
            made[entry.name] = value if store is None else store(entry.name, value)
    both = {**(reference or {}), **prepared}
    fit.report.add_unread({}, unread_keys(architecture, given, hf, both))
    fit.report.check(strict)
    return MemorySource(metadata, made, name="checkpoint")


def value_of_entry(
    entry: Entry, config: Any, hf: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """The GGUF tensor of an entry; None if it is not needed.

    Raises:
        ConfigError: a computed tensor cannot be computed from the config.
    """
    if isinstance(entry.join, Computed):
        try:
            return entry.join.function(hf)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{entry.name} cannot be made of config.json: {error!r}") from error
    parts = [_widened(tensors[s]) for s in entry.sources]
    value = parts[0] if entry.join is None else entry.join.join(parts, config)
    return value if entry.op is None else entry.op.to_gguf(value, config)


def _widened(x: np.ndarray) -> np.ndarray:
    """Float16 as float32, so that operations round once, when the result is stored."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
