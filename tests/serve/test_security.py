"""Keys, hosts, origins, limits, media."""

from __future__ import annotations

import asyncio
import base64
import gc
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from ggmodel import limits
from ggmodel.errors import ConfigError
from ggmodel.serve.bodies import Bodies, ClientGone
from ggmodel.serve.endpoint import Call, _unless_gone
from ggmodel.serve.errors import Refused
from ggmodel.serve.listening import _Protocol
from ggmodel.serve.media import Media
from ggmodel.serve.security import read_keys
from ggmodel.serve.server import Server
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

ASK: Any = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer three"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "one"}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"authorization": "bearer two"}, 200),
        ({"x-api-key": "two"}, 200),
    ],
)
def test_keys(serve: Callable[..., str], headers: dict[str, str], status: int):
    url = serve(keys=("one", "two"))
    answer = httpx.get(f"{url}/v1/models", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"
    models = {"models": {"stories": "ready"}} if status == 200 else {}  # their names are no news
    health = httpx.get(f"{url}/health", headers=headers)
    assert (health.status_code, health.json()) == (200, {"status": "ok"} | models)


def test_keys_of_a_file(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# ours\n one \n\ntwo\n")
    assert read_keys(["zero"], str(file)) == ["zero", "one", "two"]
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no keys"):
        read_keys([], str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys([], str(tmp_path / "absent"))


def test_other_names_of_this_machine_are_refused(serve: Callable[..., str], url: str):
    def ask(url: str, host: str) -> int:
        return httpx.get(f"{url}/v1/models", headers={"host": host}).status_code

    assert ask(url, "evil.example") == 403
    assert ask(url, "localhost:5") == 200
    assert ask(url, "[::1]") == 200
    assert ask(serve(hosts=("me.example",)), "me.example:80") == 200


def test_exposed_servers_answer_to_no_name_of_others(serve: Callable[..., str]):
    def ask(host: str, **settings: Any) -> int:
        url = serve(host="0.0.0.0", **settings)
        headers = {"host": host, "x-api-key": "one"}
        return httpx.get(f"{url}/v1/models", headers=headers).status_code

    assert ask("evil.example:8080") == 403
    assert ask("192.0.2.7:8080") == ask("[2001:db8::1]:8080") == ask("localhost") == 200
    assert ask(socket.gethostname().upper()) == 200
    assert ask("any.example", keys=("one",)) == 200
    assert ask("any.example", keys=("one",), hosts=("me.example",)) == 403
    assert ask("192.0.2.7", hosts=("me.example",)) == 403


def test_pages_of_others_are_refused(serve: Callable[..., str], url: str):
    def ask(url: str, origin: str) -> httpx.Response:
        return httpx.post(f"{url}{CHAT}", json=ASK, headers={"origin": origin})

    refused = ask(url, "https://evil.example")
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    assert ask(url, url).status_code == 200
    allowing = serve(origins=("https://good.example",))
    answer = ask(allowing, "https://good.example")
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert ask(allowing, "https://evil.example").status_code == 403


def test_pages_of_this_machine_are_allowed_unless_others_are_named(serve: Callable[..., str]):
    def ask(url: str, origin: str) -> int:
        return httpx.post(f"{url}{CHAT}", json=ASK, headers={"origin": origin}).status_code

    by_default, none = serve(), serve(origins=("none",))
    others = serve(origins=("https://a.example",))
    for origin in ("http://localhost:3000", "app://obsidian.md", "tauri://localhost"):
        assert [ask(url, origin) for url in (by_default, others, none)] == [200, 403, 403]
    for origin in ("null", "https://a.example", "apple://x", "app://", "xapp://y"):
        assert ask(by_default, origin) == 403


def test_pages_of_others_may_be_allowed_too(serve: Callable[..., str]):
    url = serve(origins=("localhost", "https://good.example"))
    asked = {"access-control-request-method": "POST"}

    def ask(origin: str) -> list[int]:
        headers = {"origin": origin}
        found = [
            httpx.options(f"{url}{CHAT}", headers=headers | asked),
            httpx.get(f"{url}/v1/models", headers=headers),
        ]
        told = {one.headers.get("access-control-allow-origin") for one in found}
        assert told == ({origin} if found[1].status_code == 200 else {None})
        return [one.status_code for one in found]

    local = "http://localhost", "https://localhost:3000", "http://127.0.0.1:1", "http://[::1]:80"
    for origin in (*local, "https://good.example"):
        assert ask(origin) == [200, 200]
    other = "localhost.evil.example", "evil.example?http://localhost", "localhost:x", "goodXexample"
    for name in other:
        assert ask(f"http://{name}") == ask(f"https://{name}") == [200, 403]


def test_a_browser_may_ask_first(serve: Callable[..., str]):
    url = serve(origins=("https://good.example",), keys=("one",))
    headers = {
        "origin": "https://good.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    allowed = httpx.options(f"{url}{CHAT}", headers=headers)
    assert allowed.status_code == 200
    assert (b"Access-Control-Allow-Origin", b"https://good.example") in allowed.headers.raw


def test_pages_may_read_refusals(serve: Callable[..., str]):
    url = serve(origins=("https://good.example",), keys=("one",))

    def ask(origin: str) -> httpx.Response:
        return httpx.post(f"{url}{CHAT}", json=ASK, headers={"origin": origin})

    refused = ask("https://good.example")
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-origin" not in ask("https://evil.example").headers


def test_large_bodies_are_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_body_bytes", 1000)

    def many():
        for _ in range(100):
            yield b" " * 100

    for body in (b" " * 2000, many()):
        answer = httpx.post(f"{url}{CHAT}", content=body)
        assert answer.status_code == 413
        assert "serve_body_bytes" in answer.json()["error"]["message"]


def send_on(client: socket.socket, piece: bytes) -> None:
    for _ in range(1000):
        client.sendall(piece)


@pytest.mark.parametrize("path", [CHAT, "/absent"])
def test_no_body_is_read_on_after_a_refusal(serve: Callable[..., str], path: str):
    host, port = serve(keys=("one",)).removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with socket.create_connection((host, int(port)), 5) as client:
        client.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"\r\nconnection: close\r\n" in answer
        with pytest.raises(ConnectionError):
            send_on(client, piece)


def test_connections_stay_open_after_a_body_that_was_read(url: str):
    assert "connection" not in httpx.post(f"{url}{CHAT}", content=b"{").headers


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[" * 100_000, b'{"messages":' + b"[" * 10_000, b"\xff\xfe", b"null", b"[]"),
        b'{"messages": [{"role": "user", "content": "Hi"}], "\xff": 1}',
    ],
    ids=repr,
)
def test_what_is_no_json_is_400(url: str, body: bytes):
    answer = httpx.post(f"{url}{CHAT}", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_json_of_too_many_values_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_json_values", 1000)
    assert httpx.post(f"{url}{CHAT}", content=b"[" + b"{}," * 999).status_code == 413


def test_json_of_too_many_escapes_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_json_escapes", 1000)
    body = b'{"messages": [{"role": "user", "content": "A fox"}], "max_tokens": 1, "user": "%s"}'
    assert httpx.post(f"{url}{CHAT}", content=body % (b"\\n" * 1000)).status_code == 200
    answer = httpx.post(f"{url}{CHAT}", content=body % (b"\\n" * 1001))
    assert answer.status_code == 413
    assert "serve_json_escapes" in answer.text


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        (CHAT, "messages", {"role": "user", "content": "a"}),
        ("/v1/responses", "input", {"role": "user", "content": "a"}),
        ("/v1/messages", "messages", {"role": "user", "content": "a"}),
        ("/api/chat", "messages", {"role": "user", "content": "a"}),
        ("/apply-template", "messages", {"role": "user", "content": "a"}),
        ("/tokenize", "messages", {"role": "user", "content": "a"}),
    ],
    ids=lambda one: one if isinstance(one, str) and "/" in one else "",
)
def test_too_many_messages_are_refused_before_they_are_converted(
    url: str, path: str, name: str, message: Any
):
    body = {"model": "stories", "max_tokens": 1, name: [message] * 100_000}
    answer = httpx.post(f"{url}{path}", json=body)
    assert answer.status_code == 413
    assert "serve_messages" in answer.text


@pytest.mark.parametrize(
    ("path", "name", "blocks"),
    [
        (CHAT, "messages", [{"type": "text", "text": "a"}]),
        ("/v1/responses", "input", [{"type": "input_text", "text": "a"}]),
        ("/v1/messages", "messages", [{"type": "text", "text": "a"}]),
        ("/v1/messages", "messages", [{"type": "tool_result", "tool_use_id": "a", "content": 0}]),
    ],
)
def test_parts_of_messages_count_as_messages(
    url: str, path: str, name: str, blocks: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "serve_messages", 100)
    inner = [{"type": "text", "text": "a"}] * 100
    content = [{**one, "content": inner} if "content" in one else one for one in blocks]
    content *= 1 if "content" in blocks[0] else 100
    body = {"model": "stories", "max_tokens": 1, name: [{"role": "user", "content": content}]}
    answer = httpx.post(f"{url}{path}", json=body)
    assert answer.status_code == 413
    assert "serve_messages" in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**ASK, "stop": ["x"] * 65}),
        (CHAT, {**ASK, "stop": "x" * 70_000}),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 65}),
        ("/completion", {"prompt": "a", "stop": ["x"] * 65}),
        ("/v1/messages", {**ASK, "stop_sequences": ["x"] * 65}),
        ("/api/chat", {**ASK, "options": {"stop": ["x"] * 65}}),
        ("/api/generate", {"prompt": "a", "raw": True, "options": {"stop": ["x"] * 65}}),
    ],
)
def test_stop_strings_are_counted(url: str, path: str, body: dict[str, Any]):
    answer = httpx.post(f"{url}{path}", json={"model": "stories", "max_tokens": 1, **body})
    assert answer.status_code == 400
    assert "stop: more than 64 texts" in answer.text


