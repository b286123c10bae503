"""A server on loopback that speaks Ollama's registry's HTTP API, as far as downloads go.

Blobs are answered by a redirect to another host, as the registry does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from .hub_server import Answer, SiteHandler, served
from .stores import digest

ACCEPTED = "application/vnd.docker.distribution.manifest.v2+json"
_API = re.compile(r"/v2/([\w.-]+/[\w.-]+)/(manifests|blobs)/([\w.:-]+)")


@dataclass
class Registry:
    """The models of the server, and its misbehaviour.

    Attributes:
        manifests: "namespace/model:tag" → its manifest. blobs: digits of a digest → content.
        cuts: how many answers of more than a thousand bytes end in the middle.
        ranges: whether it answers parts of blobs.
        damaged: kinds of layers of which other bytes come than the digest says.
        asked: method, path and range of each request.
        strange: paths of requests that ggmodel has no reason for.
        alter: changes an answer before it is sent: "manifest", "blob", "content" or "error".
    """

    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    cuts: int = 0
    ranges: bool = True
    damaged: tuple[str, ...] = ()
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    alter: Callable[[Answer], None] = lambda answer: None
    url: str = ""

    def put(
        self, name: str, *layers: tuple[str, bytes], config: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Adds a model, "namespace/model:tag"; its manifest."""

        def blob(kind: str, data: bytes) -> dict[str, Any]:
            self.blobs[digest(data)] = data
            media = f"application/vnd.ollama.image.{kind}"
            return {"mediaType": media, "digest": f"sha256:{digest(data)}", "size": len(data)}

        about = {"model_format": "gguf", **(config or {})}
        self.manifests[name] = {
            "schemaVersion": 2,
            "mediaType": ACCEPTED,
            "config": blob("config", json.dumps(about).encode()),
            "layers": [blob(kind, data) for kind, data in layers],
        }
        return self.manifests[name]

    def downloads(self) -> list[str]:
        """The digests whose content was asked for, in order."""
        return [path.rpartition("/")[2] for _, path, _ in self.asked if "/content/" in path]

    def kind_of(self, digits: str) -> str:
        """The purpose of a blob."""
        layers = (layer for one in self.manifests.values() for layer in one["layers"])
        kinds = (x["mediaType"].rpartition(".")[2] for x in layers if digits in x["digest"])
        return next(kinds, "config")


def serving_registry(registry: Registry) -> AbstractContextManager[Registry]:
    return served(registry, _Handler)


class _Handler(SiteHandler):
    site: Registry

    def do_GET(self) -> None:
        registry, path = self.site, unquote(urlsplit(self.path).path)
        registry.asked.append(("GET", path, self.headers.get("Range", "")))
        if match := re.fullmatch(r"/content/(\w+)", path):
            return self._content(match[1])
        match = _API.fullmatch(path)
        if match is None:
            registry.strange.append(path)
            return self.send(Answer("error", 404, {}))
        repo, kind, what = match.groups()
        if kind == "manifests":
            return self._manifest(f"{repo}:{what}")
        if what.removeprefix("sha256:") not in registry.blobs:
            return self.send(Answer("error", 404, {}))
        port = urlsplit(registry.url).port
        place = f"http://localhost:{port}/content/{what.removeprefix('sha256:')}"
        return self.send(Answer("blob", 307, {"Location": place}))

    def _manifest(self, name: str) -> None:
        found = self.site.manifests.get(name)
        if found is None or self.headers.get("Accept") != ACCEPTED:
            error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            return self.send(Answer("error", 404, {}, error))
        return self.send(Answer("manifest", 200, {"Content-Type": ACCEPTED}, found))

    def _content(self, digits: str) -> None:
        registry = self.site
        data = registry.blobs[digits]
        if registry.kind_of(digits) in registry.damaged:
            data = bytes(len(data))
        self.send_file(data, {}, registry.ranges)
