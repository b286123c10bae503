"""Names: how they are written, and which files of a repository or folder they mean.

The choice of a file follows llama.cpp's common/download.cpp, but for one rule: a tag is a text, no
regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import ConfigError, FormatError
from ..reading import read_json

_HUB = ("hf.co/", "hf://")
_OLLAMA = "ollama://"
_LONGEST = 256
_WORD = r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*"
_REPO = re.compile(rf"{_WORD}/{_WORD}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")  # of Windows
_FILE = re.compile(r"[^\\\0:*?\"<>|]+")
# The parts of a name of Ollama; hosts may have a port.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_HOW = (
    "names are ORG/REPO, ORG/REPO:Q4_K_M, ORG/REPO@REVISION, ORG/REPO/FILE.gguf, NAME[:TAG] of "
    "Ollama, and paths"
)


@dataclass(frozen=True)
class HubName:
    """A name of the Hugging Face hub.

    Attributes:
        repo: "org/name".
        revision: a branch, a tag of git or a commit; "" is the main branch.
        tag: which quantisation; "" is llama.cpp's choice.
        file: a path in the repository; "" where the rules choose.
        explicit: it was written so that it can be nothing else.
    """

    repo: str
    revision: str = ""
    tag: str = ""
    file: str = ""
    explicit: bool = False

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        revision = f"@{self.revision}" if self.revision else ""
        return self.repo + file + revision + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True)
class OllamaName:
    """A name of Ollama's store; host and namespace are "" where they were left out."""

    model: str
    tag: str = "latest"
    namespace: str = ""
    host: str = ""

    def __str__(self) -> str:
        parts = (self.host, self.namespace, self.model)
        return "/".join(filter(None, parts)) + f":{self.tag}"


def is_path(text: str) -> bool:
    """Whether a text is written like a path, and like no name."""
    if text.startswith((*_HUB, _OLLAMA)):
        return False
    begins = text.startswith(("/", ".", "~")) or text in ("", "-") or _DRIVE.match(text)
    one_of_a_folder = text.endswith((".gguf", ".safetensors", ".json")) and text.count("/") < 2
    return bool(begins) or one_of_a_folder or "\\" in text or "\0" in text or text.endswith("/")


def hub_name(text: str) -> HubName | None:
    """A text as a name of the hub, or None if it is none.

    Raises:
        ConfigError: it has the prefix of one and is none.
    """
    rest = next((text[len(p) :] for p in _HUB if text.startswith(p)), text)
    explicit = rest != text
    name = _split_hub(rest, explicit) if len(rest) <= _LONGEST else None
    if name is None and explicit:
        raise ConfigError(f"{text[:200]!r} is no name of the hub; {_HOW}")
    return name


def _split_hub(rest: str, explicit: bool) -> HubName | None:
    rest, colon, tag = rest.partition(":")
    if "@" in tag:  # the tag may come first
        tag, _, after = tag.partition("@")
        rest += f"@{after}"
    rest, at, revision = rest.partition("@")
    org, _, path = rest.partition("/")
    name, slash, file = path.partition("/")
    fits = (
        _REPO.fullmatch(f"{org}/{name}")
        and (not colon or _TAG.fullmatch(tag))
        and (not at or (_REVISION.fullmatch(revision) and ".." not in revision))
        and (not slash or _is_file(file))
    )
    if not fits or (file and tag):
        return None
    return HubName(f"{org}/{name}", revision, tag, file, explicit)


def _is_file(path: str) -> bool:
    """Whether this is the path of a file below a folder."""
    return bool(_FILE.fullmatch(path)) and all(p.strip(". ") for p in path.split("/"))


def ollama_name(text: str) -> OllamaName | None:
    """A text as a name of Ollama, or None if it is none.

    Raises:
        ConfigError: it has the prefix of one and is none.
    """
    rest = text.removeprefix(_OLLAMA)
    before, slash, last = rest.rpartition("/")
    model, colon, tag = last.partition(":")
    parts = before.split("/") if slash else []
    host, namespace = ("", "", *parts)[-2:] if len(parts) < 3 else ("", "!")
    fits = (
        _PART.fullmatch(model)
        and (not colon or _PART.fullmatch(tag))
        and (not host or _HOST.fullmatch(host))
        and (not slash or (_PART.fullmatch(namespace) and (host or len(parts) == 1)))
    )
    if fits:
        return OllamaName(model, tag or "latest", namespace, host)
    if rest != text:
        raise ConfigError(f"{text[:200]!r} is no name of Ollama; {_HOW}")
    return None


