"""A hub that means harm: each header and each field of its answers, changed at random."""

from __future__ import annotations

import gzip
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmodel import limits, names
from ggmodel.errors import DownloadError, Error, ModelNotFound

from .conftest import Homes
from .hub_server import Answer, Hub
from .stores import digest

REPO = {"m-Q4_K_M.gguf": b"GGUF" + bytes(range(256)) * 20, "mmproj-F16.gguf": b"GGUF that sees"}
COUNT, SECONDS = 30, 20.0  # answers that are changed; for one download
KINDS = ("about", "tree", "resolve", "content")
HEADERS = (
    "ETag X-Linked-Etag X-Linked-Size X-Repo-Commit Location Link Content-Length Content-Range "
    "Content-Encoding Content-Type Transfer-Encoding X-Error-Code X-Error-Message Retry-After "
    "X-Xet-Hash X-Xet-Refresh-Route"
).split()
_FIELDS = (-1, 0, 2**70, 1e308, True, None, [], {}, [[[]]], "\ud800", "a\n\x1b[2J.gguf")
STATUSES = (199, 204, 206, 301, 304, 308, 401, 403, 404, 416, 429, 503, 599, 700)


class Hostile:
    """Changes one thing in all answers of one kind; the same for the same seed."""

    def __init__(self, seed: int, hub: Hub, victim: Path):
        self._random = random.Random(seed)
        self._kind = self._random.choice(KINDS)
        self._way = self._random.choice(["header", "header", "field", "field", "status", "body"])
        self._values = [
            *(str(victim), f'"{victim}"', "../../../victim", "..", "", "a\x1b[31m", "x" * 70_000),
            *(hub.url, f"{hub.url}/api/models/org/repo", "http://[", "file:///etc/passwd"),
            *("-1", "1" * 30, "0", "f" * 40, 'W/"' + "f" * 64 + '"', "gzip", "GatedRepo", "\xff"),
            *(f"<{hub.url}/api/models/org/repo/tree/x>; rel=next", "<http://[>; rel=next"),
        ]

    def __call__(self, answer: Answer) -> None:
        if answer.kind == self._kind:
            getattr(self, f"_{self._way}")(answer)

    def _header(self, answer: Answer) -> None:
        name, value = self._random.choice(HEADERS), self._random.choice([*self._values, None])
        if value is None:
            answer.headers.pop(name, None)
        else:
            answer.headers[name] = value

    def _field(self, answer: Answer) -> None:
        if isinstance(answer.body, bytes):
            self._header(answer)
            return
        holder, key = self._random.choice([*_places(answer)])
        value = self._random.choice([*self._values, *_FIELDS])
        if isinstance(holder, Answer):
            holder.body = value
        else:
            holder[key] = value

    def _status(self, answer: Answer) -> None:
        answer.status = self._random.choice(STATUSES)

    def _body(self, answer: Answer) -> None:
        answer.body = self._random.choice([b"", b"\x00\xff", b"[" * 100_000, b"1" * 9999])


def _places(answer: Answer) -> Iterator[tuple[Any, Any]]:
    """Each field of an answer in JSON: what holds it, and its key."""
    yield answer, "body"
    left = [answer.body]
    while left:
        value = left.pop()
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            if isinstance(value[key], (dict, list)):
                left.append(value[key])


@pytest.fixture
def hub(hub: Hub) -> Hub:
    hub.repos["org/repo"] = dict(REPO)
    return hub


def test_each_header_and_field(hub: Hub, homes: Homes, monkeypatch: pytest.MonkeyPatch):
    """A download is right or an error, and touches nothing outside of the stores."""
    (homes.home / "cwd").mkdir()
    monkeypatch.chdir(homes.home / "cwd")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    right = errors = 0
    for seed in range(COUNT):
        hub.repos["org/repo"]["m-Q4_K_M.gguf"] = b"GGUF%d" % seed  # which is not here yet
        hub.commit = f"{seed:040x}"
        hub.alter, before = Hostile(seed, hub, homes.home / "victim"), state(homes)
        began, message = time.monotonic(), ""
        try:
            model = names.pull("org/repo")
            assert model.path.read_bytes() in hub.repos["org/repo"].values(), seed
            right += 1
        except Error as error:
            message, errors = str(error), errors + 1
        assert time.monotonic() - began < SECONDS, seed
        assert message.isprintable() and state(homes) == before, (seed, message)
        names.stored()
        for blob in homes.hub.rglob("blobs/*"):
            assert blob.is_file() and digest(blob.read_bytes()) == blob.name, seed
    assert right > COUNT / 10 and errors > COUNT / 10, (right, errors)


