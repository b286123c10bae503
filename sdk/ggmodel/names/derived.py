"""Derived models: a store of our own, laid out as Ollama's, so that it is read as that is.

A derived model shares the files of the one that it was made from, by hard links where the disk
allows it, and has its own template, system message and options.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError, Error, ModelNotFound, WriteError
from ..runner.loading.resolved import ResolvedModel
from ..storage import atomic_write, locked, naming, need_unused
from .blobs import Report, Step, blob_path, quiet
from .go_template import as_jinja
from .grammar import ollama_name
from .layers import DerivedModel, absent_base, layers_of, stored_base, uploads
from .ollama import (
    LIBRARY,
    REGISTRY,
    Entry,
    Ollama,
    check_parameters,
    entries_of,
    is_name,
    own_root,
    read_manifest,
)
from .store_files import files_below

_TRIES = 10  # of a model whose files are removed meanwhile


def check(name: str, model: DerivedModel) -> str:
    """Looks whether a model can be created, before anything is.

    Returns:
        The name of the base if it is to be downloaded; else "".

    Raises:
        ConfigError, ModelNotFound, Unsupported: as for `create`.
    """
    _entry_of(name)
    absent = absent_base(model)
    if not absent and stored_base(model) is None:
        uploads(model.files)
    uploads(model.adapters, "adapter")
    check_parameters(model.params)
    if model.template:
        as_jinja(model.template, "the template")
    if model.quantize:
        from ..convert.tensor_types import recipe_of

        recipe_of(model.quantize)
    return absent


def create(name: str, model: DerivedModel, report: Report = quiet) -> ResolvedModel:
    """Creates a model, which replaces another one of that name. A base that is in no store is
    downloaded, and stays.

    Args:
        report: called with each step.

    Raises:
        ConfigError: it is no name, or the model has neither a base nor files.
        ModelNotFound: the base, or a blob, is in no store, and the base is in no registry either.
        DownloadError: the base cannot be downloaded; a further try goes on with what came of it.
        FormatError: a blob is no GGUF file.
        Unsupported: the base is a folder, an option is unsupported, or weights of that type are
            not quantised again.
        WriteError: it cannot be written.
    """
    if absent := check(name, model):
        from .resolver import pull

        model = replace(model, base=pull(absent, report=report))
    with naming(own_root()):
        for _ in range(_TRIES):
            try:
                layers = layers_of(model, report)  # may hash and copy files, which takes long
            except FileNotFoundError as error:
                if isinstance(error, Error):
                    raise
                continue  # a file of the base has gone meanwhile
            digests = [layer["digest"] for layer in layers]
            *others, config = layers
            manifest = {"schemaVersion": 2, "config": config, "layers": others}
            placed = place(name, json.dumps(manifest).encode(), digests, report)
            if placed is not None:
                return placed
    raise WriteError(f"cannot make {name:.200}: its files are removed meanwhile; try again")


def lock(purpose: str) -> AbstractContextManager[None]:
    """The lock of the store: manifests change under it, and blobs are removed."""
    return locked(own_root() / ".lock", purpose)


def place(
    name: str, content: bytes, digests: Collection[str], report: Report
) -> ResolvedModel | None:
    """Writes the manifest of a model whose blobs are here; the one before stays if the model cannot
    be run. None if a blob has gone.

    Args:
        content: of the manifest. digests: of its blobs.
    """
    with lock(f"adding {name:.100}"):
        if not all(blob_path(digest).is_file() for digest in digests):
            return None
        report(Step("writing manifest"))
        entry = _entry_of(name)
        manifest = entry.path
        before = manifest.read_bytes() if manifest.exists() else None
        former = _digests(manifest) if before is not None else set()
        manifest.parent.mkdir(parents=True, exist_ok=True)
        _write(manifest, content)
        try:
            model = Ollama().find(f"ollama://{entry.name}")
            assert model is not None
        except Error:
            if before is None:
                manifest.unlink()
            else:
                _write(manifest, before)
            raise
        with suppress(OSError):  # Windows keeps what a program has open
            free(former)
        return model


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def copy(source: str | ResolvedModel, target: str) -> ResolvedModel:
    """Gives a model of this machine another name.

    Raises:
        Error: as for `create`.
    """
    return create(target, DerivedModel(stored_base(DerivedModel(source)) or ""))


def delete(name: str) -> int:
    """Removes a derived model, and the files that no other one of this store has.

    Returns:
        Bytes that became free.

    Raises:
        ModelNotFound: none of that name was made.
        WriteError: it cannot be removed.
    """
    _entry_of(name)
    with naming(own_root()), lock(f"removing {name:.100}"):
        manifest = _entry_of(name).path
        if not manifest.exists():
            raise ModelNotFound(f"no model {name[:200]!r} was made here")
        mine = _digests(manifest)
        need_unused([path for path in map(blob_path, mine) if path.exists()])
        manifest.unlink()
        return free(mine)


def free(digests: Iterable[str]) -> int:
    """Removes those of the blobs that no model has; bytes that became free. Under the lock."""
    others = {d for path in _manifests() for d in _digests(path)}
    freed = 0
    for digest in {*digests} - others:
        blob = blob_path(digest)
        with suppress(FileNotFoundError):
            alone = blob.stat().st_nlink == 1
            freed += blob.stat().st_size if alone else 0
            blob.unlink()
    return freed


def _entry_of(text: str) -> Entry:
    """The entry of a name; one that is there may have other letters in capitals, or, where the name
    has no host, one of its own.

    Raises:
        ConfigError: it is no name.
    """
    name = ollama_name(text)
    if name is None:
        raise ConfigError(f"invalid model name: {text[:200]!r}; give NAME[:TAG]")
    root = own_root()
    own = next((entry for entry in entries_of(root) if is_name(entry.name, name)), None)
    whole = replace(name, host=name.host or REGISTRY, namespace=name.namespace or LIBRARY)
    return own or Entry(root, whole)


def _manifests() -> list[Path]:
    root = own_root() / "manifests"
    return [root / path for path in files_below(root, depth=3)]


def _digests(manifest: Path) -> set[str]:
    with suppress(Error):
        layers = read_manifest(manifest, manifest.name)
        return {layer.digest for layer in (*layers.all, layers.config)}
    return set()