def test_bodies_that_do_not_come_are_given_up(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_body_seconds", 0.05)
    held = threading.Event()

    def slow():
        yield b"{"
        held.wait(5)
        yield b"}"

    answers: list[int] = []
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{url}{CHAT}", content=slow()).status_code)
    )
    asking.start()
    asking.join(0.5)
    held.set()
    asking.join(10)
    assert answers == [408]


def test_a_full_queue_is_429(url: str, models: InProcessModels, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "most", 0)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    with client, pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="stories", **ASK)
    assert refused.value.response.headers["retry-after"] == "1"


def test_requests_end_in_time(serve: Callable[..., str], runner: InProcess):
    url = serve(timeout=0.05)
    asked = {**ASK, "max_tokens": 400, "logit_bias": {"1": -100, "4": -100}}
    assert httpx.post(f"{url}{CHAT}", json=asked).status_code == 504
    text = httpx.post(f"{url}{CHAT}", json={**asked, "stream": True}).text
    assert '"code":"timeout"' in text.strip().splitlines()[-1]


def test_answers_are_no_longer_than_allowed(serve: Callable[..., str]):
    url = serve(max_tokens=3)
    for asked in (ASK | {"max_tokens": 50}, {k: v for k, v in ASK.items() if k != "max_tokens"}):
        found = httpx.post(f"{url}{CHAT}", json=asked).json()
        assert found["usage"]["completion_tokens"] == 3


