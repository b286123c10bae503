"""Positions of images as Qwen2-VL has them, for ropes with sections: time, row and column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import PromptError
from ..model import Input

Grid = tuple[int | Sequence[int], int, int]


def grid_positions(
    inputs: Sequence[Input], before: np.ndarray, grid: Callable[[Any], Grid]
) -> np.ndarray:
    """The result of `Model.positions`, int32 [n, 4], where the rows of an image are a grid: frame,
    row, column and the frame again (arXiv 2409.12191, 2.1; transformers, modeling_qwen2_vl,
    `get_rope_index`). The fourth turns the pairs of `RopeType.IMROPE` that no section covers, which
    are temporal in transformers (modeling_qwen3_vl, `apply_interleaved_mrope`).

    A token has the next number four times. Frames, rows and columns of an image count from that
    number on, and the next token is behind its longer side, however many frames there are.

    Args:
        before: int32 [m, 4].
        grid: `Multimodal.data` → (frames, rows, columns); frames are their number, or the time of
            each in positions, from 0 on.

    Raises:
        PromptError: an embedding's rows are another number than its grid has.
    """
    found = np.zeros((len(inputs), 4), np.int32)
    at = int(before[-1, 1:3].max()) + 1 if len(before) else 0
    if len(inputs) == 1 and inputs[0].multimodal is None:  # a token of an answer
        found[0] = at
        return found
    begin = 0
    images = [i for i, one in enumerate(inputs) if one.multimodal is not None]
    for i in (*images, len(inputs)):
        found[begin:i] = np.arange(at, at + i - begin)[:, None]
        at += i - begin
        if i < len(inputs):
            embedding = inputs[i].multimodal
            assert embedding is not None
            frames, rows, columns = grid(embedding.data)
            times = np.arange(frames) if isinstance(frames, int) else np.array(frames)
            begin = i + len(times) * rows * columns
            if begin - i != len(embedding):
                raise PromptError(
                    f"an image of {len(embedding)} rows, which are no grid of {len(times)} x "
                    f"{rows} x {columns}"
                )
            places = np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij")
            found[i:begin] = np.stack([places[k].reshape(-1) for k in (0, 1, 2, 0)], axis=1) + at
            at += max(rows, columns)
    return found
