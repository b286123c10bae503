"""Derived models: a store of our own, laid out as Ollama's, so that it is read as that is.

A derived model shares the files of the one that it was made from, by hard links where the disk
allows it, and has its own template, system message and options.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ..errors import ConfigError, Error, ModelNotFound, WriteError
from ..runner.loading.resolved import ResolvedModel
from ..storage import locked, naming, need_unused, write_text
from .blobs import Report, Step, blob_path, quiet
from .go_template import as_jinja
from .grammar import OllamaName, ollama_name
from .layers import DerivedModel, Layer, layers_of, stored_base, uploads
from .ollama import LIBRARY, OWN_HOST, Ollama, check_parameters, own_root, read_manifest
from .store_files import files_below

_TRIES = 10  # of a model whose files are removed meanwhile


def check(name: str, model: DerivedModel) -> None:
    """Looks whether a model can be created, before anything is.

    Raises:
        ConfigError, ModelNotFound, Unsupported: as for `create`.
    """
    _manifest_of(name)
    if stored_base(model) is None:
        uploads(model.files)
    uploads(model.adapters)
    check_parameters(model.params)
    if model.template:
        as_jinja(model.template, "the template")
    if model.quantize:
        from ..convert.tensor_types import recipe_of

        recipe_of(model.quantize)


def create(name: str, model: DerivedModel, report: Report = quiet) -> ResolvedModel:
    """Creates a model, which replaces another one of that name.

    Args:
        report: called with each step.

    Raises:
        ConfigError: it is no name, or the model has neither a base nor files.
        ModelNotFound: the base, or a blob, is in no store.
        FormatError: a blob is no GGUF file.
        Unsupported: the base is a folder, an option is unsupported, or weights of that type are
            not quantised again.
        WriteError: it cannot be written.
    """
    _name(name)
    with naming(own_root()):
        for _ in range(_TRIES):
            try:
                layers = layers_of(model, report)  # may hash and copy files, which takes long
            except FileNotFoundError as error:
                if isinstance(error, Error):
                    raise
                continue  # a file of the base has gone meanwhile
            with _locked(f"creating {name:.100}"):
                if all(blob_path(layer["digest"]).is_file() for layer in layers):
                    report(Step("writing manifest"))
                    return _place(name, layers)
    raise WriteError(f"cannot make {name:.200}: its files are removed meanwhile; try again")


def _locked(purpose: str) -> AbstractContextManager[None]:
    """The lock of the store: manifests change under it, and blobs are removed."""
    return locked(own_root() / ".lock", purpose)


def _place(name: str, layers: Sequence[Layer]) -> ResolvedModel:
    """Writes the manifest of a model; the one before stays if the model cannot be run."""
    manifest = _manifest_of(name)
    *others, config = layers
    before = manifest.read_text(encoding="utf-8") if manifest.exists() else None
    former = _digests(manifest) if before is not None else set()
    manifest.parent.mkdir(parents=True, exist_ok=True)
    write_text(manifest, json.dumps({"schemaVersion": 2, "config": config, "layers": others}))
    try:
        model = Ollama().find(_spelled(name))
        assert model is not None
    except Error:
        if before is None:
            manifest.unlink()
        else:
            write_text(manifest, before)
        raise
    with suppress(OSError):  # Windows keeps what a program has open
        _free(former)
    return model


def copy(source: str | ResolvedModel, target: str) -> ResolvedModel:
    """Gives a model another name.

    Raises:
        Error: as for `create`.
    """
    return create(target, DerivedModel(source))


def delete(name: str) -> int:
    """Removes a derived model, and the files that no other one of this store has.

    Returns:
        Bytes that became free.

    Raises:
        ModelNotFound: none of that name was made.
        WriteError: it cannot be removed.
    """
    _name(name)
    with naming(own_root()), _locked(f"removing {name:.100}"):
        manifest = _manifest_of(name)
        if not manifest.exists():
            raise ModelNotFound(f"no model {name[:200]!r} was made here")
        mine = _digests(manifest)
        need_unused([path for path in map(blob_path, mine) if path.exists()])
        manifest.unlink()
        return _free(mine)


def _free(digests: Iterable[str]) -> int:
    """Removes those of the blobs that no model has; bytes that became free."""
    others = {d for path in _manifests() for d in _digests(path)}
    freed = 0
    for digest in {*digests} - others:
        blob = blob_path(digest)
        with suppress(FileNotFoundError):
            alone = blob.stat().st_nlink == 1
            freed += blob.stat().st_size if alone else 0
            blob.unlink()
    return freed


def _name(text: str) -> OllamaName:
    name = ollama_name(text)
    if name is None or name.host not in ("", OWN_HOST):
        raise ConfigError(f"{text[:200]!r} is no name for a model made here; give NAME[:TAG]")
    return name


def _spelled(text: str) -> str:
    name = _name(text)
    return f"ollama://{OWN_HOST}/{name.namespace or LIBRARY}/{name.model}:{name.tag}"


def _manifest_of(text: str) -> Path:
    """The manifest of a name; one that is there may have other letters in capitals."""
    name, root = _name(text), own_root() / "manifests"
    path = root / OWN_HOST / (name.namespace or LIBRARY) / name.model / name.tag
    if path.exists():
        return path
    folded = str(path).casefold()
    return next((other for other in _manifests() if str(other).casefold() == folded), path)


def _manifests() -> list[Path]:
    root = own_root() / "manifests"
    return [root / path for path in files_below(root, depth=3)]


def _digests(manifest: Path) -> set[str]:
    with suppress(Error):
        layers = read_manifest(manifest, manifest.name)
        return {layer.digest for layer in (*layers.all, layers.config)}
    return set()
