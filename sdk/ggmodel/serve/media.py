"""Images and sounds of requests: as data, from allowed folders and hosts, from nowhere else."""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, unquote_to_bytes, urlsplit

from ..bounds import limits
from ..platforms.files import NO_LINKS
from ..reading import READ_FLAGS
from ..storage import is_at
from .errors import Refused

_PORTS = {"http": 80, "https": 443}
Fetch = Callable[[str, str], Awaitable[bytes]]
"""The bytes of a URL, and the field of the request that has it, for messages."""

_THREADS = 8  # images and sounds that are fetched at a time


class Media:
    """Turns the URLs of requests into bytes.

    Args:
        folders: whose files may be named, as file:///PATH, or from the folder on, as file://NAME.
        hosts: that may be asked.
        public: whether an address may be connected to; private ones may not.
    """

    def __init__(
        self,
        folders: Sequence[str] = (),
        hosts: Sequence[str] = (),
        public: Callable[[str], bool] | None = None,
    ):
        self._folders = [os.path.realpath(folder) for folder in folders]
        self._hosts = frozenset(host.lower() for host in hosts)
        self._public = public or _is_public
        # Slow hosts hold up nothing else than these threads.
        self._threads = ThreadPoolExecutor(_THREADS, "media")

    async def fetch(self, url: str, param: str | None = None) -> bytes:
        """The bytes of a data URL, or of a URL that is allowed.

        Args:
            param: the field of the request, for messages.

        Raises:
            Refused: it is no such URL, or is not allowed.
        """
        if url[:5].lower() == "data:":
            return data_of(url, param)
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise _refused("is no URL", param) from None
        if parts.scheme == "file":
            path = parts.path if parts.netloc == "localhost" else parts.netloc + parts.path
            return await self._in_thread(self._file, unquote(path), param)
        if parts.scheme not in _PORTS:
            raise _refused("is no URL; give data:…;base64,…", param)
        if host not in self._hosts:
            raise _refused(
                f"is at {host!r:.100}, which this server does not ask; send it as "
                "data:…;base64,…, or start the server with --media-host",
                param,
            )
        port = port or _PORTS[parts.scheme]
        connection = _Connection(host, port, parts.scheme == "https", self._public)
        work = self._in_thread(self._get, connection, parts, param)
        try:
            return await asyncio.wait_for(work, limits.serve_fetch_seconds)
        except asyncio.TimeoutError:
            raise _refused(f"takes {host} too long to send", param) from None
        finally:
            connection.cut()

    def close(self) -> None:
        """Takes no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _in_thread(self, work: Callable[..., bytes], *arguments: Any) -> asyncio.Future[bytes]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _file(self, path: str, param: str | None) -> bytes:
        try:
            real = self._allowed(path)
        except ValueError:  # a zero byte
            raise _refused("is no path", param) from None
        if real is None:
            raise _refused(
                "is no file in the folders that this server opens; send it as data:…;base64,…, "
                "or start the server with --media-path",
                param,
            )
        try:
            with open(os.open(real, READ_FLAGS | NO_LINKS), "rb") as file:
                status = os.fstat(file.fileno())
                # The second tells a link where systems lack the flag.
                if not stat.S_ISREG(status.st_mode) or not is_at(Path(real), file.fileno()):
                    raise _refused("is no file", param)
                if status.st_size > limits.serve_body_bytes:
                    raise _refused("is larger than the limit serve_body_bytes", param)
                return file.read()
        except (OSError, ValueError):
            raise _refused("cannot be read", param) from None

    def _allowed(self, path: str) -> str | None:
        """The real path of what lies in a folder; relative paths, and others too, may begin there.

        Raises:
            ValueError: it has a zero byte.
        """
        joined = [os.path.join(folder, path) for folder in self._folders]
        joined += [f"{folder}/{path}" for folder in self._folders]
        for real in map(os.path.realpath, joined):
            inside = any(Path(real).is_relative_to(folder) for folder in self._folders)
            if inside and os.path.exists(real):
                return real
        return None

    def _get(self, connection: _Connection, parts: SplitResult, param: str | None) -> bytes:
        host = connection.host
        try:
            try:
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("GET", target, headers={"User-Agent": "ggmodel"})
                with connection.getresponse() as answer:
                    if answer.status != 200:  # a redirection leads to another host
                        raise _refused(f"cannot be fetched: {host} answers {answer.status}", param)
                    data = answer.read(limits.serve_fetch_bytes + 1)
            finally:
                connection.close()
        except PermissionError:
            raise _refused(f"is at {host}, a private address", param) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _refused(f"cannot be fetched: {type(error).__name__}", param) from None
        if len(data) > limits.serve_fetch_bytes:
            raise _refused("is larger than the limit serve_fetch_bytes", param)
        return data


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was looked at: its name cannot mean another one later."""

    def __init__(self, host: str, port: int, encrypted: bool, public: Callable[[str], bool]):
        super().__init__(host, port, timeout=limits.serve_fetch_seconds)
        self._encrypted, self._may = encrypted, public
        self._open: socket.socket | None = None
        self._cut = False

    def cut(self) -> None:
        """Ends it from another thread: whatever is being read, even byte by byte, fails."""
        self._cut = True
        if (connected := self._open) is not None:
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def connect(self) -> None:
        resolved = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in resolved]
        if not all(map(self._may, addresses)):
            raise PermissionError
        self.sock = self._open = self._connected(addresses)
        if self._encrypted:
            context = ssl.create_default_context()
            self.sock = self._open = wrapped = context.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._check()
            wrapped.do_handshake()
        self._check()

    def _check(self) -> None:
        if self._cut:
            raise TimeoutError

    def _connected(self, addresses: list[str]) -> socket.socket:
        for i, address in enumerate(addresses):
            self._check()
            try:
                return socket.create_connection((address, self.port), self.timeout)
            except OSError:
                if i + 1 == len(addresses):
                    raise
        raise PermissionError


def data_of(url: str, param: str | None = None) -> bytes:
    """The bytes of a data URL.

    Raises:
        Refused: it is none.
    """
    head, comma, data = url.partition(",")
    if not comma:
        raise _refused("is no data URL; give data:…;base64,…", param)
    if head.lower().endswith(";base64"):
        return from_base64(unquote(data) if "%" in data else data, param)
    return unquote_to_bytes(data)


def from_base64(text: str, param: str | None = None) -> bytes:
    """Bytes of base64, white space ignored.

    Raises:
        Refused: it is none, or empty.
    """
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise _refused("is no base64", param) from None
    if not data:
        raise _refused("is empty", param)
    return data


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_global and not parsed.is_multicast


def _refused(what: str, param: str | None) -> Refused:
    return Refused(f"{param or 'the image or sound'} {what}", param=param)