def explain(text: str) -> str:
    """The forms of names, for a text that is none of them."""
    return f"{text[:200]!r} is neither a path that exists nor a name; {_HOW}"


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
    for tried in (tag,) if tag else DEFAULT_TAGS:
        pattern = re.compile(re.escape(tried) + "[.-]", re.IGNORECASE)
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
        order = -len(own), abs(_bits(file) - bits)
        if best is None or order < rank:
            best, rank = file, order
    return best


def _bits(path: str) -> int:
    """Q4_0 → 4, F16 → 16, NVFP4 → 4, none → 0."""
    number = re.search(r"\d+", split_of(path).tag)
    return int(number[0]) if number else 0


def tags_of(files: Iterable[str]) -> list[str]:
    """The types of the models in a repository, for people."""
    return sorted({split_of(f).tag for f in files if is_model(f)} - {""})


INDEX, WHOLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"
# The weights of a checkpoint, and the files that say how they are used.
_SHARD = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_MISTRAL = re.compile(r"consolidated(-\d+-of-\d+)?\.safetensors")
_BESIDE = re.compile(
    r"[^/]+\.(json|model|spm|txt|jinja)|\d+_\w+/[^/]+\.(json|safetensors)|"
    r"additional_chat_templates/[^/]+\.jinja|README\.md|(sparse|colbert)_linear\.safetensors"
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
    if PRESET in files:
        raise FormatError(
            f"{name.repo} is a preset of llama.cpp ({PRESET}), no model; name the repository "
            "of a model"
        )
    model = None if checkpoint else best_model(files, name.tag)
    if model is not None:
        return parts_of(files, model), best_mmproj(files, model) or ""
    if not name.tag and CONFIG in files and any(map(_SHARD.fullmatch, files)):
        return [f for f in files if _SHARD.fullmatch(f) or _BESIDE.fullmatch(f)], ""
    return [], ""


def _of_file(files: Sequence[str], file: str) -> tuple[list[str], str]:
    if file not in files or not file.endswith(".gguf"):
        return [], ""
    split = split_of(file)
    if split.count > 1 and split.index != 1:
        raise FormatError(f"{file} is part {split.index} of {split.count}; name the first one")
    mmproj = best_mmproj(files, file) if is_model(file) else None
    return parts_of(files, file), mmproj or ""


def missing(model: Sequence[str], read: Callable[[str], Path]) -> str:
    """The first file that a model lacks by its own account; "" for a whole one.

    Args:
        read: the file on this machine.
    """
    if model[0].endswith(".gguf"):
        count = split_of(model[0]).count
        if len(model) < count:
            present = {split_of(f).index for f in model}
            lacking = next(i for i in range(1, count + 1) if i not in present)
            return f"part {lacking} of {count}"
        return ""
    if INDEX in model:
        shards = read_json(read(INDEX)).get("weight_map")
        expected = set(shards.values()) if isinstance(shards, dict) else set()
        return next((str(s)[:200] for s in sorted(map(str, expected)) if s not in model), "")
    return "" if WHOLE in model else WHOLE


def is_checkpoint(model: Sequence[str]) -> bool:
    """Whether the files chosen are those of a checkpoint."""
    return not model[0].endswith(".gguf")


def weights_of(repo_files: Sequence[str]) -> str:
    """The things that a repository without the wanted model has, for people."""
    pickles = any(f.endswith((".bin", ".pt", ".pth")) for f in repo_files)
    tags = tags_of(repo_files)
    if tags:
        return f"it has {', '.join(tags[:20])}"
    if any(_MISTRAL.fullmatch(f) for f in repo_files):
        return "it has weights in Mistral's own form, which are not loaded"
    return "it has pickled weights, which are not loaded" if pickles else "it has no weights"


def all_models(files: Sequence[str]) -> list[tuple[str, str]]:
    """Every model in a folder: what follows the repository's name, and its first file, or "" for a
    checkpoint."""
    firsts = [f for f in files if is_model(f) and split_of(f).index == 1]
    models = []
    for file in firsts:
        tag = split_of(file).tag
        same = bool(tag) and best_model(files, tag) == file
        models.append((f":{tag}" if same else f"/{file}", file))
    if CONFIG in files and any(map(_SHARD.fullmatch, files)):
        models.append(("", ""))
    return models
