"""Derived models: a store of our own, laid out as Ollama's, so that it is read as that is.

A derived model shares the files of the one that it was made from, by hard links where the disk
allows it, and has its own template, system message and options.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ConfigError, Error, FormatError, ModelNotFound, Unsupported, WriteError
from ..runner.loading.resolved import ResolvedModel
from ..storage import atomic_write, locked, naming, need_unused, write_text
from .grammar import OllamaName, ollama_name, parts_of
from .ollama import (
    LIBRARY,
    OWN_HOST,
    Layers,
    Ollama,
    blob_of,
    check_parameters,
    own_root,
    read_manifest,
)
from .store_files import files_below

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MEDIA = "application/vnd.ollama.image."
_CHUNK = 1 << 20
_TRIES = 10  # of a model whose files are removed meanwhile
_SPARE = 64 << 20  # bytes of the disk that stay free
_EVERY = 16 << 20  # bytes after which a blob under way is looked at whether it still has room


@dataclass(frozen=True)
class DerivedModel:
    """A model to be created.

    Attributes:
        base: the name of a model in a store; "" if there are files.
        files: name → digest of a blob: GGUF files, of which a projector has "mmproj" in its name.
        adapters: the same of LoRA adapters.
        template: Ollama's, in Go's language; "" keeps the base's, as for the rest.
        params: options, as Ollama calls them.
        messages: dicts with role and content.
    """

    base: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()


Layer = dict[str, Any]


def blob_path(digest: str) -> Path:
    """Where a blob lies, or would.

    Raises:
        ConfigError: it is no digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{digest[:100]!r} is no digest; give sha256: and 64 hexadecimal digits")
    return own_root() / "blobs" / digest.replace(":", "-")


class _Hashing:
    """A file that hashes what is written to it, while the disk has room."""

    def __init__(self, file: BinaryIO):
        self._file, self._hash = file, hashlib.sha256()
        self._unchecked = 0

    def write(self, data: bytes) -> None:
        self._unchecked += len(data)
        if self._unchecked > _EVERY:
            check_room(self._unchecked)
            self._unchecked = 0
        self._file.write(data)
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


@contextmanager
def receive_blob(digest: str) -> Iterator[_Hashing]:
    """A file to write a blob to; it is kept if its content has the digest.

    Raises:
        ConfigError: it is no digest.
        FormatError: the content has another one.
        WriteError: it cannot be written.
    """
    path = blob_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        hashing = _Hashing(file)
        yield hashing
        if hashing.digest != digest:
            raise FormatError(f"the blob is {hashing.digest}, not {digest}; send it again")


def check_room(size: int) -> None:
    """Raises WriteError unless so many bytes have room in the store."""
    folder = own_root()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size + _SPARE > free:
        raise WriteError(
            f"{folder} has {free:,} bytes left for {size:,}; set XDG_DATA_HOME to a folder "
            "elsewhere"
        )


def check(name: str, model: DerivedModel) -> None:
    """Looks whether a model can be created, before anything is.

    Raises:
        ConfigError, ModelNotFound, Unsupported: as for `create`.
    """
    _manifest_of(name)
    if _stored_base(model) is None:
        _uploads(model.files)
    _uploads(model.adapters, "adapter")
    check_parameters(model.params)


def create(name: str, model: DerivedModel) -> ResolvedModel:
    """Creates a model, which replaces another one of that name.

    Raises:
        ConfigError: it is no name, or the model has neither a base nor files.
        ModelNotFound: the base, or a blob, is in no store.
        Unsupported: the base is a folder, or an option is unsupported.
        WriteError: it cannot be written.
    """
    _name(name)
    with naming(own_root()):
        for _ in range(_TRIES):
            try:
                layers = _layers(model)  # may hash and copy files, which takes long
            except FileNotFoundError as error:
                if isinstance(error, Error):
                    raise
                continue  # a file of the base has gone meanwhile
            with _locked(f"creating {name:.100}"):
                if all(blob_path(layer["digest"]).is_file() for layer in layers):
                    return _place(name, layers)
    raise WriteError(f"cannot make {name:.200}: its files are removed meanwhile; try again")


def _locked(purpose: str) -> AbstractContextManager[None]:
    """The lock of the store: manifests change under it, and blobs are removed."""
    return locked(own_root() / ".lock", purpose)


