"""A server on loopback that speaks the hub's HTTP API, as far as downloads go.

Files are answered by a redirect, as the hub does for large ones, with the digest in X-Linked-Etag.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from .stores import COMMIT, digest

_MODEL = re.compile(r"/api/models/(\w+/[\w.-]+)(?:/(revision|tree)/([^/]+))?")
_RESOLVE = re.compile(r"/(\w+/[\w.-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Answer:
    """An answer of the server.

    Attributes:
        kind: what it answers: "about", "tree", "resolve", "content" or "error".
        body: bytes, pieces of bytes, which may have no end, or a value that is sent as JSON.
    """

    kind: str
    status: int
    headers: dict[str, str]
    body: Any = b""


@dataclass
class Hub:
    """The files of the server, and its misbehaviour.

    Attributes:
        repos: repository → path → content.
        fault: status of every answer to a download, "gated", or "" for none.
        token: that a request must bring.
        cuts: how many answers of more than a thousand bytes end in the middle.
        damaged: send other bytes than the digest says.
        commit: of all repositories.
        revision: a name of that commit beside main.
        asked: method, path and range of each request.
        strange: paths of requests that ggmodel has no reason for.
        alter: changes an answer before it is sent.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    fault: int | str = ""
    token: str = ""
    cuts: int = 0
    damaged: bool = False
    commit: str = COMMIT
    revision: str = "v2"
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    alter: Callable[[Answer], None] = lambda answer: None
    url: str = ""


S = TypeVar("S")


@contextmanager
def served(site: S, kind: type[SiteHandler]) -> Iterator[S]:
    """A site whose requests handlers of a kind answer; its `url` is set."""
    handler = type(kind.__name__, (kind,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda request, client_address: None  # of clients that have had enough
    site.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class SiteHandler(BaseHTTPRequestHandler):
    """Sends what a site's `alter` makes of answers, and files that `cuts` of them break off."""

    site: Any
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_file(self, data: bytes, headers: dict[str, str], ranges: bool = True) -> None:
        begin = re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range", ""))
        begin = begin if ranges else None
        part = data[int(begin[1]) :] if begin else data
        headers["Content-Length"] = str(len(part))
        if begin:
            headers["Content-Range"] = f"bytes {begin[1]}-{len(data) - 1}/{len(data)}"
        if self.site.cuts and len(part) > 1000 and self.command == "GET":
            self.site.cuts -= 1
            part = part[: len(part) // 2]
            self.close_connection = True
        self.send(Answer("content", 206 if begin else 200, headers, part))

    def send(self, answer: Answer) -> None:
        self.site.alter(answer)
        body = answer.body
        if not isinstance(body, (bytes, Iterator)):
            body = json.dumps(body).encode()
        if isinstance(body, bytes):
            answer.headers.setdefault("Content-Length", str(len(body)))
        else:
            self.close_connection = True
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        with suppress(OSError):  # of a client that has had enough
            self.end_headers()
            for piece in [body] if isinstance(body, bytes) else body:
                if self.command != "HEAD":
                    self.wfile.write(piece)


def serving(hub: Hub) -> AbstractContextManager[Hub]:
    return served(hub, _Handler)


class _Handler(SiteHandler):
    site: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.site, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if match := re.fullmatch(r"/content/(\w+)", path):
            return self._content(match[1])
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._error(401, "RepoNotFound")
        if match := _MODEL.fullmatch(path):
            return self._about(*match.groups())
        if match := _RESOLVE.fullmatch(path):
            return self._resolve(*match.groups())
        hub.strange.append(path)
        return self._error(404, "")

    def _about(self, repo: str, kind: str | None, revision: str | None) -> None:
        files = self.site.repos.get(repo)
        if files is None:
            return self._error(404, "RepoNotFound")
        if revision not in (None, "main", self.site.revision, self.site.commit):
            return self._error(404, "RevisionNotFound")
        if self.site.fault == 429:
            return self._error(429, "")
        if kind != "tree":
            about = {"id": repo, "sha": self.site.commit, "siblings": []}
            return self.send(Answer("about", 200, {}, about))
        entries = [
            {
                "type": "file",
                "path": path,
                "size": len(data),
                "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
                "lfs": {"oid": digest(data), "size": len(data), "pointerSize": 100},
            }
            for path, data in files.items()
        ]
        return self.send(Answer("tree", 200, {}, entries))

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        data = self.site.repos.get(repo, {}).get(file)
        if self.site.fault == "gated":
            return self._error(403, "GatedRepo")
        if self.site.fault:
            return self._error(int(self.site.fault), "")
        if data is None:
            return self._error(404, "EntryNotFound")
        # Another host, as a CDN is: the token stays behind.
        port = urlsplit(self.site.url).port
        headers = {
            "Location": f"http://localhost:{port}/content/{digest(data)}",
            "X-Repo-Commit": self.site.commit,
            "X-Linked-Etag": f'"{digest(data)}"',
            "X-Linked-Size": str(len(data)),
        }
        return self.send(Answer("resolve", 302, headers))

    def _content(self, wanted: str) -> None:
        every = (data for files in self.site.repos.values() for data in files.values())
        data = next(data for data in every if digest(data) == wanted)
        if self.site.damaged:
            data = bytes(len(data))
        self.send_file(data, {"ETag": f'"{wanted}"'})

    def _error(self, status: int, code: str) -> None:
        self.send(Answer("error", status, {"X-Error-Code": code} if code else {}))
