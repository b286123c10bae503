"""Weights of gated delta nets, between checkpoints and files.

Several heads of values share one of queries and keys. In checkpoints these are neighbours; in files
head i has the keys of head i mod groups, as ggml repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmodel.errors import ConfigError
from ggmodel.model import Operation

from .config import Qwen35Config


@dataclass(frozen=True)
class TileHeads(Operation):
    """Puts heads of values into the order of files.

    Args:
        of: elements of a head; "state" for the hyperparameter. Elements before all heads stay.
        axis: along which they lie: rows, or columns.
    """

    of: int | str = 1
    axis: int = 0

    def to_gguf(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        groups, heads = config.groups, config.values
        if heads % groups:
            raise ConfigError(f"{heads} heads of values for {groups} heads of keys")
        return self._swap(x, config, groups, heads // groups)

    def to_hf(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        return self._swap(x, config, config.values // config.groups, config.groups)

    def results(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        if self.axis:
            return x
        return np.moveaxis(self.to_gguf(np.moveaxis(x, -1, 0), config), 0, -1)

    def _swap(self, x: np.ndarray, config: Qwen35Config, rows: int, columns: int) -> np.ndarray:
        size = config.state if self.of == "state" else int(self.of)
        before = x.shape[self.axis] - rows * columns * size
        if before < 0:
            raise ConfigError(f"{list(x.shape)} are fewer than {rows * columns} heads of {size}")
        kept, heads = np.split(np.moveaxis(x, self.axis, 0), [before])
        swapped = heads.reshape(rows, columns, size, *heads.shape[1:]).swapaxes(0, 1)
        joined = np.concatenate([kept, swapped.reshape(heads.shape)])
        return np.moveaxis(joined, 0, self.axis)


class Taps(TileHeads):
    """The same of [channels, 1, kernel] in checkpoints, [channels, kernel] in files."""

    def shape(self, shape: tuple[int, ...], config: Qwen35Config) -> tuple[int, ...]:
        channels, _, kernel = shape
        return channels, kernel

    def to_gguf(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        return super().to_gguf(x[:, 0], config)

    def to_hf(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        return super().to_hf(x, config)[:, None]


class Rates(TileHeads):
    """The same of logarithms of rates in checkpoints, rates below 0 in files."""

    def to_gguf(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        return -np.exp(super().to_gguf(x, config))

    def to_hf(self, x: np.ndarray, config: Qwen35Config) -> np.ndarray:
        return np.log(-super().to_hf(x, config))
