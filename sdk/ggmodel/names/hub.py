"""The HTTP API of the Hugging Face hub, read as what it is: answers of an untrusted server.

huggingface_hub brings the session, the token and Xet. Its own downloads name files after headers of
the answer, and read answers of any length; here a name is a digest, and lengths, pages, redirects
and times are bounded.
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
from urllib.parse import quote, urljoin, urlsplit

from .. import __version__
from ..bounds import limits
from ..errors import DownloadError, Error, ModelNotFound
from ..platforms import files
from ..reading import too_large
from ..storage import private_folder
from . import transfers as xet
from .grammar import HubName
from .hub_cache import is_commit, is_digest
from .transfers import Timeout

_ENDPOINT = "https://huggingface.co"
_LISTING = 600.0  # seconds for the commit and the list of its files
_HEADERS = 1.0  # seconds more for the headers of a file
_PATIENCE = 120.0  # seconds for a file, besides its bytes
_SLOWEST = 16 << 10  # bytes a second of a file
_JSON_BYTES = 16 << 20  # pages of 1,000 files have 0.5 MB
_PAGE = 500  # files of a page at least; the hub sends 1,000
_REDIRECTS = 10
_BUSY = (408, 429, 500, 502, 503, 504)
_WAITS = (1.0, 2.0, 4.0)  # seconds before a busy hub is asked again
_CUTS = 5  # times that a connection may end before it has brought so many bytes:
_PROGRESS = 1 << 20
_LARGEST = 1 << 62  # bytes of a file
_PART = os.O_RDWR | os.O_CREAT | files.NO_LINKS | files.BINARY
_XET_HASH = re.compile(r"[0-9a-f]{64}")
_PATH_BYTES, _NAME_BYTES = 1024, 255  # of a path in a repository, and between its slashes
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_REASONS = {
    401: "the hub refuses the token; log in again with `hf auth login`, or set HF_TOKEN",
    403: "the token has no access; ask for it on the model's page of the hub",
    429: "the hub has had too many requests from here; wait some minutes, or log in",
}


@dataclass(frozen=True)
class Content:
    """Where a file of a repository is, by its headers.

    Attributes:
        digest: the hash of its content, of 64 digits (SHA-256) or 40 (git); the name of its blob.
        size: in bytes, by the list of files.
        url: of the hub; it leads to the content by redirects, whose targets are valid for a while.
        xet: huggingface_hub's description of a file in Xet's storage; None for others.
    """

    path: str
    digest: str
    size: int
    url: str
    xet: Any

    @property
    def seconds(self) -> float:
        """How long its download may take."""
        return _PATIENCE + self.size / _SLOWEST


class Repository:
    """A repository of the hub, whose answers are checked.

    All methods raise DownloadError where the hub cannot be reached or its answer is invalid, and
    ModelNotFound where it has no such repository, revision or file, or it is private.
    """

    def __init__(self, name: HubName):
        from huggingface_hub import get_session  # slow

        self._name, self._session = name, get_session()
        # Read when it is used, as all other settings are.
        self._endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        self._deadline = 0.0  # of all that is not a file
        self.allow(0)

    def allow(self, files: int) -> None:
        """Gives the headers of so many files their time, which begins now."""
        self._deadline = time.monotonic() + _LISTING + files * _HEADERS

    def commit(self) -> str:
        """The commit that the name's revision means."""
        revision = f"/revision/{quote(self._name.revision, safe='')}" if self._name.revision else ""
        answer, _ = self._json(f"{self._endpoint}/api/models/{self._name.repo}{revision}")
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise self._nonsense("names no commit")
        return commit

    def files(self, commit: str) -> tuple[dict[str, int], list[str]]:
        """Path → bytes of the files of a commit, and paths that are refused: they leave the
        repository's folder, are too long, or no system prints them."""
        tree = f"{self._endpoint}/api/models/{self._name.repo}/tree/{commit}"
        url, sizes, refused = f"{tree}?recursive=True&expand=False", dict[str, int](), list[str]()
        for _ in range(limits.store_files // _PAGE + 1):
            entries, url = self._json(url)
            if not isinstance(entries, list):
                raise self._nonsense("sends no list of files")
            for entry in entries:
                path, size = _file(entry)
                if path and is_plain(path):
                    sizes[path] = size
                elif path:
                    refused.append(path)
            if not url:
                return sizes, refused
            if len(sizes) + len(refused) > limits.store_files:
                break
        raise DownloadError(too_large(self._name.repo, "more files or pages", "store_files"))

    def content(self, commit: str, path: str, size: int) -> Content:
        """The headers of a file.

        Args:
            size: of the file, by the list of files.
        """
        url = f"{self._endpoint}/{self._name.repo}/resolve/{commit}/{quote(path)}"
        with self._answer("HEAD", url, self._deadline) as response:
            etag = response.headers.get("X-Linked-Etag") or response.headers.get("ETag") or ""
            digest = etag.removeprefix("W/").strip('"')
            if not is_digest(digest):
                raise self._nonsense(f"has no digest of {path:.200} but {digest[:100]!r}")
            return Content(path, digest, size, url, self._xet(response))

    def download(self, content: Content, file: Path, report: Callable[[int], None]) -> None:
        """Writes a file, or what it lacks; after an error it is there as far as it came. From Xet's
        storage it comes whole or not at all.

        Args:
            report: called with the bytes that are there at first, and with those that come.
        """
        if content.xet is not None:
            with private_folder(file) as work, self._converted("fetches the missing files"):
                part, headers = work / "content", self._headers(self._endpoint)
                xet.receive(content.xet, content.size, part, headers, report, self._excess(content))
                files.replace(part, file)
            return
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

    def _xet(self, response: Any) -> Any:
        """The description of a file in Xet's storage, where that can be used. Its address gets the
        token, and must be the hub's."""
        from huggingface_hub.utils import parse_xet_file_data_from_response
        from huggingface_hub.utils._runtime import is_xet_available

        content = parse_xet_file_data_from_response(response, self._endpoint)
        if content is None or not is_xet_available():
            return None
        ours = _origin(content.refresh_route) == _origin(self._endpoint)
        return content if ours and _XET_HASH.fullmatch(content.file_hash) else None

    def _json(self, url: str) -> tuple[Any, str]:
        """An answer, and the address of its next page; "" for none."""
        data = bytearray()
        with self._answer("GET", url, self._deadline) as response:
            for piece in response.iter_bytes():
                data += piece
                self._need_time(self._deadline)
                if len(data) > _JSON_BYTES:
                    raise self._nonsense(f"sends more than {_JSON_BYTES:,} bytes at once")
            self._need_time(self._deadline)  # a connection that is cut may look like an end
            after = response.links.get("next", {}).get("url", "")
        try:
            return json.loads(data), urljoin(url, after) if after else ""
        except (ValueError, RecursionError):
            raise self._nonsense("sends no JSON") from None

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
        """The answer behind redirects; of a HEAD the first that has a digest, or leads elsewhere.
        Redirects are followed here, since their bodies may have no end."""
        for _ in range(_REDIRECTS):
            response = self._sent(method, url, headers, timeout)
            target = _target(response)
            is_head = method == "HEAD"
            if not target or (is_head and "X-Linked-Etag" in response.headers):
                return response
            if is_head and _origin(target) != _origin(url):
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
                extensions=timeout.extensions(_origin(url)),
            )
            response = self._session.send(request, stream=True, follow_redirects=False)
            if response.status_code not in _BUSY or (wait := next(waits, None)) is None:
                return response
            response.close()
            time.sleep(wait)

    def _headers(self, url: str) -> dict[str, str]:
        """The token is the hub's alone. huggingface_hub's own headers ask the hub for more."""
        from huggingface_hub import get_token
        from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN

        headers = {"User-Agent": f"ggmodel/{__version__}"}
        ours = _origin(url) in (_origin(self._endpoint), _origin(_ENDPOINT))
        if ours and not HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _need_success(self, response: Any) -> None:
        status, code = response.status_code, response.headers.get("X-Error-Code")
        name, repo = self._name, self._name.repo
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise self._nonsense("compresses its answer, which may be a bomb")
        if 200 <= status < 300 or _target(response):
            return
        if code == "GatedRepo":
            raise DownloadError(
                f"{repo} is gated: ask for access on its page of the hub, then {_LOGIN}"
            )
        if code == "RevisionNotFound":
            raise ModelNotFound(
                f"{repo} has no revision {name.revision or 'main'!r}; see its page of the hub"
            )
        if code == "EntryNotFound":
            raise ModelNotFound(f"a file of {name} has gone from the hub; try again")
        is_refused = response.headers.get("X-Error-Message", "").startswith("Invalid credentials")
        if code == "RepoNotFound" or (status == 401 and not is_refused):
            raise ModelNotFound(
                f"the hub has no repository {repo}, or it is private: check the name; if you "
                f"have access, {_LOGIN}"
            )
        reason = _REASONS.get(status, f"the hub answers {status}; try again later")
        raise DownloadError(f"{name}: {reason}")

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
        return DownloadError(f"{self._name}: the hub {what}; try again later, or check HF_ENDPOINT")


def is_plain(path: str) -> bool:
    """Whether a path of a repository stays below its folder, and every system can print it."""
    parts = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and len(path.encode()) <= _PATH_BYTES
        and all(p not in ("", ".", "..") and not files.unfit(p) for p in parts)
        and all(len(part.encode()) <= _NAME_BYTES for part in parts)
    )


def _file(entry: Any) -> tuple[str, int]:
    """Path and bytes of an entry of a list; "" for a folder."""
    if isinstance(entry, dict) and entry.get("type") == "file":
        path, size = entry.get("path"), entry.get("size")
        if isinstance(path, str) and type(size) is int and 0 <= size < _LARGEST:
            return path, size
    return "", 0


def _target(response: Any) -> str:
    """Where a redirect leads; "" for another answer."""
    location = response.headers.get("Location") if 300 <= response.status_code < 400 else None
    return urljoin(str(response.url), location) if location else ""


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _first_line(error: BaseException) -> str:
    """Without addresses: they may hold a password or a signature."""
    text = re.sub(r"( for url)?:? '?\w+://\S+", "", str(error)).strip()
    return repr((text.partition("\n")[0] or type(error).__name__)[:300])[1:-1]
