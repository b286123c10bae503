"""Servers of models, asked by HTTP and read as what they are: untrusted.

huggingface_hub brings the session. Lengths, redirects and times are bounded, and a file that is cut
off goes on where it was.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from .. import __version__
from ..errors import DownloadError, Error
from ..platforms import files
from .transfers import Timeout

_LISTING = 600.0  # seconds for what is no file
_HEADERS = 1.0  # seconds more for the headers of a file
_PATIENCE = 120.0  # seconds for a file, besides its bytes
_SLOWEST = 16 << 10  # bytes a second of a file
_JSON_BYTES = 16 << 20
_REDIRECTS = 10
_BUSY = (408, 429, 500, 502, 503, 504)
_WAITS = (1.0, 2.0, 4.0)  # seconds before a busy server is asked again
_CUTS = 5  # times that a connection may end before it has brought so many bytes:
_PROGRESS = 1 << 20
_PART = os.O_RDWR | os.O_CREAT | files.NO_LINKS | files.BINARY


@dataclass(frozen=True)
class Content:
    """Where a file is.

    Attributes:
        path: for messages.
        digest: the hash of its content, of 64 digits (SHA-256) or 40 (git); the name of its blob.
        size: in bytes, by the list of files.
        url: leads to the content by redirects, whose targets are valid for a while.
        xet: huggingface_hub's description of a file in Xet's storage; None for others.
    """

    path: str
    digest: str
    size: int
    url: str
    xet: Any = None

    @property
    def seconds(self) -> float:
        """How long its download may take."""
        return _PATIENCE + self.size / _SLOWEST


class Remote:
    """A server that has a model.

    All methods raise DownloadError where it cannot be reached or its answer is invalid.

    Args:
        name: of the model. server: for messages, as "the hub". advice: what to look at when it
            answers nonsense.
    """

    def __init__(self, name: object, server: str, advice: str):
        from huggingface_hub import get_session  # slow

        self._name, self._server, self._advice = name, server, advice
        self._session = get_session()
        self._deadline = 0.0  # of all that is not a file
        self.allow(0)

    def allow(self, files: int) -> None:
        """Gives the headers of so many files their time, which begins now."""
        self._deadline = time.monotonic() + _LISTING + files * _HEADERS

    def download(self, content: Content, file: Path, report: Callable[[int], None]) -> None:
        """Writes a file, or what it lacks; after an error it is there as far as it came.

        Args:
            report: called with the bytes that are there at first, and with those that come.
        """
        deadline = time.monotonic() + content.seconds
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(file).st_mode):
                file.unlink()  # a link leads out of the store
        with open(os.open(file, _PART, 0o666), "r+b") as out:
            if out.seek(0, os.SEEK_END) > content.size:
                _empty(out)
            report(out.tell())
            cuts, mark = 0, out.tell()
            while out.tell() < content.size:
                try:
                    for nbytes in self._received(content, out, deadline):
                        report(nbytes)
                except DownloadError as error:
                    if error.__cause__ is None:  # the hub refuses; no connection broke
                        raise
                    if out.tell() - mark >= _PROGRESS:
                        cuts, mark = 0, out.tell()
                    cuts += 1
                    if cuts > _CUTS:
                        raise
                    time.sleep(_WAITS[0])

    def _received(self, content: Content, out: BinaryIO, deadline: float) -> Iterator[int]:
        """Writes what is left of a file; the bytes of each piece, negative for what is dropped."""
        done = out.tell()
        headers = {"Range": f"bytes={done}-"} if done else {}
        with self._answer("GET", content.url, deadline, headers) as response:
            if done and response.status_code != 206:  # all of it
                _empty(out)
                yield -done
            for piece in response.iter_bytes():
                if out.tell() + len(piece) > content.size:
                    _empty(out)
                    raise self._excess(content)
                self._need_time(deadline)
                out.write(piece)
                yield len(piece)
            if out.tell() < content.size:
                raise ConnectionError(f"{content.path} ends after {out.tell():,} bytes")

    def _json(self, url: str) -> tuple[Any, str]:
        """An answer, and the address of its next page; "" for none."""
        data, after = self._body(url, {})
        try:
            return json.loads(data), urljoin(url, after) if after else ""
        except (ValueError, RecursionError):
            raise self._nonsense("sends no JSON") from None

    def _body(self, url: str, headers: Mapping[str, str]) -> tuple[bytes, str]:
        """The content of a short answer, and the link to its next page; "" for none."""
        data = bytearray()
        with self._answer("GET", url, self._deadline, headers) as response:
            for piece in response.iter_bytes():
                data += piece
                self._need_time(self._deadline)
                if len(data) > _JSON_BYTES:
                    raise self._nonsense(f"sends more than {_JSON_BYTES:,} bytes at once")
            self._need_time(self._deadline)  # a connection that is cut may look like an end
            return bytes(data), response.links.get("next", {}).get("url", "")

    @contextmanager
    def _answer(
        self, method: str, url: str, deadline: float, headers: Mapping[str, str] = {}
    ) -> Iterator[Any]:
        """An answer whose body is not read yet, until a deadline."""
        with self._converted(), Timeout(deadline) as timeout:
            try:
                with closing(self._followed(method, url, headers, timeout)) as response:
                    self._need_success(response)
                    yield response
            except Exception:
                if timeout.over:
                    raise self._nonsense("is too slow") from None
                raise

    def _followed(self, method: str, url: str, headers: Mapping[str, str], timeout: Timeout) -> Any:
        """The answer behind redirects, which are followed here: their bodies may have no end."""
        for _ in range(_REDIRECTS):
            response = self._sent(method, url, headers, timeout)
            target = _target(response)
            if not target or (method == "HEAD" and self._stops(response, url, target)):
                return response
            response.close()
            if url.startswith("https:") and not target.startswith("https:"):
                raise self._nonsense("leads from https to something else")
            url = target
        raise self._nonsense(f"redirects {_REDIRECTS} times")

    def _sent(self, method: str, url: str, headers: Mapping[str, str], timeout: Timeout) -> Any:
        from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

        waits = iter(_WAITS)
        while True:
            request = self._session.build_request(
                method,
                url,
                headers={**self._headers(url), "Accept-Encoding": "identity", **headers},
                timeout=HF_HUB_DOWNLOAD_TIMEOUT,
                extensions=timeout.extensions(origin_of(url)),
            )
            response = self._session.send(request, stream=True, follow_redirects=False)
            if response.status_code not in _BUSY or (wait := next(waits, None)) is None:
                return response
            response.close()
            time.sleep(wait)

    def _headers(self, url: str) -> dict[str, str]:
        return {"User-Agent": f"ggmodel/{__version__}"}

    def _stops(self, response: Any, url: str, target: str) -> bool:
        """Whether the answer to a HEAD tells all, though it leads elsewhere."""
        return False

    def _need_success(self, response: Any) -> None:
        """Raises the error that an answer stands for."""
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise self._nonsense("compresses its answer, which may be a bomb")
        if not (200 <= response.status_code < 300 or _target(response)):
            raise self._refusal(response)

    def _refusal(self, response: Any) -> Error:
        """The error of an answer that is no success."""
        return DownloadError(
            f"{self._name}: {self._server} answers {response.status_code}; try again later"
        )

    @contextmanager
    def _converted(self, after: str = "goes on where it stopped") -> Iterator[None]:
        """Errors of the HTTP library and of Xet, whose names change, in our words; they stay as the
        cause.

        Args:
            after: the thing that the same command does.
        """
        try:
            yield
        except Error:
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise  # of a file that is written
            raise DownloadError(
                f"{self._name} cannot be downloaded: {_first_line(error)}; the same command {after}"
            ) from error

    def _need_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._nonsense("is too slow")

    def _excess(self, content: Content) -> DownloadError:
        return self._nonsense(f"sends more bytes of {content.path} than it lists")

    def _nonsense(self, what: str) -> DownloadError:
        return DownloadError(
            f"{self._name}: {self._server} {what}; try again later, or check {self._advice}"
        )


def _target(response: Any) -> str:
    """Where a redirect leads; "" for another answer."""
    location = response.headers.get("Location") if 300 <= response.status_code < 400 else None
    return urljoin(str(response.url), location) if location else ""


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def origin_of(url: str) -> tuple[str, str]:
    """The scheme and the host of an address."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _first_line(error: BaseException) -> str:
    """Without addresses: they may hold a password or a signature."""
    text = re.sub(r"( for url)?:? '?\w+://\S+", "", str(error)).strip()
    return repr((text.partition("\n")[0] or type(error).__name__)[:300])[1:-1]
