"""A hub that means harm: each header and each field of its answers, changed one by one."""

from __future__ import annotations

import gzip
import itertools
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ggmodel import limits, names
from ggmodel.errors import DownloadError, Error, ModelNotFound

from .conftest import Homes
from .hub_server import Answer, Hub
from .stores import digest

REPO = {"m-Q4_K_M.gguf": b"GGUF" + bytes(range(256)) * 20, "mmproj-F16.gguf": b"GGUF that sees"}
SECONDS = 20.0  # for one download
KINDS = ("about", "tree", "resolve", "content")
HEADERS = (
    "ETag X-Linked-Etag X-Linked-Size X-Repo-Commit Location Link Content-Length Content-Range "
    "Content-Encoding Content-Type Transfer-Encoding X-Error-Code X-Error-Message Retry-After "
    "X-Xet-Hash X-Xet-Refresh-Route"
).split()
_FIELDS = (-1, 0, 2**70, 1e308, True, None, [], {}, [[[]]], "\ud800", "a\n\x1b[2J.gguf")
FIELDS = {"about": 4, "tree": 19, "resolve": 0, "content": 0}  # and bodies, as JSON
BODIES = (b"", b"\x00\xff", b"[" * 100_000, b"1" * 9999)
STATUSES = (199, 204, 206, 301, 304, 308, 401, 403, 404, 416, 429, 503, 599, 700)


def changes(hub: Hub, victim: Path) -> Iterator[Callable[[Answer], None]]:
    """Each header, field, status and body of each kind of answer, changed once; values rotate."""
    values = [
        *(str(victim), f'"{victim}"', "../../../victim", "..", "", "a\x1b[31m", "x" * 70_000),
        *(hub.url, f"{hub.url}/api/models/org/repo", "http://[", "file:///etc/passwd"),
        *("-1", "1" * 30, "0", "f" * 40, 'W/"' + "f" * 64 + '"', "gzip", "GatedRepo", "\xff"),
        *(f"<{hub.url}/api/models/org/repo/tree/x>; rel=next", "<http://[>; rel=next"),
    ]
    headers, fields = itertools.cycle([*values, None]), itertools.cycle([*values, *_FIELDS])
    for kind in KINDS:
        yield from (partial(_change, kind, "headers", name, next(headers)) for name in HEADERS)
        yield from (partial(_change, kind, "field", n, next(fields)) for n in range(FIELDS[kind]))
        yield from (partial(_change, kind, "status", 0, status) for status in STATUSES)
        yield from (partial(_change, kind, "body", 0, body) for body in BODIES)


def _change(kind: str, part: str, place: Any, value: Any, answer: Answer) -> None:
    if answer.kind != kind:
        return
    if part == "headers" and value is None:
        answer.headers.pop(place, None)
    elif part == "headers":
        answer.headers[place] = value
    elif part == "field":
        holder, key = [*_places(answer)][place]
        if isinstance(holder, Answer):
            holder.body = value
        else:
            holder[key] = value
    else:
        setattr(answer, part, value)


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
def hub(hub: Hub) -> Iterator[Hub]:
    hub.repos["org/repo"] = dict(REPO)
    yield hub
    # Its answers lead to any path, but not to another part of its API.
    hub.strange = [path for path in hub.strange if re.match(r"/api/(?!models)", path)]


@pytest.mark.slow
def test_each_header_and_field(hub: Hub, homes: Homes, monkeypatch: pytest.MonkeyPatch):
    """A download is right or an error, and touches nothing outside of the stores."""
    (homes.home / "cwd").mkdir()
    monkeypatch.chdir(homes.home / "cwd")
    fields: dict[str, int] = dict.fromkeys(KINDS, 0)

    def count(answer: Answer) -> None:
        if answer.kind in KINDS and not isinstance(answer.body, bytes):
            fields[answer.kind] = len([*_places(answer)])

    hub.alter = count
    names.pull("org/repo")
    assert fields == FIELDS
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    before, right, errors = state(homes), 0, 0
    for number, change in enumerate(changes(hub, homes.home / "victim")):
        hub.repos["org/repo"]["m-Q4_K_M.gguf"] = b"GGUF%d" % number  # which is not here yet
        hub.commit = f"{number:040x}"
        hub.alter = change
        shutil.rmtree(homes.hub)
        homes.hub.mkdir()
        began, message = time.monotonic(), ""
        try:
            model = names.pull("org/repo")
            assert model.path.read_bytes() in hub.repos["org/repo"].values(), change
            right += 1
        except Error as error:
            message, errors = str(error), errors + 1
        assert time.monotonic() - began < SECONDS, change
        assert message.isprintable() and state(homes) == before, (change, message)
        names.stored()
        for blob in homes.hub.rglob("blobs/*"):
            is_part = blob.suffix == ".incomplete" and 0 < blob.stat().st_size < 10_000
            assert is_part or digest(blob.read_bytes()) == blob.name, change
    assert right > number / 10 and errors > number / 10, (right, errors)


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
    """A digest at first, a path later: the headers are looked at once."""
    etags = itertools.chain(
        [f'"{digest(b)}"' for b in reversed(REPO.values())], ["../../../../x"] * 2
    )

    def alter(answer: Answer) -> None:
        if answer.kind == "resolve":
            answer.headers["X-Linked-Etag"] = next(etags)

    hub.alter = alter
    assert names.find("org/repo").path.read_bytes() == REPO["m-Q4_K_M.gguf"]
    assert not [*etags]


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


def _gzip(answer: Answer, hub: Hub) -> None:
    """The header of a packed file that holds a name without an end, and no byte of content."""
    if answer.kind == "about":
        answer.headers["Content-Encoding"] = "gzip"
        answer.body = itertools.chain([b"\x1f\x8b\x08\x08\0\0\0\0\0\0"], _no_end(b"x" * 65536))


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (_gzip, r"compresses its answer, which may be a bomb"),
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
    assert not [p for p in homes.hub.rglob("*") if p.is_file() and p.suffix != ".lock"]


def _slow_headers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX-Slow: "
    yield from itertools.repeat(b"a")


def _slow_redirect() -> Iterator[bytes]:
    """One answer by the rules, after which the connection stays open; the next is slow."""
    yield b"HTTP/1.1 307 Go\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n"
    yield from _slow_headers()


def _early_hints() -> Iterator[bytes]:
    yield from itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n")


def _slow_piece() -> Iterator[bytes]:
    """The size of a piece of the body, whose digits have no end."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"
    yield from itertools.repeat(b"a")


@pytest.mark.parametrize("answer", [_slow_headers, _slow_redirect, _early_hints, _slow_piece])
def test_answers_byte_by_byte_end_in_time(hub: Hub, answer: Any, monkeypatch: pytest.MonkeyPatch):
    """Each read brings something, so that no timeout of a read is reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr("ggmodel.names.remote._LISTING", 1.0)
        thread = threading.Thread(target=_dribble, args=(server, answer()), daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(DownloadError, match="the hub is too slow"):
            names.find("org/repo")
        assert time.monotonic() - began < SECONDS / 2
        thread.join(SECONDS)  # its connection has gone
        assert not thread.is_alive()


def _dribble(server: socket.socket, pieces: Iterator[bytes]) -> None:
    connection, _ = server.accept()
    with connection, suppress(OSError):
        connection.settimeout(SECONDS)
        connection.recv(4096)
        for piece in itertools.islice(pieces, int(SECONDS * 20)):
            connection.sendall(piece)
            threading.Event().wait(0.05)  # time.sleep waits no more here
