"""Sources of a model: a file and its projector (mmproj)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...chat.template import KEY
from ...errors import ConfigError, Error
from ...gguf_file import TensorSource, open_gguf
from ...gguf_file.values import KeyValues
from ...model.loader import fits
from ...model.module import of_tower
from ...resources import closed_on_error
from .resolved import PATH, ResolvedModel

if TYPE_CHECKING:
    pass

Source = str | os.PathLike[str] | TensorSource

_ENCODERS = ("vision", "audio")


def open_source(
    source: Source,
    mmproj: str | Path | None = None,
    models: str | Path | None = None,
    type: str | None = None,
) -> TensorSource:
    """An open source as it is, or a GGUF file with its projector.

    Args:
        mmproj: the projector; None takes one that lies beside the file and fits, "" none.
        models: a folder with architectures, looked in first.
        type: None; checkpoints alone are converted while they are read.

    Raises:
        ConfigError: a projector for an open source, or a type.
        FormatError: a file is not what it says.
    """
    if type is not None:
        raise ConfigError(
            "a type goes with the folder of a Hugging Face model; `ggmodel quantize IN OUT TYPE` "
            "writes a GGUF file with other types"
        )
    if isinstance(source, TensorSource):
        if mmproj:
            raise ConfigError(
                "mmproj goes with the path of a model; join open ones with "
                "ggmodel.gguf_file.JoinedSource(model, projector)"
            )
        return source
    parts = source.parts if isinstance(source, ResolvedModel) else ()
    if mmproj:
        return _as_stored(open_gguf(source, mmproj, parts), source)
    opened = open_gguf(source, parts=parts)
    with closed_on_error(opened):
        projector = None if mmproj == "" else _beside(opened, source, models)
    if projector is None:
        return _as_stored(opened, source)
    opened.close()
    return _as_stored(open_gguf(source, projector, parts), source)


def _as_stored(opened: TensorSource, source: str | os.PathLike[str]) -> TensorSource:
    """The source with the chat template of its store."""
    if not isinstance(source, ResolvedModel):
        return opened
    if source.template:
        opened.metadata = MappingProxyType({**opened.metadata, KEY: source.template})
    return opened


def _beside(
    source: TensorSource, path: str | os.PathLike[str], models: str | Path | None
) -> Path | None:
    """A projector that fits: the one of a resolved model; else of those beside the model the one
    whose name has most in common with the model's, then the smallest."""
    name = source.metadata.get("general.architecture")
    if any(map(of_tower, source.tensors)) or not isinstance(name, str):
        return None
    candidates = [*_candidates(source)]
    if isinstance(path, ResolvedModel) and path.store != PATH:
        candidates = [*filter(None, [path.mmproj])]
    width, own = source.metadata.get(f"{name}.embedding_length"), source.files[0].name
    text = KeyValues(source.metadata, source.name)
    fitting = [p for p in candidates if _fits(p, text, width, models)]
    fitting.sort(key=lambda p: (-_in_common(p.name, own), p.stat().st_size, p.name))
    return fitting[0] if fitting else None


def _candidates(source: TensorSource) -> Iterator[Path]:
    with suppress(OSError):
        for path in source.files[0].absolute().parent.iterdir():
            name = path.name.lower()
            if "mmproj" in name and name.endswith(".gguf") and path.is_file():
                yield path


def _fits(path: Path, text: KeyValues, width: object, models: str | Path | None) -> bool:
    """Whether a file is a projector to that width, and of a type that goes with the text."""
    try:
        with open_gguf(path) as projector:
            keys = projector.metadata
            widths = {keys.get(f"clip.{kind}.projection_dim", width) for kind in _ENCODERS}
            is_one = keys.get("general.architecture") == "clip" and widths == {width}
            return is_one and fits(text, keys, models)
    except Error:  # of the text's: loading reports it
        return False


def _in_common(projector: str, model: str) -> int:
    """How many letters the two names share at their beginning, "mmproj-" left out."""
    bare = projector.lower().removeprefix("mmproj").lstrip("-_.")
    return len(os.path.commonprefix([bare, model.lower()]))  # noqa: RUF071 (letters are meant)
