"""Ollama's registry, whose models are downloaded into our own store.

A model is a manifest, which names blobs by their digests. A blob gets its name when it is complete
and hashes to it, and the manifest is written last: half a download is taken for none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import DownloadError, Error, FormatError, ModelNotFound, WriteError
from ..runner.loading.resolved import Progress, ResolvedModel
from ..storage import locked, naming
from ..storage import replace as rename
from . import derived
from .blobs import Report, Step, blob_path, check_room, digest_of, quiet
from .download import announced, is_offline
from .grammar import OllamaName
from .ollama import (
    LIBRARY,
    REGISTRY,
    Layer,
    Layers,
    defaults_of,
    layers_in,
    own_root,
    template_of,
)
from .remote import Content, Remote

_MIRROR = "GGMODEL_OLLAMA_REGISTRY"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_WEIGHTS = ("model", "projector", "adapter", "draft", "tensor")
_MOST = 1000  # layers of a model
_LARGEST = 1 << 62  # bytes of a layer
_TRIES = 5  # of a download whose files are removed meanwhile
_DIGITS = slice(7, 19)  # of a digest, in Ollama's lines


class Registry(Remote):
    """The part of a registry that has a model; its answers are checked.

    Methods raise DownloadError where it cannot be reached or its answer is invalid, and
    ModelNotFound where it has no such model.
    """

    def __init__(self, name: OllamaName):
        super().__init__(name, "Ollama's registry", _MIRROR)
        host = name.host or REGISTRY
        mirror = os.environ.get(_MIRROR) if host == REGISTRY else None
        endpoint = (mirror or f"https://{host}").rstrip("/")
        self._tag, self._host = name.tag, host
        self._url = f"{endpoint}/v2/{name.namespace or LIBRARY}/{name.model}"

    def manifest(self) -> tuple[bytes, Layers]:
        """The manifest, and what it says."""
        data, _ = self._body(f"{self._url}/manifests/{self._tag}", {"Accept": _MANIFEST})
        try:
            content = json.loads(data)
            layers = layers_in(
                content if isinstance(content, dict) else {}, self._url, str(self._name)
            )
        except (FormatError, ValueError, RecursionError):
            raise self._nonsense("sends no manifest") from None
        if len(layers.all) > _MOST or any(layer.size >= _LARGEST for layer in layers.all):
            raise self._nonsense("names too many layers, or too large ones")
        return data, layers

    def content(self, layer: Layer) -> Content:
        """Where a layer is."""
        url = f"{self._url}/blobs/{layer.digest}"
        return Content(f"layer {layer.digest[_DIGITS]}", layer.digest, layer.size, url)

    def _refusal(self, response: Any) -> Error:
        status, whole = response.status_code, f"{self._host} has no model {self._name}"
        if status in (401, 403):
            reason = f"unauthorized: {whole}, or it is private; check the name"
        elif status == 404 and "/blobs/" in str(response.url):
            reason = f"{self._host} has lost a layer of {self._name}; try again later"
        elif status == 404:
            reason = f"file does not exist: {whole}; check the name and the tag"
        else:
            return super()._refusal(response)
        return ModelNotFound(f"pull model manifest: {reason}")


def pull(
    name: OllamaName, progress: Progress | None = None, report: Report = quiet
) -> ResolvedModel:
    """Downloads a model, or what has changed of it.

    Args:
        progress: called with the share downloaded; None shows a bar on a terminal.
        report: called with each step, in Ollama's words.

    Raises:
        DownloadError: the registry cannot be reached, its answer is invalid, or a blob arrived
            damaged. ModelNotFound: it has no such model, or downloads are forbidden.
        Unsupported, FormatError, ConfigError: it cannot be run; told before its weights come.
        WriteError: it cannot be written.
    """
    if is_offline():
        raise ModelNotFound(f"{name} is not to be downloaded: HF_HUB_OFFLINE forbids it")
    registry = Registry(name)
    report(Step("pulling manifest"))
    data, layers = registry.manifest()
    every = {layer.digest: layer for layer in (layers.config, *layers.all)}
    small = [layer for layer in every.values() if layer.kind not in _WEIGHTS]
    large = [layer for layer in every.values() if layer.kind in _WEIGHTS]
    registry.allow(len(every))
    with naming(own_root(), after="the same command goes on where it stopped"):
        for _ in range(_TRIES):
            lacking = [layer for layer in every.values() if not _is_here(layer)]
            nbytes = sum(layer.size for layer in lacking)
            check_room(nbytes - sum(_present(layer) for layer in lacking))
            with announced(str(name), len(lacking), nbytes, progress) as count:
                _fetch_all(registry, small, lacking, count, report)
                _check(layers, small)
                _fetch_all(registry, large, lacking, count, report)
            report(Step("verifying sha256 digest"))
            if model := derived.place(f"ollama://{name}", data, every, report):
                return model
    raise WriteError(f"cannot add {name}: its files are removed meanwhile; try again")


def _check(layers: Layers, small: list[Layer]) -> None:
    """Refuses a model that cannot be run, and forgets what came of it."""
    root = own_root()
    try:
        layers.refuse(root)
        template_of(root, layers)
        defaults_of(root, layers)
    except Error:
        with derived.lock("giving up a download"):
            derived.free(layer.digest for layer in small)
        raise


def _fetch_all(
    registry: Registry,
    layers: list[Layer],
    lacking: list[Layer],
    count: Callable[[int], None],
    report: Report,
) -> None:
    for layer in layers:
        status = f"pulling {layer.digest[_DIGITS]}"
        if layer not in lacking:
            report(Step(status, layer.digest, layer.size, layer.size))
            continue
        content = registry.content(layer)
        done = 0

        def came(nbytes: int, layer: Layer = layer, status: str = status) -> None:
            nonlocal done
            done += nbytes
            count(nbytes)
            report(Step(status, layer.digest, layer.size, done))

        lock = own_root() / ".locks" / f"{blob_path(layer.digest).name}.lock"
        with locked(lock, f"downloading {layer.digest}", content.seconds):
            _fetch(registry, content, layer, came)


def _fetch(registry: Registry, content: Content, layer: Layer, came: Callable[[int], None]) -> None:
    blob = blob_path(layer.digest)
    if _is_here(layer):  # another process was faster
        came(layer.size)
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = _part(layer)
    try:
        registry.download(content, part, came)
        if digest_of(part) != layer.digest:
            part.unlink()
            raise DownloadError(
                f"{content.path} arrived damaged: digest mismatch, file must be downloaded again"
            )
        rename(part, blob)
    finally:
        if not _present(layer):
            part.unlink(missing_ok=True)


def _is_here(layer: Layer) -> bool:
    """Whether a blob is complete. It has been hashed when it got its name."""
    path = blob_path(layer.digest)
    return path.is_file() and path.stat().st_size == layer.size


def _part(layer: Layer) -> Path:
    """A blob as far as it came."""
    blob = blob_path(layer.digest)
    return blob.with_name(f"{blob.name}.incomplete")


def _present(layer: Layer) -> int:
    """Bytes of a blob that need no download."""
    with suppress(OSError):
        return os.lstat(_part(layer)).st_size
    return 0