def test_unknown_paths_and_methods_have_the_shape_of_errors(url: str):
    absent = httpx.get(f"{url}/v1/absent")
    assert absent.status_code == 404
    assert absent.json()["error"]["type"] == "not_found_error"
    wrong = httpx.get(f"{url}{CHAT}")
    assert wrong.status_code == 405
    assert wrong.json()["error"]["message"]


TARGETS = {
    "GET http://127.0.0.1:5/v1/models?a=b": 200,
    "GET HTTP://localhost/v1/models": 200,
    "GET http://localhost": 200,
    "GET http://evil.example/v1/models": 403,
    "GET http://[/": 400,
    "GET ftp://localhost/v1/models": 400,
    "OPTIONS *": 204,
    "GET *": 400,
    "PRI *": 400,
    "CONNECT a:80": 400,
    "CONNECT http://localhost/v1/models": 405,
    "GET v1/models": 400,
    "GET /v1/models HTTP/9\r\nHost: a\r\n\r\n": 400,
    "GET /v1/models HTTP/1.1\r\nOrigin: http://[": 403,
}


@pytest.mark.parametrize("request_line", TARGETS)
def test_targets_of_all_forms(listening_url: str, request_line: str):
    host, port = listening_url.removeprefix("http://").split(":")
    version = "" if " HTTP/" in request_line else " HTTP/1.1"
    head = f"{request_line}{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), 10) as client, client.makefile("rb") as answer:
        client.sendall(head.encode())
        start, _, body = answer.read().partition(b"\r\n\r\n")
    status = TARGETS[request_line]
    assert start.startswith(b"HTTP/1.1 %d " % status)
    assert status < 400 or msgspec.json.decode(body)["error"]["message"]


