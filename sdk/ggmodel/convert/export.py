"""`convert`: a Hugging Face folder as GGUF."""

from __future__ import annotations

import os
from pathlib import Path

from ..atomic import check_target
from ..errors import WriteError
from .checkpoint_source import CheckpointSource, Part
from .write import Progress, write_gguf


def convert(
    folder: str | Path,
    path: str | Path,
    type: str | None = None,
    *,
    mmproj: str | Path | None = None,
    models: str | Path | None = None,
    pre: str | None = None,
    strict: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes a checkpoint as a GGUF file.

    Args:
        folder: with config.json, safetensors and a tokenizer.
        type: "f16", "q8_0", "q4_K_M"; None keeps the types of the checkpoint.
        mmproj: where to write what the model sees with, in llama.cpp's layout; None puts it into
            the same file. It keeps its type, as far as that can be, where `type` is quantised.
        models: a folder with architectures, looked in first.
        pre: the pre-tokenizer, where it cannot be found out.
        strict: tensors that no field reads are errors, otherwise a warning.
        force: existing files are replaced.
        progress: called with the share written.

    Raises:
        Error: see `CheckpointSource.open`, `write_gguf`.
    """
    parts: list[tuple[Part, Path]] = [("all", Path(path))]
    if mmproj is not None:
        parts = [("text", Path(path)), ("vision", Path(mmproj))]
        if os.path.realpath(path) == os.path.realpath(mmproj):
            raise WriteError(f"{path} cannot be both files; give --mmproj another name")
    for _, target in parts:
        check_target(target, force=force, device=False)
    # Whatever is wrong with one of two shows before either is written.
    sources = []
    try:
        for part, target in parts:
            kind = plain(type) if part == "vision" else type
            sources.append((CheckpointSource.open(folder, kind, models, part, pre), target))
        sources[0][0].report.check(strict)  # both files come from the same tensors
        total = sum(t.nbytes for s, _ in sources for t in s.tensors.values())
        done = 0
        for source, target in sources:
            size = sum(t.nbytes for t in source.tensors.values())
            write_source(source, target, force, _part_of(progress, done / total, size / total))
            done += size
    finally:
        for source, _ in sources:
            source.close()


def write_source(
    source: CheckpointSource, path: Path, force: bool, progress: Progress | None = None
) -> None:
    """Writes one file."""
    metadata = source.typed | source.vocabulary
    infos = list(source.tensors.values())
    write_gguf(
        path,
        metadata,
        infos,
        lambda t: source.data(t.name),
        source.release,
        force=force,
        progress=progress,
    )


def plain(type: str | None) -> str | None:
    """The type for what a model sees with, given that of its text."""
    from .recipes import recipe_of

    return None if type is None or recipe_of(type).dtype.is_quantized else type


def _part_of(progress: Progress | None, begin: float, share: float) -> Progress | None:
    if progress is None:
        return None
    return lambda done: progress(begin + done * share)
