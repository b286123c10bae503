"""Keys, names of this host, and pages of other origins decide whether a request may be made."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from starlette.datastructures import Headers

from ..errors import ConfigError
from .errors import Refused

if TYPE_CHECKING:
    from .server import Settings

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
# Pages of servers on this machine, and of programs that show pages of their own.
_LOCAL_ORIGIN = r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]+)?|(?:app|tauri)://[!-~]+"
# The page asks for a key itself.
_OPEN_PATHS = frozenset({"/", "/health", "/v1/health"})
_OPEN_FOLDER = "/page/"


class Keys:
    """The API keys that are accepted; without any, everybody may ask."""

    def __init__(self, keys: Sequence[str]):
        self._hashes = [_hash(key) for key in keys]

    def check(self, headers: Headers) -> str:
        """A name for the client's key that does not tell it, "" where none is wanted.

        Raises:
            Refused: the request has no key that is accepted.
        """
        if not self._hashes:
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else ""
        key = key or headers.get("x-api-key", "").strip()
        accepted = False
        digest = _hash(key)
        for own in self._hashes:  # all of them: the time tells nothing
            accepted |= hmac.compare_digest(own, digest)
        if not accepted:
            raise Refused(
                "the API key is wrong or missing; send it as `Authorization: Bearer KEY`",
                401,
                code="invalid_api_key",
            )
        return digest.hex()


def read_keys(listed: Sequence[str], file: str | None) -> list[str]:
    """Keys that are given, and those of a file: one a line, # begins a comment.

    Raises:
        ConfigError: the file cannot be read, or holds no keys; a key is empty.
    """
    keys = [key.strip() for key in listed]
    if not all(keys):
        raise ConfigError("an API key is empty; give one of many random letters")
    if file is None:
        return keys
    try:
        with open(file, encoding="utf-8") as lines:
            own = [line.strip() for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys in {file}: {error}") from None
    own = [key for key in own if key and not key.startswith("#")]
    if not own:
        raise ConfigError(f"{file} holds no keys; write one a line")
    return keys + own


class Guard:
    """Lets requests pass that may, as an ASGI application around another.

    A page of the web can send requests to this machine through a browser. So the name in `Host` is
    checked, which such a page cannot choose, and `Origin`, which it cannot hide.
    """

    def __init__(self, app: Any, settings: Settings, refused: Any):
        """`refused(scope, receive, send, error)` answers with an error."""
        self._app, self._refused = app, refused
        self._keys = Keys(settings.keys)
        self._origins = allowed_origins(settings.origins)
        listening = settings.host.lower().strip("[]")
        exposed = not is_loopback(listening)
        # A page of the web can take any name, but knows no key and no address of this network.
        self._any_name = exposed and bool(settings.keys) and not settings.hosts
        self._any_address = exposed and not settings.hosts
        self._hosts = _LOCAL | {listening} | {name.lower() for name in settings.hosts}
        if self._any_address:
            self._hosts |= _own_names()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            try:
                _find_path(scope)
                headers = Headers(scope=scope)
                self._check_host(headers)
                self._check_origin(headers)
                if not self._is_open(scope):
                    scope["ggmodel.key"] = self._keys.check(headers)
            except Refused as error:
                return await self._refused(scope, receive, send, error)
            if scope["path"] == "*":
                await send({"type": "http.response.start", "status": 204, "headers": []})
                return await send({"type": "http.response.body", "body": b""})
        await self._app(scope, receive, send)

    def _is_open(self, scope: Any) -> bool:
        """Whether the request needs no key."""
        path = scope["path"]
        return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)

    def _check_host(self, headers: Headers) -> None:
        host = _host(headers.get("host", ""))
        named = host in self._hosts or (self._any_address and _is_address(host))
        if not (named or self._any_name):
            raise Refused(
                f"this server is not called {host!r:.100}; start it with --allow-host to be "
                "reached by that name",
                403,
            )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or self._origins.fullmatch(origin):
            return
        url = _split(origin)
        if url is None or url.netloc.lower() != headers.get("host", "").lower():
            raise Refused(
                f"pages of {origin!r:.100} may not use this server; start it with --cors-origin "
                "to allow that",
                403,
            )


def allowed_origins(origins: Sequence[str]) -> re.Pattern[str]:
    """Matches the origins of pages that may use the server: those given, "*" for all, "localhost"
    for all of this machine and its programs, whatever their port."""
    every = {"*": ".*", "localhost": _LOCAL_ORIGIN}
    return re.compile("|".join(every.get(one, re.escape(one)) for one in origins) or "(?!)")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen at."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_names() -> frozenset[str]:
    """The names that this machine has in its network."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return frozenset({name, short, f"{short}.local"})


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host(header: str) -> str:
    """The name in a `Host` header, without its port."""
    url = _split(f"//{header}")
    return "" if url is None else (url.hostname or "").lower()


def _split(url: str) -> SplitResult | None:
    """The parts of a URL; None where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _find_path(scope: Any) -> None:
    """Has a target that is a URL (RFC 9112, 3.2.2) be its path, and its authority be the `Host`.

    Raises:
        Refused: the target is neither a path, nor a URL, nor `*` of OPTIONS.
    """
    raw_path = scope["raw_path"].decode("latin-1")
    if raw_path.startswith("/") or (raw_path == "*" and scope["method"] == "OPTIONS"):
        return
    url = _split(raw_path)
    if url is None or url.scheme not in ("http", "https") or not url.netloc:
        raise Refused(f"the target of the request is neither a path nor a URL: {raw_path!r:.100}")
    others = [header for header in scope["headers"] if header[0] != b"host"]
    scope["headers"] = [*others, (b"host", url.netloc.encode("latin-1"))]
    scope["raw_path"] = (url.path or "/").encode("latin-1")
    scope["path"] = unquote(url.path or "/")


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