@pytest.fixture(scope="module")
def listening_url(models: InProcessModels) -> Iterator[str]:
    """The URL of a server with ggmodel's own protocol of connections."""
    with serving(Server(models), http=_Protocol) as url:
        yield url


def test_wrong_http_behind_the_begin_of_an_answer(
    listening_url: str, caplog: pytest.LogCaptureFixture
):
    host, port = listening_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(20).startswith(b"HTTP/1.1 403")
        client.sendall(b"no chunk\r\n\r\n")
        while client.recv(65536):
            pass
    assert httpx.get(f"{listening_url}/health").status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "value", ["x" * (4 << 20), " - at `$" * (1 << 18)], ids=["long", "like a place"]
)
def test_errors_do_not_echo_long_values(http: httpx.Client, value: str):
    began = time.monotonic()
    answer = http.post(CHAT, json={**ASK, "response_format": {"type": value}})
    assert answer.status_code == 400
    assert len(answer.content) < 20_000
    assert answer.json()["error"]["param"] == "response_format.type"
    assert time.monotonic() - began < 10


def test_errors_of_clients_that_left_are_retrieved(models: InProcessModels):
    contexts: list[Any] = []

    async def refused() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise Refused("busy", 429) from None

    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, new: contexts.append(new))
        call = Call(Server(models), {"type": "http", "headers": []}, receive)  # type: ignore[arg-type]
        with pytest.raises(ClientGone):
            await _unless_gone(call, refused(), receive)
        gc.collect()

    asyncio.run(leave())
    assert not contexts


def image(link: str) -> Any:
    part = {"type": "image_url", "image_url": {"url": link}}
    return {"messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize(
    "link",
    [
        "/etc/passwd",
        "etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:1/x.png",
        "http://169.254.169.254/",
        "https://evil.example/x.png",
        "gopher://x",
        "data:image/png;base64,!!!",
        "data:x",
        "http://[",
        "",
    ],
)
def test_media_from_elsewhere_are_refused(url: str, link: str):
    answer = httpx.post(f"{url}{CHAT}", json=image(link))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].image_url.url"


@pytest.mark.parametrize("key", ["images", "audio", "videos"])
def test_no_path_of_a_message_is_opened(url: str, runner: InProcess, key: str):
    message = {"role": "user", "content": "Hi", key: ["/etc/passwd"]}
    httpx.post(f"{url}{CHAT}", json={"messages": [message], "max_tokens": 1}).raise_for_status()
    assert key not in runner.seen[-1].prompt.messages[0]


async def fetched(media: Media, link: str) -> bytes:
    return await media.fetch(link)


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_data_urls():
    assert run(fetched(Media(), "data:;base64," + base64.b64encode(b"x y").decode())) == b"x y"
    assert run(fetched(Media(), "DATA:text/plain,x%20y")) == b"x y"


