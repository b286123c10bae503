"""Opens a model: a file, its vision projector (mmproj), or a checkpoint's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...closing import closed_on_error
from ...errors import ConfigError, Error
from ...gguf_file import TensorSource, open_gguf
from ...model import Model, find, supported
from ...model.names import of_vision


def open_source(
    source: str | Path | TensorSource,
    mmproj: str | Path | None = None,
    models: str | Path | None = None,
    type: str | None = None,
) -> TensorSource:
    """An opened source: a given one, a file with its projector, or a checkpoint's folder.

    Args:
        mmproj: the projector; None takes one that lies beside the file and fits, "" none.
        models: a folder with architectures, looked in first.
        type: the type that the tensors of a folder are rounded to.

    Raises:
        ConfigError: a projector for an open source or a folder, or a type for a file.
        FormatError: a file is not what it says.
    """
    if not isinstance(source, TensorSource) and Path(source).is_dir():
        if mmproj:
            raise ConfigError(f"{source} is a folder, which has all of its model; leave out mmproj")
        from ...convert.checkpoint_source import CheckpointSource  # slow to import

        return CheckpointSource.open(source, type, models)
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
    if mmproj:
        return open_gguf(source, mmproj)
    opened = open_gguf(source)
    with closed_on_error(opened):
        found = None if mmproj == "" else _beside(opened, models)
    if found is None:
        return opened
    opened.close()
    return open_gguf(source, found)


def _beside(source: TensorSource, models: str | Path | None) -> Path | None:
    """A projector in the model's folder that fits: the one whose name has most in common with the
    model's, then the smallest."""
    if any(map(of_vision, source.tensors)):
        return None
    name = source.metadata.get("general.architecture")
    with suppress(Error):  # loading reports it
        if isinstance(name, str) and _sees(find(name, models)):
            width = source.metadata.get(f"{name}.embedding_length")
            own = source.files[0].name
            others = {*supported(models)} - {name}
            fitting = [p for p in _candidates(source) if _fits(p, width, others)]
            fitting.sort(key=lambda p: (-_in_common(p.name, own), p.stat().st_size, p.name))
            return fitting[0] if fitting else None
    return None


def _sees(architecture: type[Model]) -> bool:
    return architecture.encode_multimodal is not Model.encode_multimodal


def _candidates(source: TensorSource) -> Iterator[Path]:
    with suppress(OSError):
        for path in source.files[0].absolute().parent.iterdir():
            name = path.name.lower()
            if "mmproj" in name and name.endswith(".gguf") and path.is_file():
                yield path


def _fits(path: Path, width: object, others: set[str]) -> bool:
    """Whether a file is a projector to that width, and of no other architecture."""
    try:
        with open_gguf(path) as projector:
            keys = projector.metadata
            given = keys.get("clip.vision.projection_dim", width)
            kind = keys.get("clip.projector_type", keys.get("clip.vision.projector_type"))
            is_one = keys.get("general.architecture") == "clip" and kind not in others
            return is_one and given == width
    except Error:
        return False


def _in_common(projector: str, model: str) -> int:
    """How many letters the two names share at their beginning, "mmproj-" left out."""
    bare = projector.lower().removeprefix("mmproj").lstrip("-_.")
    return len(os.path.commonprefix([bare, model.lower()]))  # noqa: RUF071 (letters are meant)
