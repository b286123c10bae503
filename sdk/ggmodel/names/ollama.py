"""Ollama's store, read only: `manifests/HOST/NAMESPACE/MODEL/TAG` names layers, which are files
`blobs/sha256-DIGEST`. A store of our own, see `made`, looks the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import folders
from ..errors import ConfigError, Error
from .found import Found, Stored
from .grammar import HubName, OllamaName, hub_name, ollama_name
from .inside import files_below, inside
from .ollama_layers import HUGGING_FACE, Layers, blob_of, defaults_of, read_manifest, template_of

STORE, OWN_STORE = "Ollama's store", "ggmodel's own store"
LIBRARY = "library"  # the namespace of names without one
OWN_HOST = "local"  # of the names in our own store
_SYSTEM = "/usr/share/ollama/.ollama/models"  # of the service on Linux


def roots() -> list[Path]:
    """The stores: our own; then the one of OLLAMA_MODELS, or the user's and the service's."""
    own: list[Path] = []
    with suppress(ConfigError):  # a user without a home folder has made none
        own = [own_root()]
    if given := os.environ.get("OLLAMA_MODELS"):
        return [*own, Path(os.path.expanduser(given))]
    return [*own, Path(os.path.expanduser("~/.ollama/models")), Path(_SYSTEM)]


def own_root() -> Path:
    """The store of models that were made here.

    Raises:
        ConfigError: the user has no home folder.
    """
    return folders.data() / "models"


@dataclass(frozen=True)
class _Entry:
    """A manifest in a store."""

    root: Path
    name: OllamaName

    @property
    def path(self) -> Path:
        n = self.name
        return self.root / "manifests" / n.host / n.namespace / n.model / n.tag

    @property
    def store(self) -> str:
        with suppress(ConfigError):
            return OWN_STORE if self.root == own_root() else STORE
        return STORE

    @property
    def short(self) -> str:
        """The name as users type it: without the host that all others have, too."""
        n = self.name
        if n.host == HUGGING_FACE:
            return str(n)
        namespace = "" if n.namespace == LIBRARY else f"ollama://{n.namespace}/"
        return f"{namespace}{n.model}:{n.tag}"


class Ollama:
    """The source of names of Ollama."""

    title = STORE

    def find(self, name: str, checkpoint: bool = False) -> Found | None:
        """See `Source.find`."""
        if checkpoint:
            return None
        entry = _entry(name)
        return None if entry is None else _found(entry)

    def layers(self, name: str) -> tuple[Path, Layers] | None:
        """The store and the layers of a model; None where there is none of that name.

        Raises:
            ConfigError, FormatError: as for `find`.
        """
        entry = _entry(name)
        return None if entry is None else (entry.root, _layers(entry))

    def stored(self) -> Iterator[Stored]:
        """See `Source.stored`."""
        for root in roots():
            for entry in _entries(root):
                yield _stored(entry)


def _entry(name: str) -> _Entry | None:
    wanted = _wanted(name)
    for root in roots() if wanted is not None else ():
        entries = [e for e in _entries(root) if wanted and _is(e.name, wanted)]
        if len({e.name.host for e in entries}) > 1:
            listed = ", ".join(sorted(f"ollama://{e.name}" for e in entries))
            raise ConfigError(f"{name} is in {root} from several hosts; name one: {listed}")
        if entries:
            return entries[0]
    return None


def _wanted(name: str) -> OllamaName | None:
    hub = hub_name(name)
    if isinstance(hub, HubName):
        if hub.revision or hub.file:
            return None
        if hub.explicit:  # hf.co/ORG/REPO, which Ollama has pulled from there
            namespace, _, model = hub.repo.partition("/")
            return OllamaName(model, hub.tag or "latest", namespace, HUGGING_FACE)
    return ollama_name(name)


def _is(own: OllamaName, wanted: OllamaName) -> bool:
    """Whether a name of the store is the wanted one; letters in capitals count as small ones."""
    namespace = wanted.namespace or LIBRARY
    ours = own.model, own.tag, own.namespace
    theirs = wanted.model, wanted.tag, namespace
    same = [a.casefold() == b.casefold() for a, b in zip(ours, theirs, strict=True)]
    if wanted.host:
        return all(same) and own.host.casefold() == wanted.host.casefold()
    return all(same) and (own.host != HUGGING_FACE or bool(wanted.namespace))


def _entries(root: Path) -> Iterator[_Entry]:
    for path in files_below(root / "manifests", depth=3):
        parts = path.split("/")
        if len(parts) != 4:
            continue
        host, namespace, model, tag = parts
        try:
            name = ollama_name(f"ollama://{host}/{namespace}/{model}:{tag}")
        except ConfigError:
            continue
        if name is not None:
            yield _Entry(root, name)


def _layers(entry: _Entry) -> Layers:
    inside(entry.path, [entry.root])
    return read_manifest(entry.path, entry.short)


def _found(entry: _Entry) -> Found:
    layers = _layers(entry)
    layers.refuse(entry.root)
    weights = layers.of("model", "projector", "adapter")
    blobs = {layer: blob_of(entry.root, layer) for layer in weights}
    models = [blobs[layer] for layer in layers.models]
    projectors = [blobs[layer] for layer in layers.projectors]
    return Found(
        name=entry.short,
        store=entry.store,
        path=models[0],
        parts=tuple(models) if len(models) > 1 else (),
        mmproj=projectors[0] if projectors else None,
        adapters=tuple(blobs[layer] for layer in layers.of("adapter")),
        template=template_of(entry.root, layers),
        defaults=defaults_of(entry.root, layers),
        digests={path: layer.digest for layer, path in blobs.items()},
    )


def _stored(entry: _Entry) -> Stored:
    try:
        layers = _layers(entry)
        nbytes = sum(layer.size for layer in layers.all)
        path = _found(entry).path
        own, digest = entry.store == OWN_STORE, hashlib.sha256(entry.path.read_bytes()).hexdigest()
        return Stored(entry.short, entry.store, path, nbytes, own=own, digest=digest)
    except (Error, OSError) as error:
        return Stored(entry.short, entry.store, None, _promised(entry), str(error))


def _promised(entry: _Entry) -> int:
    try:
        return sum(layer.size for layer in _layers(entry).all)
    except (Error, OSError):
        return 0
