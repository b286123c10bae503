"""Rows as they are laid into a text: ours, and those of libmtmd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL.Image import Image

import ggmodel
from ggmodel.audio import Audio
from ggmodel.gguf_file import open_gguf
from ggmodel.ml.ggml import lowering
from ggmodel.model import MultimodalEmbedding
from ggmodel.runner import LoadedModel
from tests.peers.mtmd import MARKER, Mtmd
from tests.peers.towers import Difference, Files, Tower


@contextmanager
def ours(files: Files, differences: Sequence[Difference]) -> Iterator[LoadedModel]:
    """Our model, which computes otherwise in these ways, and activations by ggml, as libmtmd does:
    its GELU reads a table of F16 numbers, for which ours differs by an NMSE of up to 2e-7."""
    options: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "serves", lambda dtype: False)
        for differ in differences:
            differ(patch)
        with ggmodel.load(
            open_gguf(files.text, files.mmproj), context_length=1024, **options
        ) as model:
            yield model


def table_of(files: Files) -> np.ndarray:
    """The embedding of the text, [tokens, width]."""
    with open_gguf(files.text) as file:
        width, tokens = file.tensors["token_embd.weight"].shape
        return np.frombuffer(file.data("token_embd.weight"), np.float32).reshape(tokens, width)


def rows_of(tower: Tower, table: np.ndarray, seen: Sequence[MultimodalEmbedding]) -> np.ndarray:
    """The rows of an item with their parts beside them, and breaks between lines; without a last
    one in whose place libmtmd lays a token."""
    found: list[np.ndarray] = []
    for one in seen:
        if found and tower.breaks is not None:
            found.append(table[[tower.breaks]])
        found.append(np.concatenate([one.rows, *one.parts], axis=1))
    return np.concatenate(found)[: None if tower.ending is None else -1]


class Laid(NamedTuple):
    """The rows of a prompt.

    Attributes:
        tokens: None for a row of an item.
        rows: those of items, [rows, width].
    """

    tokens: list[int | None]
    rows: np.ndarray


def laid(model: LoadedModel, prompt: list[Any], tower: Tower, table: np.ndarray) -> Laid:
    """Ours, without the tokens that libmtmd leaves out."""
    without = {tower.tokens[text] for text in tower.unlaid}
    tokens, rows = list[int | None](), list[np.ndarray]()
    for number in model.prompts.read(prompt).tolist():
        entry = model.engine.inputs[number] if number < 0 else None
        token = number if entry is None else entry.token
        if entry is not None and entry.embedding is not None:
            entry.embedding.compute()
            parts = [part[entry.row] for part in entry.embedding.parts]
            rows.append(np.concatenate([entry.embedding.rows[entry.row], *parts]))
            tokens.append(None)
        elif token == tower.breaks:
            rows.append(table[token])
            tokens.append(None)
        elif token not in without:
            tokens.append(token)
    if tower.ending is not None:
        tokens[max(i for i, token in enumerate(tokens) if token is None)] = tower.ending
        rows.pop()
    return Laid(tokens, np.stack(rows))


def laid_by(mtmd: Mtmd, files: Files, item: np.ndarray) -> Laid:
    """libmtmd's."""
    kind = "audio" if item.ndim == 1 else "image"
    parts = mtmd.whole(files.mmproj, files.beside, kind, f"AB{MARKER}C", [item])
    of_items = [part for part in parts if part.ndim == 2]
    tokens = [part.tolist() if part.ndim == 1 else [None] * len(part) for part in parts]
    return Laid([token for part in tokens for token in part], np.concatenate(of_items))


def both_laid(
    tower: Tower, files: Files, mtmd: Mtmd, item: Image | Audio, more: Sequence[Difference] = ()
) -> tuple[Laid, Laid]:
    """The rows of "AB", a picture or a sound, and "C": ours and libmtmd's.

    Args:
        more: differences beside the tower's.
    """
    values = item.samples if isinstance(item, Audio) else np.asarray(item)
    with ours(files, (*tower.differences, *more)) as model:
        found = laid(model, ["AB", item, "C"], tower, table_of(files))
    return found, laid_by(mtmd, files, values)
