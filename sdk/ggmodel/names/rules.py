"""Which file of a repository a tag means, as llama.cpp chooses it.

The rules are those of its common/download.cpp, but for one: a tag is a text, no regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# Tags that are tried where none is given.
DEFAULT_TAGS = ("Q4_K_M", "Q8_0")
PRESET = "preset.ini"
# Words in the names of files beside a model.
_SIDECARS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})", re.IGNORECASE | re.ASCII)
_LAST_WORD = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Split:
    """A file's name in pieces: less its number and suffix, the type, and which part of how many."""

    prefix: str = ""
    tag: str = ""
    index: int = 1
    count: int = 1


def split_of(path: str) -> Split:
    """The parts of the name of a GGUF file; of another one, nothing."""
    if not path.endswith(".gguf"):
        return Split(index=0, count=0)
    prefix, index, count = path.removesuffix(".gguf"), 1, 1
    if match := _SPLIT.fullmatch(prefix):
        prefix, index, count = match[1], int(match[2]), int(match[3])
    word = _LAST_WORD.search(prefix)
    return Split(prefix, word[1].upper() if word else "", index, count)


def is_model(path: str) -> bool:
    """Whether a file is a model by its name, and none of the files beside one."""
    name = path.rpartition("/")[2]
    return name.endswith(".gguf") and not any(word in name for word in _SIDECARS)


def best_model(files: Sequence[str], tag: str = "") -> str | None:
    """The file that a tag means, of a split model the first part.

    Args:
        tag: "Q4_K_M"; "" tries the default ones, then takes the first model.
    """
    models = [f for f in files if is_model(f)]
    firsts = [f for f in models if split_of(f).count <= 1 or split_of(f).index == 1]
    for wanted in (tag,) if tag else DEFAULT_TAGS:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for file in firsts:
            if pattern.search(file):
                return file
    return firsts[0] if firsts and not tag else None


def parts_of(files: Iterable[str], first: str) -> list[str]:
    """All files of a model, in order; as many as there are."""
    split = split_of(first)
    if split.count <= 1:
        return [first]
    return sorted(
        f for f in files if (split_of(f).prefix, split_of(f).count) == (split.prefix, split.count)
    )


def best_mmproj(files: Iterable[str], model: str) -> str | None:
    """The projector of a model: one in its folder or above it, the nearest; of several, the one
    with about as many bits as the model has."""
    folders = PurePosixPath(model).parts[:-1]
    bits, best, rank = _bits(model), None, (0, 0)
    for file in files:
        own = PurePosixPath(file).parts[:-1]
        if not file.endswith(".gguf") or "mmproj" not in file or folders[: len(own)] != own:
            continue
        found = -len(own), abs(_bits(file) - bits)
        if best is None or found < rank:
            best, rank = file, found
    return best


def _bits(path: str) -> int:
    """Q4_0 → 4, F16 → 16, NVFP4 → 4, none → 0."""
    number = re.search(r"\d+", split_of(path).tag)
    return int(number[0]) if number else 0


def tags_of(files: Iterable[str]) -> list[str]:
    """The types of the models in a repository, for people."""
    return sorted({split_of(f).tag for f in files if is_model(f)} - {""})
