"""How names are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigError

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
    found = _split_hub(rest, explicit) if len(rest) <= _LONGEST else None
    if found is None and explicit:
        raise ConfigError(f"{text[:200]!r} is no name of the hub; {_HOW}")
    return found


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