def test_files_of_allowed_folders(tmp_path: Path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a b.png").write_bytes(b"picture")
    (inside / "link.png").symlink_to(outside / "a b.png")
    media = Media(folders=[str(inside)])

    for name in (inside / "a%20b.png", f"localhost{inside}/a%20b.png", "a%20b.png", "//a%20b.png"):
        assert run(fetched(media, f"file://{name}")) == b"picture"
    for name in ("link.png", "../outside/a%20b.png", "absent.png", "/etc/passwd"):
        with pytest.raises(Refused, match="no file in the folders"):
            run(fetched(media, f"file://{name}"))
    for path in (outside / "a b.png", inside / "link.png", inside / ".." / "outside" / "a b.png"):
        with pytest.raises(Refused, match="no file in the folders"):
            run(fetched(media, f"file://{path}"))
    for path in (inside, inside / "absent.png", inside / "%00"):
        with pytest.raises(Refused):
            run(fetched(media, f"file://{path}"))


@pytest.fixture
def neighbour():
    """A server of pictures on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if self.path == "/away" else 200)
            self.send_header("location", "http://127.0.0.1/")
            self.end_headers()
            self.wfile.write(b"picture" * (10**6 if self.path == "/large" else 1))

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join(10)


def test_hosts_that_are_allowed(neighbour: str, monkeypatch: pytest.MonkeyPatch):
    media = Media(hosts=["localhost"], public=lambda address: address in ("127.0.0.1", "::1"))

    assert run(fetched(media, f"{neighbour}/x")) == b"picture"
    with pytest.raises(Refused, match="302"):
        run(fetched(media, f"{neighbour}/away"))
    monkeypatch.setattr(limits, "serve_fetch_bytes", 1000)
    with pytest.raises(Refused, match="serve_fetch_bytes"):
        run(fetched(media, f"{neighbour}/large"))


def test_allowed_hosts_at_private_addresses_are_refused(neighbour: str):
    with pytest.raises(Refused, match="private address"):
        run(fetched(Media(hosts=["localhost"]), f"{neighbour}/x"))


@contextmanager
def trickling(head: bytes) -> Iterator[tuple[str, list[float]]]:
    """The URL of a host that sends a byte now and then, and when each of its clients left."""
    left: list[float] = []
    threads: list[threading.Thread] = []

    def answer(client: socket.socket) -> None:
        with client:
            client.recv(1000)
            client.sendall(head)
            with suppress(OSError):
                for _ in range(500):
                    client.sendall(b"x")
                    if select.select([client], [], [], 0.02)[0] and not client.recv(10):
                        break
        left.append(time.monotonic())

    def accept() -> None:
        with suppress(OSError):
            while True:
                thread = threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True)
                thread.start()
                threads.append(thread)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/x", left
        for thread in threads:
            thread.join(20)
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"HTTP/1"])
def test_slow_hosts_hold_no_threads(head: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_fetch_seconds", 0.2)

    async def ask(link: str) -> None:
        media = Media(hosts=["127.0.0.1"], public=lambda _: True)
        work = [media.fetch(link) for _ in range(40)]  # more than there are threads
        for error in await asyncio.gather(*work, return_exceptions=True):
            assert "too long" in str(error)
        await asyncio.wait_for(asyncio.to_thread(int), 2)

    with trickling(head) as (link, left):
        run(ask(link))
        ended = time.monotonic()
    assert left and max(left) < ended + 2


@pytest.mark.parametrize("steps", range(6))
def test_reading_a_body_is_cancelled_at_any_moment(steps: int):
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"12345", "more_body": False}

    async def run() -> None:
        bodies = Bodies()
        reading = asyncio.ensure_future(bodies.read(receive, None))
        for _ in range(steps):
            await asyncio.sleep(0)
        if reading.cancel():
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert bodies.held == 0
        else:
            assert (await reading, bodies.held) == (b"12345", 5)

    asyncio.run(run())