def state(homes: Homes) -> dict[str, bytes]:
    """The files and folders outside of the stores and of what is noted about them."""
    ours = (homes.home / "hf", homes.home / ".cache", homes.home / ".local")
    paths = (p for p in homes.home.rglob("*") if not any(o == p or o in p.parents for o in ours))
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in paths}


def test_an_etag_that_is_a_path(hub: Hub, homes: Homes):
    victim = homes.home / "victim"

    def alter(answer: Answer) -> None:
        if answer.kind == "resolve":
            answer.headers["X-Linked-Etag"] = f'"{victim}"'

    hub.alter = alter
    with pytest.raises(DownloadError, match=r"the hub has no digest of mmproj-F16.gguf but '/"):
        names.find("org/repo")
    assert not victim.exists() and not [*homes.hub.rglob("*")]


def test_a_second_header_is_not_believed(hub: Hub, homes: Homes):
    """A digest at first, a path later: the headers are asked for once."""
    etags = itertools.chain([f'"{digest(b)}"' for b in reversed(REPO.values())], ["../../../../x"])

    def alter(answer: Answer) -> None:
        if answer.kind == "resolve":
            answer.headers["X-Linked-Etag"] = next(etags)

    hub.alter = alter
    assert names.find("org/repo").path.read_bytes() == REPO["m-Q4_K_M.gguf"]
    assert next(etags) == "../../../../x"


def test_names_with_control_characters(hub: Hub):
    hub.repos["org/repo"] = {"a\n\x1b[2J.gguf": b"GGUF"}
    with pytest.raises(ModelNotFound, match=r"'a\\n\\x1b\[2J.gguf' is no path of a file$"):
        names.find("org/repo")


def _no_end(piece: bytes) -> Iterator[bytes]:
    """Bytes without an end, but for a test that fails."""
    return itertools.repeat(piece, (1 << 31) // len(piece))


def _pages(answer: Answer, hub: Hub) -> None:
    if answer.kind == "tree":
        link = f"{hub.url}/api/models/org/repo/tree/{hub.commit}"
        answer.headers["Link"] = f'<{link}>; rel="next"'


def _long_json(answer: Answer, hub: Hub) -> None:
    if answer.kind == "about":
        answer.body = _no_end(b" " * 65536)


def _long_file(answer: Answer, hub: Hub) -> None:
    if answer.kind == "content":
        answer.body = _no_end(b"x" * 65536)
        del answer.headers["Content-Length"]


def _circle(answer: Answer, hub: Hub) -> None:
    """A redirect to itself, whose body has no end."""
    if answer.kind == "about":
        answer.status, answer.headers["Location"] = 307, f"{hub.url}/api/models/org/repo"
        answer.body = _no_end(b"x" * 65536)


def _bomb(answer: Answer, hub: Hub) -> None:
    """A GB, packed twice."""
    if answer.kind == "about":
        answer.headers["Content-Encoding"] = "gzip, gzip"
        answer.body = gzip.compress(gzip.compress(bytes(1 << 24)) * 64)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (_bomb, r"compresses its answer, which may be a bomb"),
        (_pages, r"org/repo has more files or pages, .* GGMODEL_LIMIT_STORE_FILES"),
        (_long_json, r"sends more than 16,777,216 bytes at once"),
        (_long_file, r"sends more bytes of mmproj-F16.gguf than it lists"),
        (_circle, r"redirects 10 times"),
    ],
)
def test_answers_without_end(
    hub: Hub, homes: Homes, alter: Any, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "store_files", 5000)
    hub.alter = lambda answer: alter(answer, hub)
    began = time.monotonic()
    with pytest.raises(DownloadError, match=message):
        names.find("org/repo")
    assert time.monotonic() - began < SECONDS
    assert not [p for p in homes.hub.rglob("*") if p.is_file()]
