"""`convert`: a Hugging Face folder as GGUF."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, Unsupported, WriteError
from ..storage import atomic_write, check_target
from .checkpoint_source import CheckpointSource, Contents
from .from_hf import read_config
from .llama_cpp import differences, knows, refusals
from .tensor_types import recipe_of
from .write import Progress, write_into


def convert(
    folder: str | Path,
    path: str | Path,
    type: str | None = None,
    *,
    mmproj: str | Path | None = None,
    imatrix: str | Path | None = None,
    models: str | Path | None = None,
    pre: str | None = None,
    strict: bool = True,
    program: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Writes a checkpoint as a GGUF file.

    Args:
        folder: with config.json, safetensors and a tokenizer.
        type: "f16", "q8_0", "q4_K_M"; None keeps the types of the checkpoint.
        mmproj: the path of a second file for the vision tensors, in llama.cpp's layout; None puts
            them into the same file. They are not quantised.
        imatrix: the file of an importance matrix, which types below four bits need.
        models: a folder with architectures, looked in first.
        pre: the name of the pre-tokenizer, where it cannot be determined.
        strict: tensors that no field reads are errors, otherwise a warning.
        program: "llama.cpp" if that is to run the file: then it is written so that llama.cpp loads
            it, or not at all.
        force: existing files are replaced.
        progress: called with the share written.

    Returns:
        Sentences about llama.cpp: why it refuses the file, or which hyperparameters and towers it
        computes otherwise. Its preparation of pictures and sounds, and the tokens around their
        rows, are in docs/convert.md alone.

    Raises:
        Unsupported: llama.cpp cannot load the model, and `program` asks for it.
        ConfigError: an importance matrix without a quantised type.
        LoadError: required tensors are missing, or no field reads some.
        WriteError: a file cannot be written; then neither is.
        Error: see `CheckpointSource.open`, `write_gguf`.
    """
    if program not in (None, "llama.cpp"):
        raise ConfigError(f"program is {program!r}; files can be written for 'llama.cpp'")
    if imatrix is not None and (type is None or not recipe_of(type).dtype.is_quantized):
        raise ConfigError(f"{imatrix}: importance counts for quantised types only; give a --type")
    files = _files(path, mmproj, force)
    with ExitStack() as opened:
        sources: list[tuple[CheckpointSource, str | Path]] = []
        for contents, target in files:  # errors of both show before either is written
            kept = type is None or (contents == "vision" and recipe_of(type).dtype.is_quantized)
            options = (None, None) if kept else (type, imatrix)
            source = CheckpointSource.open(
                folder, options[0], models, contents, pre, imatrix=options[1], program=program
            )
            sources.append((opened.enter_context(source), target))
        sources[0][0].report.check(strict)  # both files come from the same tensors
        notes = _notes(sources[0][0], program)
        _write(sources, force, progress)
    return notes


def _files(
    path: str | Path, mmproj: str | Path | None, force: bool
) -> list[tuple[Contents, str | Path]]:
    """The files that are written, with their contents; none of these files has to stay as it is."""
    files: list[tuple[Contents, str | Path]] = [("all", path)]
    if mmproj is not None:
        files = [("text", path), ("vision", mmproj)]
        if os.path.realpath(path) == os.path.realpath(mmproj):
            raise WriteError(f"{path} cannot be both files; give --mmproj another name")
    for _, target in files:
        check_target(target, force=force, device=False)
    return files


def _write(
    sources: list[tuple[CheckpointSource, str | Path]], force: bool, progress: Progress | None
) -> None:
    """Writes all files, which get their names when all are complete."""
    sizes = [sum(t.nbytes for t in source.tensors.values()) for source, _ in sources]
    total, done = sum(sizes), 0
    with ExitStack() as parts:
        files = [
            parts.enter_context(atomic_write(target, force=force, device=False))
            for _, target in sources
        ]
        for (source, target), file, size in zip(sources, files, sizes, strict=True):
            write_source(source, file, target, _part_of(progress, done / total, size / total))
            done += size


def _notes(source: CheckpointSource, program: str | None) -> list[str]:
    name = source.typed["general.architecture"]
    if source.contents == "all" and source.architecture.pairs and not knows(name):
        refused = ["it takes this model only as two files (--mmproj FILE, mmproj=)"]
    else:
        refused = list(refusals(name, source.config, source.vocabulary, source.tensors))
    if refused and program is not None:
        raise Unsupported(f"llama.cpp would refuse the file: {'; '.join(refused)}")
    if refused:
        return [f"llama.cpp refuses this file: {reason}" for reason in refused]
    _, h = read_config(source.served, source.hf.config)
    beside = name if source.contents == "text" else None
    projector = source.architecture.pairs.get(name, beside)
    return [
        f"llama.cpp computes something else from this file: {reason}"
        for reason in (
            *differences(name, h, source.config, projector),
            *source.behind.differences(),
        )
    ]


def write_source(
    source: CheckpointSource, file: BinaryIO, path: str | Path, progress: Progress | None = None
) -> None:
    """Writes the file of a checkpoint, which will be called `path`, into an open one."""
    write_into(
        file,
        path,
        source.typed | source.vocabulary,
        list(source.tensors.values()),
        lambda t: source.data(t.name),
        source.release,
        progress=progress,
    )


def _part_of(progress: Progress | None, begin: float, share: float) -> Progress | None:
    return None if progress is None else lambda done: progress(begin + done * share)
