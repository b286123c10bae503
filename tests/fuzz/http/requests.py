"""Random requests: bytes for a connection, and what becomes of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from ggmodel.bounds import limits
from tests.fuzz import jsons
from tests.fuzz.damage import damaged
from tests.fuzz.http.bodies import METHODS, PATHS, Body, bodies, with_media
from tests.fuzz.images import Images
from tests.fuzz.schemas import Schemas
from tests.fuzz.sounds import Sounds, sounds

Request = dict[str, Any]

_LONG = (1 << 12, 1 << 16, 1 << 20, 4 << 20, 16 << 20, 58 << 20)  # bytes of a text
_MANY = (100, 5000, 100_000, 400_000)  # values of a list
_ROOM = 1 << 16  # bytes of a body beside its text or list
_HEADERS = (
    *("Host: evil.example", "Host: localhost:1", "Host: [::1", "Host:", "Host: \xff"),
    *("Origin: http://[", "Origin: null", "Origin: http://evil.example", "Origin: "),
    *(
        "Expect: 100-continue",
        "Upgrade: websocket\r\nConnection: Upgrade",
        "Connection: keep-alive",
    ),
    *("Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked", "Content-Length: -1"),
    *("Content-Length: 99999999999", "Content-Length: 1\r\nContent-Length: 2"),
    *("Content-Encoding: gzip", "Content-Type: text/plain", "Content-Type: " + "x" * 5000),
    *("Authorization: Bearer \xe9", "Authorization: Basic", "Cookie: " + "a=b; " * 2000),
    *("Accept: \x01", "X-\x7f: 1", "Range: bytes=0-", "If-None-Match: *", " folded: 1", "no colon"),
    *("Access-Control-Request-Method: POST", "Forwarded: for=1", "X-Forwarded-For: 1"),
)
_TARGETS = (
    *("*", "http://127.0.0.1{}", "HTTP://localhost:80{}", "http://evil.example{}", "http://[{}"),
    *(
        "ftp://localhost{}",
        "localhost:80",
        "{}?a=b&a=%ff",
        "{}#x",
        "{}%00",
        "{}/",
        "{}%2f..",
        "x{}",
    ),
    *("{}?" + "a" * 3000, "/" + "a" * 9000, "\\{}", "{}\x7f"),
)
_FORM = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'


def request(random: Random) -> Request:
    """One of any kind.

    Gives:
        kind, pieces: of bytes, `gap` seconds apart. leave: bytes of the answer after which the
        client hangs up, None for all. whole: an answer must come, after which the server hangs up.
    """
    make = random.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0]
    made = make(random)
    fate = random.random()
    made = {"gap": 0.0, "leave": None, "whole": True} | made
    if fate < 0.06:  # in the middle of the request
        data = b"".join(made["pieces"])
        made |= {"pieces": [data[: random.randrange(len(data) + 1)]], "leave": 0, "whole": False}
    elif fate < 0.14:  # in the middle of the answer
        made |= {"leave": random.choice([0, 1, 20, 300, 1000]), "whole": False}
    elif fate < 0.17:
        data = b"".join(made["pieces"])
        size = max(1, len(data) // 4)
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        made |= {"pieces": pieces, "gap": 0.02}
    return made


def packed(
    random: Random, body: Body, content: bytes | None = None, kind: str = "application/json"
) -> bytes:
    """A whole request, after which the connection ends.

    Args:
        content: in place of the JSON.
    """
    method, path, value = body
    if content is None:
        content = b"" if value is None else json.dumps(value).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: {kind}\r\n"
    if random.random() < 0.9:
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode("latin-1") + content
    size = random.choice([1, 7, 100]) if len(content) < 2000 else 1 << 16
    chunks = [content[i : i + size] for i in range(0, len(content), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1") + framed + b"0\r\n\r\n"


def _plain(random: Random) -> Request:
    """Any method, target and headers."""
    method, target = random.choice(METHODS), random.choice(PATHS)
    if random.random() < 0.5:
        method, target = "GET", random.choice(_TARGETS).replace("{}", target)
    elif random.random() < 0.5:
        method, target = "OPTIONS", "*"
    listed = ["Host: localhost", "Connection: close"]
    if random.random() < 0.5:
        listed[random.randrange(2) :] = random.choices(_HEADERS, k=random.choice([1, 1, 3]))
    lines = "\r\n".join([f"{method} {target} HTTP/1.1", *listed, "", ""])
    data = lines.encode("latin-1")
    if random.random() < 0.2:
        data = damaged(random, data)
    # It may announce a body, or be no end of a request.
    return {"pieces": [data], "whole": False}


def _json(random: Random) -> Request:
    method, path, value = random.choice(bodies())
    value = jsons.mutated(random, value)
    return {"pieces": [packed(random, (method, path, value), jsons.written(random, value))]}


def _good(random: Random) -> Request:
    return {"pieces": [packed(random, random.choice(bodies()))]}


def _long(random: Random) -> Request:
    """A text, or a number of values, that is far beyond what there is room for."""
    method, path, value = copy.deepcopy(random.choice(bodies()))
    size = random.choices(_LONG, [250, 250, 10, 5, 2, 2])[0]
    unit = random.choice(["a", "the fox ", "\n", "é", '"', " - at `$", "<|", "\U0001f600", "{{"])
    places = [(holder, key) for holder, key in jsons.places(value) if isinstance(holder[key], str)]
    if places:
        holder, key = random.choice(places)
        holder[key] = unit * (size // len(json.dumps(unit)))
    return {"pieces": [packed(random, (method, path, value))]}


def _many(random: Random) -> Request:
    """A list of some thousands, or far beyond, in a body that the server reads."""
    method, path, value = copy.deepcopy(random.choice(bodies()))
    places = [(holder, key) for holder, key in jsons.places(value) if isinstance(holder[key], list)]
    if places:
        holder, key = random.choice(places)
        most = (limits.serve_body_bytes - _ROOM) // len(json.dumps(holder[key]))
        holder[key] *= min(most, random.choices(_MANY, [50, 50, 4, 2])[0])
    return {"pieces": [packed(random, (method, path, value))]}


def _media(random: Random) -> Request:
    kind = random.randrange(4)
    raw = None
    if kind == 0:
        raw = Sounds(Path()).make(random).get("raw")
    elif kind < 3:
        raw = Images(Path()).make(random)["raw"]
    body = with_media(random, raw)  # type: ignore[arg-type]
    return {"pieces": [packed(random, body)]}


def _grammar(random: Random) -> Request:
    case = Schemas(Path()).make(random)
    text = case["text"]
    ask = {"model": "stories", "prompt": "It is", "max_tokens": 3}
    if case["kind"] == "schema":
        ask |= {"json_schema": json.loads(text)}
    elif case["kind"] == "choice":
        ask |= {"guided_choice": json.loads(text)}
    else:
        ask |= {"guided_regex" if case["kind"] == "regex" else "grammar": text}
    return {"pieces": [packed(random, ("POST", "/v1/completions", ask))]}


def _form(random: Random) -> Request:
    fields = {b"file": random.choice(sounds()), b"model": b"ears", b"language": b"en"}
    fields |= {b"response_format": random.choice([b"json", b"text", b"vtt", b"x"])}
    parts = []
    for name, value in fields.items():
        extra = random.choice(
            [b"", b'; filename="a.wav"', b'; x="' + b";" * 3000, b"\r\nX: y" * 20]
        )
        parts.append(_FORM % (name, extra if random.random() < 0.4 else b"", value))
    content = b"".join(parts * random.choice([1, 1, 1, 40])) + b"--b--\r\n"
    kind = random.randrange(6)
    if kind == 0:
        content = damaged(random, content)
    elif kind == 1:
        mark = random.choice([b"\r\n--bx", b"\r\n-", b"--b\r\n", b"\r\n", b'";', b"--b--"])
        at = random.randrange(len(content))
        content = content[:at] + mark * random.choice([10, 1000, 100_000]) + content[at:]
    boundary = random.choice(["b", "b", "b", "b", "", '"b"', "c", "b" * 300, 'b; x="' + ";" * 999])
    path = f"/v1/audio/{random.choice(['transcriptions', 'translations'])}"
    form = f"multipart/form-data; boundary={boundary}"
    return {"pieces": [packed(random, ("POST", path, None), content, form)]}


def _pipelined(random: Random) -> Request:
    """Several on one connection, of which the last one ends it."""
    chosen = [packed(random, random.choice(bodies())) for _ in range(random.choice([2, 3, 8]))]
    kept = [data.replace(b"Connection: close\r\n", b"", 1) for data in chosen[:-1]]
    return {"pieces": [b"".join([*kept, chosen[-1]])]}


_KINDS: list[tuple[Callable[[Random], Request], int]] = [
    (_plain, 30), (_json, 34), (_good, 8), (_form, 10), (_grammar, 4), (_media, 6), (_pipelined, 3),
    (_long, 4), (_many, 1),
]  # fmt: skip
