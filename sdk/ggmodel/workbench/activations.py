"""Activations of a reference, saved as .npz without pickles; comparison of arrays."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, LoadError
from ..gguf_file import DType
from ..storage import atomic_write
from .rounding import FACTOR
from .routers import Router, from_arrays, to_arrays

_CHUNK = 1 << 22  # numbers looked at together
_BESIDE = 3  # numbers to either side of the worst that are shown

# Sums of float32 in another order: 3e-13 is usual, no healthy model reaches this.
EXACT = 1e-8


@dataclass(frozen=True)
class Errors:
    """The distance of a tensor from the reference's.

    Attributes:
        nmse: squared error divided by the squares of the reference.
        factor: the reference's tensor is about `factor` times ours.
        apart: NMSE that is left after ours has been multiplied by it.
        largest: the largest error; relative: the same divided by the reference's largest number.
        at: index of the largest error, in ggml order.
        start: index along dim 0 of the first sample.
        ours, theirs: samples, the numbers around the largest error.
    """

    nmse: float
    factor: float
    apart: float
    largest: float
    relative: float
    at: tuple[int, ...]
    start: int
    ours: list[float]
    theirs: list[float]


def factor_of(e: Errors | None) -> float | None:
    """The factor from ours to the reference's, if it explains the error: less than a thousandth is
    left then."""
    if e is None or not math.isfinite(e.nmse) or e.apart > 1e-3 * e.nmse:
        return None
    return e.factor


def errors(ours: np.ndarray, theirs: np.ndarray) -> Errors:
    """Compares arrays of the same shape; NaN on either side is an infinite error."""
    a, b = ours.reshape(-1), theirs.reshape(-1)
    squares = of_reference = of_ours = products = largest = 0.0
    worst = 0
    with np.errstate(all="ignore"):
        for lo in range(0, len(a), _CHUNK):
            x, y = (v[lo : lo + _CHUNK].astype(np.float64) for v in (a, b))
            distance = np.abs(x - y)
            distance[np.isnan(distance)] = np.inf
            k = int(distance.argmax())
            if distance[k] > largest:
                largest, worst = float(distance[k]), lo + k
            squares += float(distance @ distance)
            of_reference += float(y @ y)
            of_ours, products = of_ours + float(x @ x), products + float(x @ y)
    reference = float(np.abs(b).max(initial=0))
    column = worst % ours.shape[-1]
    row = slice(worst - column, worst - column + ours.shape[-1])
    start = max(0, column - _BESIDE)
    shown = slice(start, start + 2 * _BESIDE + 1)
    return Errors(
        nmse=_ratio(squares, of_reference),
        factor=(factor := _ratio(products, of_ours)),
        apart=max(0.0, 1 - factor * _ratio(products, of_reference)) if factor else math.inf,
        largest=largest,
        relative=_ratio(largest, reference),
        at=tuple(int(i) for i in np.unravel_index(worst, ours.shape))[::-1],
        start=start,
        ours=a[row][shown].tolist(),
        theirs=b[row][shown].tolist(),
    )


def _ratio(a: float, b: float) -> float:
    if math.isfinite(a) and math.isfinite(b) and b > 0:
        return a / b
    return 0.0 if a == 0 else math.inf


def laid_out(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | str:
    """The reference's array in our shape (numpy order), or the reason why that is impossible.

    Batch dims of 1 are dropped, neighbouring dims may be merged, and heads may stand before tokens.
    Where two readings fit, none is taken.
    """
    if theirs.size != math.prod(shape):
        return f"the reference's is {_listed(theirs.shape)}"
    plain = theirs.reshape([n for n in theirs.shape if n > 1] or [1])
    target = tuple(n for n in shape if n > 1) or (1,)
    turned = plain.swapaxes(0, 1) if plain.ndim == 3 else plain
    if plain.ndim == 3 and plain.shape == target and turned.shape == target:
        n = target[0]
        return f"dims 1 and 2 are both {n}: tokens or heads? take a prompt of another length"
    if _merges(plain.shape, target):
        return plain.reshape(shape)
    if turned.shape == target:
        return turned.reshape(shape)
    return f"the reference's is {_listed(theirs.shape)}"


def _merges(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether merging neighbouring dims turns one shape into the other."""
    first, second = ({math.prod(s[:i]) for i in range(len(s) + 1)} for s in (a, b))
    return first <= second or second <= first


def _listed(shape: tuple[int, ...]) -> str:
    return str(list(shape[::-1]))


def _bits(dtype: DType) -> float:
    """The bits of a number in a quantised type."""
    return 8 * dtype.type_size / dtype.block_size


_FORMAT = 3
_RATIO = 64  # the most bytes that a byte of a file may unpack to: numbers hardly shrink
_SPARE = 16 << 20
_ARRAYS = {"given": "module_inputs", "results": "results"}  # in a file → here
_TEXTS = ("config", "tensors", "versions", "kind", "image", "order", "others", "gelus", "rounding")


