"""Preparation in goldens: from a file to logits.

A case may have files: pictures of noise and sounds, which follow from their sizes. Its
`prepared/CASE.npz` holds what the processor of transformers makes of each with a prompt around it,
and the logits of the last token by transformers.
"""

from __future__ import annotations

import hashlib
import io
import json
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import _encoded, _reading, _saved

RATE = 16_000  # samples a second
_QUIET, _FAINT = 8, 4  # the shares of a sound that are silent and faint


def picture(width: int, height: int) -> bytes:
    """A PNG file of noise, by SHAKE-256 of its size."""
    from PIL import Image

    name = f"{width}x{height}".encode()
    levels = np.frombuffer(hashlib.shake_256(name).digest(3 * width * height), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels.reshape(height, width, 3)).save(file, "PNG")
    return file.getvalue()


def samples(count: int) -> NDArray[np.int16]:
    """A sound [count] at `RATE`: silence, faint noise, where floors and padding show, then loud
    noise of falling pitch; by SHAKE-256 of its length and integers."""
    noise = np.frombuffer(hashlib.shake_256(f"{count}".encode()).digest(2 * count), "<i2")
    low = np.cumsum(noise.astype(np.int64) >> 4)
    low = np.clip(low - np.roll(low, 16), -(1 << 14), 1 << 14)
    loud = np.where(np.arange(count) < count * 3 // 4, noise >> 2, low)
    loud[: count // _FAINT] >>= 9
    loud[: count // _QUIET] = 0
    return loud.astype(np.int16)


def sound(count: int) -> bytes:
    """A WAV file of `samples`: one channel of 16 bits."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples(count).tobytes())
    return buffer.getvalue()


@dataclass
class Item:
    """A file, and what transformers makes of it.

    Attributes:
        kind: see `Model.modalities`.
        size: width and height of a picture, or the number of samples of a sound.
        before, after: token ids around it.
        inputs: keywords of the reference's forward, such as `pixel_values`, by its processor.
        ids: [n] of the whole prompt, by the processor.
        logits: float32 [vocab] of the last token.
    """

    kind: str
    size: list[int]
    before: list[int]
    after: list[int]
    inputs: dict[str, np.ndarray]
    ids: NDArray[np.integer]
    logits: NDArray[np.float32]

    @property
    def file(self) -> bytes:
        """PNG or WAV."""
        return picture(*self.size) if self.kind == "image" else sound(*self.size)

    @property
    def prompt(self) -> list[Any]:
        """The file among the tokens around it, for `LoadedModel.logits`."""
        return [*self.before, self.file, *self.after]


@dataclass
class Preparation:
    """The files of a case.

    Attributes:
        documents: the processor's files beside config.json, as `with_preparation` names them.
        processors: the classes of transformers that made the items.
        versions: of transformers, torch and torchvision.
    """

    documents: Mapping[str, Any]
    processors: list[str]
    versions: Mapping[str, str]
    items: dict[str, Item]

    @classmethod
    def load(cls, folder: Path, case: str) -> Preparation | None:
        """Reads `FOLDER/prepared/CASE.npz`; None where there is none.

        Raises:
            FormatError: it is damaged.
        """
        path = folder / "prepared" / f"{case}.npz"
        if not path.is_file():
            return None
        with _reading(path) as file:
            described = json.loads(str(file["described"]))
            items = {}
            for name, item in described.pop("items").items():
                names = {key: f"{name}.{key}" for key in item.pop("inputs")}
                item["inputs"] = {key: file[stored] for key, stored in names.items()}
                item |= {key: file[f"{name}.{key}"] for key in ("ids", "logits")}
                items[name] = Item(**item)
            return cls(**described, items=items)

    def save(self, folder: Path, case: str) -> Path:
        """Writes `FOLDER/prepared/CASE.npz`."""
        arrays, items = {}, {}
        for name, item in self.items.items():
            arrays |= {f"{name}.{key}": value for key, value in _arrays(item).items()}
            items[name] = {key: getattr(item, key) for key in ("kind", "size", "before", "after")}
            items[name]["inputs"] = list(item.inputs)
        described = {**vars(self), "items": items}
        path = folder / "prepared" / f"{case}.npz"
        path.parent.mkdir(exist_ok=True)
        return _saved(path, _encoded({"described": described}) | arrays)

    def differing(self, stored: Preparation | None) -> tuple[str, ...]:
        """The names of the parts in which this differs from a stored one."""
        if stored is None or stored.items.keys() != self.items.keys():
            return ("prepared files",)
        wrong = () if self.documents == stored.documents else ("prepared documents",)
        for name, item in self.items.items():
            mine, other = _arrays(item), _arrays(stored.items[name])
            same = mine.keys() == other.keys() and all(
                a.shape == other[k].shape
                and np.allclose(a, other[k], rtol=1e-5 * (a.dtype.kind == "f"), atol=1e-5)
                for k, a in mine.items()
            )
            wrong += () if same else (f"prepared file {name}",)
        return wrong


def _arrays(item: Item) -> dict[str, np.ndarray]:
    return {**item.inputs, "ids": item.ids, "logits": item.logits}
