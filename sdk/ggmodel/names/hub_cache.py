"""The cache of the Hugging Face hub, which llama.cpp shares:
`models--ORG--NAME/{refs/BRANCH, snapshots/COMMIT/FILE → blobs/DIGEST}`.

A list names the models that `ggmodel pull` downloaded: it removes them without a question.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from .. import storage
from ..errors import Error, FormatError
from ..reading import read_json
from ..runner.loading.resolved import ResolvedModel
from ..storage import write_text
from . import grammar
from .grammar import HubName, hub_name
from .store_files import Stored, contained, files_below, names_in


def _list() -> Path:
    return storage.data_folder() / "pulled.json"


def _read() -> dict[str, Any]:
    with suppress(Error):
        return read_json(_list())
    return {}


def is_own(snapshot: Path, name: str) -> bool:
    """Whether a model in a snapshot was downloaded by us."""
    names = _read().get(str(snapshot))
    return isinstance(names, list) and name in names


def remember(snapshot: Path, name: str, add: bool = True) -> None:
    """Notes a download, or that it is gone. Where this cannot be written, removing it asks."""
    snapshots = _read()
    names = [n for n in snapshots.get(str(snapshot)) or () if n != name] + [name] * add
    snapshots[str(snapshot)] = names
    with suppress(OSError, Error):
        _list().parent.mkdir(parents=True, exist_ok=True)
        write_text(_list(), json.dumps({at: names for at, names in snapshots.items() if names}))


STORE = "Hugging Face's cache"
_PREFIX = "models--"
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# The digests of an empty file: of git, and by SHA-256.
_OF_NOTHING = (
    "git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)


def roots() -> list[Path]:
    """The folders that hold repositories: huggingface_hub's, where downloads go, then llama.cpp's
    where it has one of its own."""
    environ, home = os.environ, os.path.expanduser("~")
    for name, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if environ.get(name):
            first = Path(os.path.expanduser(environ[name]), below)
            break
    else:
        first = Path(home, ".cache", "huggingface", "hub")
    other = environ.get("LLAMA_CACHE")
    return [first, *([Path(other)] if other and Path(other) != first else [])]


def locked(purpose: str) -> AbstractContextManager[None]:
    """The lock under which ggmodel adds models to the caches and removes them; huggingface_hub does
    not take it."""
    return storage.locked(roots()[0] / ".locks" / "ggmodel", purpose)


def repo_folder(root: Path, repo: str) -> Path:
    """The folder of a repository."""
    return root / (_PREFIX + repo.replace("/", "--"))


def commit_of(repo: Path, revision: str = "") -> str:
    """The commit that a revision means in the cache; "" for none. Without a revision it is that of
    the main branch, else of another one."""
    if _COMMIT.fullmatch(revision):
        return revision if (repo / "snapshots" / revision).is_dir() else ""
    branches = [revision] if revision else ["main", *names_in(repo / "refs")]
    for branch in branches:
        try:
            with open(contained(repo / "refs" / branch, [repo]), encoding="ascii") as file:
                commit = file.read(64).strip()
        except (Error, OSError, ValueError):
            continue
        if _COMMIT.fullmatch(commit) and (repo / "snapshots" / commit).is_dir():
            return commit
    return ""


def is_commit(text: str) -> bool:
    """Whether this is the hash of a commit."""
    return bool(_COMMIT.fullmatch(text))


def is_digest(text: str) -> bool:
    """Whether this is the name of a blob: a SHA-256, or a hash of git."""
    return bool(_DIGEST.fullmatch(text))


class HubCache:
    """The source of names of the hub that need no download."""

    title = STORE

    def find(self, name: str, checkpoint: bool = False) -> ResolvedModel | None:
        """See `Source.find`."""
        hub = hub_name(name)
        if hub is None:
            return None
        for root in roots():
            if model := in_cache(root, hub, checkpoint):
                return model
        return None

    def stored(self) -> Iterator[Stored]:
        """See `Source.stored`."""
        for root in roots():
            for entry in names_in(root):
                repo = entry.removeprefix(_PREFIX).replace("--", "/")
                if entry.startswith(_PREFIX) and repo.count("/") == 1 and hub_name(repo):
                    yield from _stored(root, repo)


def in_cache(root: Path, name: HubName, checkpoint: bool = False) -> ResolvedModel | None:
    """A model that lies whole in a cache; None for none, and for half of one.

    Raises:
        FormatError: a link of it leads out of the cache, or in a circle.
    """
    repo = repo_folder(root, name.repo)
    commit = commit_of(repo, name.revision)
    if not commit:
        return None
    snapshot = repo / "snapshots" / commit
    files = [f for f in files_below(snapshot) if not _is_broken(snapshot / f)]
    model, mmproj = grammar.chosen(files, name, checkpoint)
    if not model or grammar.missing(model, snapshot.joinpath):
        return None
    files = [snapshot / file for file in (*model, *filter(None, [mmproj]))]
    blobs = {file: contained(file, [root]) for file in files}
    if empty := [path for path, blob in blobs.items() if _is_emptied(path, blob)]:
        raise FormatError(f"{empty[0]} is empty; remove it and pull the model again")
    return ResolvedModel(
        name=str(name),
        store=STORE,
        path=snapshot if grammar.is_checkpoint(model) else snapshot / model[0],
        mmproj=snapshot / mmproj if mmproj else None,
        digests={blob: d for blob in blobs.values() if (d := digest_of(blob))},
    )


def _is_emptied(path: Path, blob: Path) -> bool:
    """Whether a file lost its content. Repositories hold empty files, too, but no empty weights."""
    is_weights = path.suffix in (".gguf", ".safetensors")
    return not blob.stat().st_size and (is_weights or digest_of(blob) not in ("", *_OF_NOTHING))


def _is_broken(path: Path) -> bool:
    """Whether a link leads to nothing: its blob was never complete, or was removed."""
    return path.is_symlink() and not path.exists() and not _is_circle(path)


def _is_circle(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def digest_of(blob: Path) -> str:
    """The digest of a blob by its name; "" where that tells nothing."""
    if blob.parent.name != "blobs" or not _DIGEST.fullmatch(blob.name):
        return ""
    return ("sha256:" if len(blob.name) == 64 else "git:") + blob.name


def _stored(root: Path, repo: str) -> Iterator[Stored]:
    at = repo_folder(root, repo)
    commit = commit_of(at)
    snapshot = at / "snapshots" / commit
    files = [*files_below(snapshot)] if commit else []
    for rest, first in grammar.all_models(files):
        name = hub_name(repo + rest)
        if name is None:
            continue
        title, problem, resolved = repo + rest, "", None
        try:
            resolved = in_cache(root, name, checkpoint=not first)
            problem = "" if resolved else "the download is not complete"
        except Error as error:
            problem = str(error)
        paths = _files(files, name, snapshot, not first)
        for old in _older(at, title):
            paths += _unshared(repo, title, old)
        yield Stored(
            title,
            STORE,
            None if resolved is None else resolved.path,
            sum(map(_size, {os.path.realpath(path) for path in paths})),
            problem,
            is_own(snapshot, title),
            tuple(paths),
        )


def _older(repo: Path, title: str) -> list[Path]:
    """Snapshots of commits that a branch has left, in which we downloaded a model."""
    current = {commit_of(repo, branch) for branch in names_in(repo / "refs")}
    commits = [c for c in names_in(repo / "snapshots") if c not in current]
    return [at for c in commits if is_own(at := repo / "snapshots" / c, title)]


def _unshared(repo: str, title: str, snapshot: Path) -> list[Path]:
    """The files of a model in a snapshot that are of no other model there."""
    files = [*files_below(snapshot)]
    own_files: list[Path] = []
    others: set[Path] = set()
    for rest, first in grammar.all_models(files):
        if name := hub_name(repo + rest):
            model_files = _files(files, name, snapshot, not first)
            own_files += model_files if repo + rest == title else []
            others |= set(model_files if repo + rest != title else [])
    return [path for path in own_files if path not in others]


def _files(files: list[str], name: HubName, snapshot: Path, checkpoint: bool) -> list[Path]:
    model, mmproj = grammar.chosen(files, name, checkpoint)
    return [*map(partial(Path.joinpath, snapshot), [*model, *filter(None, [mmproj])])]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
