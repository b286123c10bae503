"""Activations of a reference, saved as NumPy's .npz without pickles."""

from __future__ import annotations

import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import atomic_write
from ..errors import FormatError

_FORMAT = 1
_RATIO = 64  # the most bytes that a byte of a file may unpack to: numbers hardly shrink
_SPARE = 16 << 20
_TEXTS = ("config", "tensors", "versions", "image", "order", "others")


@dataclass
class Activations:
    """The inputs and results of a reference's modules.

    Attributes:
        config: config.json of the checkpoint.
        tensors: names and shapes (numpy order) in the checkpoint.
        versions: of the libraries.
        inputs: of the whole model, by keyword; `input_ids` [n].
        image: data that belongs to the pixels in `inputs`.
        order: modules by their names in the checkpoint, in the order of returning; "" is the whole.
        others: modules with weights that were called without being recorded, by the reference's
            names.
        given, results: module → its input, its result; float32. Further results of the same size
            are called "name#1", …
    """

    config: dict[str, Any]
    tensors: dict[str, list[int]]
    versions: dict[str, str]
    inputs: dict[str, np.ndarray]
    image: dict[str, Any] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    given: dict[str, np.ndarray] = field(default_factory=dict)
    results: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """The prompt's token ids, placeholders of images included."""
        return self.inputs["input_ids"].reshape(-1).tolist()

    def save(self, path: str | Path) -> None:
        """Writes a file, shared arrays once; raises as `atomic_write`."""
        numbers: dict[int, tuple[int, list[int]]] = {}
        arrays: list[np.ndarray] = []
        size = 0
        about: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        for kind in ("given", "results"):
            about[kind] = {}
            for name, array in getattr(self, kind).items():
                if id(array) not in numbers:
                    numbers[id(array)] = size, list(array.shape)
                    arrays.append(array.reshape(-1))
                    size += array.size
                about[kind][name] = numbers[id(array)]
        inputs: dict[str, Any] = {f"input.{k}": v for k, v in self.inputs.items()}
        text = np.array(json.dumps(about | {"format": _FORMAT}))
        values = np.concatenate([*arrays, np.zeros(0, np.float32)])
        with atomic_write(path) as file:
            np.savez_compressed(file, about=text, values=values, **inputs)

    @classmethod
    def load(cls, path: str | Path) -> Activations:
        """Reads a file.

        Raises:
            FormatError: the file is damaged, or not by `save`.
        """
        arrays = read_npz(path)
        try:
            about = json.loads(str(arrays.pop("about")))
            if about["format"] != _FORMAT:
                raise FormatError(
                    f"{path} has activations of format {about['format']!r}, this version reads "
                    f"{_FORMAT}; save them again"
                )
            inputs = {
                k.removeprefix("input."): v for k, v in arrays.items() if k.startswith("input.")
            }
            found = cls(**{k: about[k] for k in _TEXTS}, inputs=inputs)
            values = arrays["values"].astype(np.float32, copy=False)
            for kind in ("given", "results"):
                for name, (start, shape) in about[kind].items():
                    if start < 0 or min(shape, default=1) < 0:
                        raise ValueError(f"{name} lies at {start}")
                    part = values[start : start + math.prod(shape)]
                    getattr(found, kind)[name] = part.reshape(shape)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise _broken(path, f"a part is missing: {type(error).__name__}: {error}") from None
        _check(found, path)
        return found


def _check(found: Activations, path: str | Path) -> None:
    """Raises `FormatError` if a part has the wrong type."""
    kinds = {"order": list, "others": list}
    ids = found.inputs.get("input_ids")
    if (
        not all(isinstance(getattr(found, name), kinds.get(name, dict)) for name in _TEXTS)
        or not all(isinstance(text, str) for text in (*found.tensors, *found.order, *found.others))
        or not all(isinstance(text, str) for text in found.versions.values())
        or ids is None
        or ids.dtype.kind not in "iu"
        or not ids.size
    ):
        raise _broken(path, "a part has the wrong type")


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an untrusted .npz: numbers and text, nothing unpickled, its size bounded.

    Raises:
        FormatError: the file is damaged, or something else.
    """
    found: dict[str, np.ndarray] = {}
    try:
        most = _RATIO * Path(path).stat().st_size + _SPARE
        with zipfile.ZipFile(path) as file:
            for info in file.infolist():
                most -= info.file_size
                if most < 0 or not info.filename.endswith(".npy"):
                    raise _broken(path, f"{info.filename!r:.60} is no array, or too large")
        with np.load(path, allow_pickle=False) as arrays:
            found = dict(arrays)
        for name, array in found.items():
            # Members that numpy does not know come as bytes.
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "bfiuU":
                raise _broken(path, f"{name!r:.60} is no array of numbers, truths or text")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FormatError(f"{path}: {reason}; give a file that --save-reference wrote") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        SyntaxError,
        tokenize.TokenError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
    ) as error:
        if isinstance(error, FormatError):
            raise
        raise _broken(path, str(error)) from None
    return found


def _broken(path: str | Path, reason: str) -> FormatError:
    return FormatError(f"{path} holds no readable activations: {reason}")


def same_prompt(found: Activations, ids: Mapping[str, Any] | list[int], path: str) -> None:
    """Raises `FormatError` if activations belong to another prompt."""
    if found.ids != list(ids):
        shown = found.ids[:8]
        raise FormatError(
            f"{path} has activations of another prompt, tokens {shown}"
            f"{' …' * (len(found.ids) > len(shown))}; leave the prompt out to use that one"
        )
