"""Steering vectors: directions that are added to what layers give, in llama.cpp's files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ConfigError, FormatError
from ..gguf_file import open_gguf
from ..gguf_file.types import LARGEST
from ..ml.tensor import as_numbers, to_float32

_DIRECTION = re.compile(r"direction\.([1-9]\d{0,5})")


@dataclass(frozen=True, eq=False)
class Steering:
    """A direction for each layer that is steered. `steering * 1.5` has another strength.

    Attributes:
        directions: number of the layer, from 0 → float32 [width], added to what it gives.
    """

    directions: Mapping[int, np.ndarray]

    def __post_init__(self) -> None:
        arrays = {}
        for layer, direction in self.directions.items():
            array = as_numbers(direction)
            if array is None or array.ndim != 1:
                raise ConfigError(f"the direction of layer {layer} must be a row of finite numbers")
            whole = isinstance(layer, (int, np.integer)) and not isinstance(layer, bool)
            if not whole or layer < 0:
                raise ConfigError(f"a direction has the layer {layer!r:.40}; give numbers from 0")
            arrays[int(layer)] = array
        object.__setattr__(self, "directions", arrays)

    def __mul__(self, strength: float) -> Steering:
        return Steering({i: np.float32(strength) * d for i, d in self.directions.items()})

    __rmul__ = __mul__

    @classmethod
    def load(cls, path: str | Path) -> Steering:
        """The directions of a control vector in llama.cpp's format: a GGUF file whose tensor
        `direction.N` belongs to layer N.

        Raises:
            FormatError: the file is none.
        """
        directions = {}
        with open_gguf(path) as file:
            kind = file.metadata.get("general.architecture")
            for name, tensor in file.tensors.items():
                match = _DIRECTION.fullmatch(name)
                if match is None or len(tensor.shape) != 1:
                    raise FormatError(
                        f"{path}: {name!r:.80} of {kind!r:.40} is no direction of a layer; "
                        "a control vector has tensors direction.N of one dimension"
                    )
                raw = np.frombuffer(file.data(name), tensor.dtype.numpy or np.uint8)
                directions[int(match[1])] = to_float32(raw, tensor.dtype, tensor.shape).copy()
        if not directions:
            raise FormatError(f"{path}: it has no directions; a control vector has direction.N")
        return cls(directions)

    @classmethod
    def parse(cls, text: str | Path) -> tuple[str, Steering, float]:
        """The name, directions and strength of a file, given as `FILE:1.5`; without a strength it
        is 1. The name is the file's without its ending."""
        path, _, number = str(text).rpartition(":")
        try:
            strength = float(number) if path else 1.0
        except ValueError:  # a name with a colon
            path, strength = "", 1.0
        if not abs(strength) <= LARGEST:
            raise ConfigError(f"{text}: the strength must be a finite number of float32")
        path = path or str(text)
        return Path(path).stem, cls.load(path), strength

    @staticmethod
    def sum(several: Iterable[Steering]) -> dict[int, np.ndarray]:
        """Layer → the sum of the directions.

        Raises:
            ConfigError: they have different widths.
        """
        total: dict[int, np.ndarray] = {}
        for one in several:
            for layer, direction in one.directions.items():
                before = total.get(layer)
                if before is not None and len(before) != len(direction):
                    raise ConfigError("steering vectors of different widths cannot be added")
                total[layer] = direction if before is None else before + direction
        return total


Steer = Steering | Sequence[Steering] | Mapping[str, float]
"""Steering vectors of a request: one, several, or names → strengths of those that are loaded."""


def is_steer(value: object) -> bool:
    """Whether it is that."""
    if isinstance(value, Mapping):
        return all(
            isinstance(k, str)
            and isinstance(v, (int, float))
            and not isinstance(v, bool)
            and abs(v) <= LARGEST
            for k, v in value.items()
        )
    if isinstance(value, Sequence):
        return all(isinstance(one, Steering) for one in value)
    return isinstance(value, Steering)