def _layers(model: DerivedModel) -> list[Layer]:
    """The layers of a model in order, its config the last; their blobs are in the store."""
    layers = _base(model)
    replaced = _own_layers(model)
    kinds = {layer["mediaType"] for layer in replaced}
    kept = [layer for layer in layers if layer["mediaType"] not in kinds]
    return [*kept, *replaced, _put(b'{"model_format":"gguf"}', "config")]


def _place(name: str, layers: Sequence[Layer]) -> ResolvedModel:
    """Writes the manifest of a model; the one before stays if the model cannot be run."""
    manifest = _manifest_of(name)
    *others, config = layers
    before = manifest.read_text(encoding="utf-8") if manifest.exists() else None
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
    return model


def copy(source: str, target: str) -> ResolvedModel:
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
        others = {d for path in _manifests() for d in _digests(path)}
        freed = 0
        for digest in mine - others:
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


def _stored_base(model: DerivedModel) -> ResolvedModel | None:
    """The model that another one is made from; None if it is made from files."""
    if bool(model.base) == bool(model.files):
        raise ConfigError("a model is made from another one, or from files: give one of both")
    if model.files:
        return None
    from .resolver import find_stored

    base = find_stored(model.base)
    if base is None:
        raise ModelNotFound(f"no model {model.base[:200]!r} is in a store of this machine")
    if base.path.is_dir():
        raise Unsupported(f"{model.base} is a folder; convert it to a GGUF file first")
    return base


def _base(model: DerivedModel) -> list[Layer]:
    """The layers that a model is made from."""
    base = _stored_base(model)
    if base is None:
        return _uploads(model.files)
    if (layers := Ollama().layers(model.base)) is not None:
        return _of_store(*layers)
    beside = [entry.name for entry in base.path.parent.iterdir()]
    parts = [base.path.parent / part for part in parts_of(beside, base.path.name)]
    files = [(path, "model") for path in parts]
    files += [(base.mmproj, "projector")] if base.mmproj else []
    return [_linked(path, kind, base.digests) for path, kind in files]


def _of_store(root: Path, layers: Layers) -> list[Layer]:
    paths = [blob_of(root, layer) for layer in layers.all]
    pairs = zip(paths, layers.all, strict=True)
    return [_linked(path, layer.kind, {path: layer.digest}) for path, layer in pairs]


def _uploads(files: Mapping[str, str], kind: str = "") -> list[Layer]:
    return [_uploaded(name, digest, kind) for name, digest in sorted(files.items())]


def _uploaded(name: str, digest: str, kind: str = "") -> Layer:
    path = blob_path(digest)
    if not path.is_file():
        raise ModelNotFound(f"the blob {digest} of {name[:100]!r} is not here; send it first")
    kind = kind or ("projector" if "mmproj" in name.casefold() else "model")
    return _layer(kind, digest, path.stat().st_size)


def _own_layers(model: DerivedModel) -> list[Layer]:
    """The layers that the base does not have."""
    layers = _uploads(model.adapters, "adapter")
    if model.template:
        layers.append(_put(model.template.encode(), "template"))
    if model.system:
        layers.append(_put(model.system.encode(), "system"))
    if model.params:
        layers.append(_put(json.dumps(dict(model.params)).encode(), "params"))
    if model.messages:
        layers.append(_put(json.dumps([dict(m) for m in model.messages]).encode(), "messages"))
    return layers


def _layer(kind: str, digest: str, size: int) -> Layer:
    return {"mediaType": _MEDIA + kind, "digest": digest, "size": size}


def _put(data: bytes, kind: str) -> Layer:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    path = blob_path(digest)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
    return _layer(kind, digest, len(data))


def _linked(path: Path, kind: str, digests: Mapping[Path, str]) -> Layer:
    """A layer that shares a file of another store."""
    real = Path(os.path.realpath(path))
    digest = digests.get(path) or digests.get(real) or ""
    if not _DIGEST.fullmatch(digest):
        digest = _digest_of(real)
    target = blob_path(digest)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(real, target)
        except FileExistsError:  # another writer was faster
            pass
        except OSError:  # another disk
            check_room(real.stat().st_size)
            with atomic_write(target) as file, open(real, "rb") as source:
                shutil.copyfileobj(source, file, _CHUNK)
    return _layer(kind, digest, real.stat().st_size)


def _digest_of(path: Path) -> str:
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return f"sha256:{hashed.hexdigest()}"