@dataclass
class Activations:
    """The inputs and results of a reference's modules.

    Attributes:
        config: config.json of the checkpoint.
        tensors: names and shapes (numpy order) in the checkpoint.
        versions: of the libraries.
        inputs: of the whole model, by keyword; `input_ids` [n].
        kind: of the item in `inputs`, such as "image"; "" if they are text alone.
        image: data that belongs to the item.
        order: modules by their names in the checkpoint, in the order of returning; "" is the whole.
        others: modules with weights that were called without being recorded, by the reference's
            names.
        module_inputs, results: module → its input, its result; float32. Further results of the
            same size are called "name#1", …
        gelus: module → how often it computes the error function, and tanh; that of a GELU included.
        routers: of experts, in the order of execution.
        rounding: type of weights → module → NMSE of its result with weights of that type, and with
            all that ggml rounds because of it; the same of the row that this moves furthest.
    """

    config: dict[str, Any]
    tensors: dict[str, list[int]]
    versions: dict[str, str]
    inputs: dict[str, np.ndarray]
    kind: str = ""
    image: dict[str, Any] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    module_inputs: dict[str, np.ndarray] = field(default_factory=dict)
    results: dict[str, np.ndarray] = field(default_factory=dict)
    gelus: dict[str, list[int]] = field(default_factory=dict)
    routers: list[Router] = field(default_factory=list)
    rounding: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def bound(self, name: str, types: Collection[DType], row: bool = False) -> float:
        """The NMSE that rounding explains in a module of a model with weights of some types.

        Args:
            row: of any row alone.

        Raises:
            LoadError: it has been run neither with a type, nor, of quantised ones, with another.
        """
        moved = (self._moved(name, dtype, row) for dtype in types)
        return EXACT + FACTOR * max(moved, default=0.0)

    def _moved(self, name: str, dtype: DType, row: bool) -> float:
        if dtype.name in self.rounding:
            return self.rounding[dtype.name].get(name, [0.0, 0.0])[row]
        ran = [DType[other] for other in self.rounding if DType[other].is_quantized]
        if not ran or not dtype.is_quantized:
            raise LoadError(
                f"the reference was not run with weights in {dtype}; run it again, with the "
                "checkpoint and this file (--save-reference)"
            )
        # A bit less makes steps twice as wide.
        near = min(ran, key=lambda other: abs(_bits(other) - _bits(dtype)))
        return min(1.0, self._moved(name, near, row) * 4 ** (_bits(near) - _bits(dtype)))

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
        for kind, attribute in _ARRAYS.items():
            about[kind] = {}
            for name, array in getattr(self, attribute).items():
                if id(array) not in numbers:
                    numbers[id(array)] = size, list(array.shape)
                    arrays.append(array.reshape(-1))
                    size += array.size
                about[kind][name] = numbers[id(array)]
        inputs: dict[str, Any] = {f"input.{k}": v for k, v in self.inputs.items()}
        inputs |= to_arrays(self.routers)
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
            activations = cls(**{k: about[k] for k in _TEXTS}, inputs=inputs)
            values = arrays["values"].astype(np.float32, copy=False)
            for kind, attribute in _ARRAYS.items():
                for name, (start, shape) in about[kind].items():
                    if start < 0 or min(shape, default=1) < 0:
                        raise ValueError(f"{name} lies at {start}")
                    part = values[start : start + math.prod(shape)]
                    getattr(activations, attribute)[name] = part.reshape(shape)
            activations.routers = from_arrays(arrays)
        except FormatError:
            raise
        except Exception as error:  # whatever the wrong parts lead to
            raise _broken(path, f"a part is missing: {type(error).__name__}: {error}") from None
        _check(activations, path)
        return activations


def _check(record: Activations, path: str | Path) -> None:
    """Raises `FormatError` if a part has the wrong type."""
    kinds = {"order": list, "others": list, "kind": str}
    ids = record.inputs.get("input_ids")
    gelus = record.gelus.values() if isinstance(record.gelus, dict) else ()
    rounding = record.rounding if isinstance(record.rounding, dict) else {}
    moved = [n for m in rounding.values() for n in (m.values() if isinstance(m, dict) else [m])]
    if (
        not all(isinstance(getattr(record, name), kinds.get(name, dict)) for name in _TEXTS)
        or not all(
            isinstance(text, str) for text in (*record.tensors, *record.order, *record.others)
        )
        or not all(isinstance(text, str) for text in record.versions.values())
        or not all(isinstance(n, list) and list(map(type, n)) == [int] * 2 for n in gelus)
        or not all(name in DType.__members__ for name in rounding)
        or not all(isinstance(n, list) and list(map(type, n)) == [float] * 2 for n in moved)
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
    members: dict[str, np.ndarray] = {}
    try:
        most = _RATIO * Path(path).stat().st_size + _SPARE
        with zipfile.ZipFile(path) as file:
            for info in file.infolist():
                most -= info.file_size
                if most < 0 or not info.filename.endswith(".npy"):
                    raise _broken(path, f"{info.filename!r:.60} is no array, or too large")
        with np.load(path, allow_pickle=False) as arrays:
            members = dict(arrays)
        for name, array in members.items():
            # Members that numpy does not know come as bytes.
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "bfiuU":
                raise _broken(path, f"{name!r:.60} is no array of numbers, truths or text")
    except FormatError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise FormatError(f"{path}: {reason}; give a file that --save-reference wrote") from None
    except Exception as error:  # numpy and zipfile raise whatever a broken file leads them to
        raise _broken(path, str(error)) from None
    return members


def _broken(path: str | Path, reason: str) -> FormatError:
    return FormatError(f"{path} holds no readable activations: {reason}")


def same_prompt(activations: Activations, ids: Mapping[str, Any] | list[int], path: str) -> None:
    """Raises `FormatError` if activations belong to another prompt."""
    if activations.ids != list(ids):
        shown = activations.ids[:8]
        raise FormatError(
            f"{path} has activations of another prompt, tokens {shown}"
            f"{' …' * (len(activations.ids) > len(shown))}; leave the prompt out to use that one"
        )
