"""Choosing a model among the files of a folder: one of a repository, or a publisher's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import FormatError
from ..reading import read_json
from . import rules
from .grammar import HubName

INDEX, WHOLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"
# The weights of a checkpoint, and the files that say how they are used.
_SHARD = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_MISTRAL = re.compile(r"consolidated(-\d+-of-\d+)?\.safetensors")
_BESIDE = re.compile(
    r"[^/]+\.(json|model|txt|jinja)|\d+_\w+/[^/]+\.(json|safetensors)|"
    r"additional_chat_templates/[^/]+\.jinja"
)


def chosen(files: Sequence[str], name: HubName, checkpoint: bool) -> tuple[list[str], str]:
    """The files of the model that a name means, the first of them to be opened, and the projector;
    nothing where the folder has no such model. A checkpoint is all of its files.

    Args:
        checkpoint: take the safetensors even where there are GGUF files.

    Raises:
        FormatError: the folder holds a preset of llama.cpp, which is no model; or a name means a
            part of a split model that is not its first.
    """
    if name.file:
        return _of_file(files, name.file)
    if rules.PRESET in files:
        raise FormatError(
            f"{name.repo} is a preset of llama.cpp ({rules.PRESET}), no model; name the repository "
            "of a model"
        )
    model = None if checkpoint else rules.best_model(files, name.tag)
    if model is not None:
        return rules.parts_of(files, model), rules.best_mmproj(files, model) or ""
    if not name.tag and CONFIG in files and any(map(_SHARD.fullmatch, files)):
        return [f for f in files if _SHARD.fullmatch(f) or _BESIDE.fullmatch(f)], ""
    return [], ""


def _of_file(files: Sequence[str], file: str) -> tuple[list[str], str]:
    if file not in files or not file.endswith(".gguf"):
        return [], ""
    split = rules.split_of(file)
    if split.count > 1 and split.index != 1:
        raise FormatError(f"{file} is part {split.index} of {split.count}; name the first one")
    mmproj = rules.best_mmproj(files, file) if rules.is_model(file) else None
    return rules.parts_of(files, file), mmproj or ""


def missing(model: Sequence[str], read: Callable[[str], Path]) -> str:
    """The first file that a model lacks by its own account; "" for a whole one.

    Args:
        read: the file on this machine.
    """
    if model[0].endswith(".gguf"):
        count = rules.split_of(model[0]).count
        if len(model) < count:
            present = {rules.split_of(f).index for f in model}
            lacking = next(i for i in range(1, count + 1) if i not in present)
            return f"part {lacking} of {count}"
        return ""
    if INDEX in model:
        shards = read_json(read(INDEX)).get("weight_map")
        wanted = set(shards.values()) if isinstance(shards, dict) else set()
        return next((str(s)[:200] for s in sorted(map(str, wanted)) if s not in model), "")
    return "" if WHOLE in model else WHOLE


def is_checkpoint(model: Sequence[str]) -> bool:
    """Whether the files chosen are those of a checkpoint."""
    return not model[0].endswith(".gguf")


def weights_of(repo_files: Sequence[str]) -> str:
    """The things that a repository without the wanted model has, for people."""
    pickles = any(f.endswith((".bin", ".pt", ".pth")) for f in repo_files)
    tags = rules.tags_of(repo_files)
    if tags:
        return f"it has {', '.join(tags[:20])}"
    if any(_MISTRAL.fullmatch(f) for f in repo_files):
        return "it has weights in Mistral's own form, which are not loaded"
    return "it has pickled weights, which are not loaded" if pickles else "it has no weights"


def all_models(files: Sequence[str]) -> list[tuple[str, str]]:
    """Every model in a folder: what follows the repository's name, and its first file, or "" for a
    checkpoint."""
    firsts = [f for f in files if rules.is_model(f) and rules.split_of(f).index == 1]
    found = []
    for file in firsts:
        tag = rules.split_of(file).tag
        same = bool(tag) and rules.best_model(files, tag) == file
        found.append((f":{tag}" if same else f"/{file}", file))
    if CONFIG in files and any(map(_SHARD.fullmatch, files)):
        found.append(("", ""))
    return found
