"""Opens a model: a file, its multimodal projector (mmproj), or a checkpoint's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from ...chat.template import KEY
from ...closing import closed_on_error
from ...errors import ConfigError, Error
from ...gguf_file import TensorSource, open_gguf
from ...gguf_file.metadata import KeyValues
from ...model.names import of_tower
from ...model.pairs import fits
from ...names.found import PATH, Found
from .adapted import adapted

Source = str | os.PathLike[str] | TensorSource

_ENCODERS = ("vision", "audio")


def open_source(
    source: Source,
    mmproj: str | Path | None = None,
    models: str | Path | None = None,
    type: str | None = None,
) -> TensorSource:
    """An opened source: a given one, a file with its projector, or a checkpoint's folder.

    Args:
        source: a path or a name; see `located`.
        mmproj: the projector; None takes one that lies beside the file and fits, "" none.
        models: a folder with architectures, looked in first.
        type: the type that the tensors of a folder are rounded to.

    Raises:
        ConfigError: a projector for an open source or a folder, or a type for a file.
        FormatError: a file is not what it says.
    """
    if not isinstance(source, TensorSource):
        source = located(source)
    if not isinstance(source, TensorSource) and Path(source).is_dir():
        if mmproj:
            raise ConfigError(f"{source} is a folder, which has all of its model; leave out mmproj")
        from ...convert.checkpoint_source import CheckpointSource  # slow to import

        return CheckpointSource.open(Path(source), type, models)
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
    parts = source.parts if isinstance(source, Found) else ()
    if mmproj:
        return _as_stored(open_gguf(source, mmproj, parts), source)
    opened = open_gguf(source, parts=parts)
    with closed_on_error(opened):
        found = None if mmproj == "" else _beside(opened, source, models)
    if found is None:
        return _as_stored(opened, source)
    opened.close()
    return _as_stored(open_gguf(source, found, parts), source)


def located(source: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """A path that exists, or what a name stands for; see `ggmodel.find`."""
    if isinstance(source, Found) or os.path.exists(source):
        return source
    from ...names.sources import find as find_name

    return find_name(source)


def _as_stored(opened: TensorSource, source: str | os.PathLike[str]) -> TensorSource:
    """The source with the chat template of its store, and its adapters."""
    if not isinstance(source, Found):
        return opened
    if source.template:
        opened.metadata = MappingProxyType({**opened.metadata, KEY: source.template})
    return adapted(opened, source.adapters) if source.adapters else opened


def _beside(
    source: TensorSource, given: str | os.PathLike[str], models: str | Path | None
) -> Path | None:
    """A projector that fits: the one of a found model; else of those in the model's folder the one
    whose name has most in common with the model's, then the smallest."""
    name = source.metadata.get("general.architecture")
    if any(map(of_tower, source.tensors)) or not isinstance(name, str):
        return None
    candidates = [*_candidates(source)]
    if isinstance(given, Found) and given.store != PATH:
        candidates = [*filter(None, [given.mmproj])]
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
