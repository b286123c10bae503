"""The HTTP API of the Hugging Face hub, read as what it is: answers of an untrusted server.

huggingface_hub brings the session, the token and Xet. Its own downloads name files after headers of
the answer, and read answers of any length; here a name is a digest, and lengths, pages, redirects
and times are bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..bounds import limits
from ..errors import DownloadError, Error, ModelNotFound
from ..platforms import files
from ..reading import too_large
from ..storage import private_folder
from . import transfers as xet
from .grammar import HubName
from .hub_cache import is_commit, is_digest
from .remote import Content, Remote, origin_of

_ENDPOINT = "https://huggingface.co"
_PAGE = 500  # files of a page at least; the hub sends 1,000
_LARGEST = 1 << 62  # bytes of a file
_XET_HASH = re.compile(r"[0-9a-f]{64}")
_PATH_BYTES, _NAME_BYTES = 1024, 255  # of a path in a repository, and between its slashes
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_REASONS = {
    401: "the hub refuses the token; log in again with `hf auth login`, or set HF_TOKEN",
    403: "the token has no access; ask for it on the model's page of the hub",
    429: "the hub has had too many requests from here; wait some minutes, or log in",
}


class Repository(Remote):
    """A repository of the hub, whose answers are checked.

    All methods raise DownloadError where the hub cannot be reached or its answer is invalid, and
    ModelNotFound where it has no such repository, revision or file, or it is private.
    """

    def __init__(self, name: HubName):
        super().__init__(name, "the hub", "HF_ENDPOINT")
        self._hub = name
        # Read when it is used, as all other settings are.
        self._endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")

    def commit(self) -> str:
        """The commit that the name's revision means."""
        revision = f"/revision/{quote(self._hub.revision, safe='')}" if self._hub.revision else ""
        answer, _ = self._json(f"{self._endpoint}/api/models/{self._hub.repo}{revision}")
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise self._nonsense("names no commit")
        return commit

    def files(self, commit: str) -> tuple[dict[str, int], list[str]]:
        """Path → bytes of the files of a commit, and paths that are refused: they leave the
        repository's folder, are too long, or no system prints them."""
        tree = f"{self._endpoint}/api/models/{self._hub.repo}/tree/{commit}"
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
        raise DownloadError(too_large(self._hub.repo, "more files or pages", "store_files"))

    def content(self, commit: str, path: str, size: int) -> Content:
        """The headers of a file.

        Args:
            size: of the file, by the list of files.
        """
        url = f"{self._endpoint}/{self._hub.repo}/resolve/{commit}/{quote(path)}"
        with self._answer("HEAD", url, self._deadline) as response:
            etag = response.headers.get("X-Linked-Etag") or response.headers.get("ETag") or ""
            digest = etag.removeprefix("W/").strip('"')
            if not is_digest(digest):
                raise self._nonsense(f"has no digest of {path:.200} but {digest[:100]!r}")
            return Content(path, digest, size, url, self._xet(response))

    def download(self, content: Content, file: Path, report: Callable[[int], None]) -> None:
        """As `Remote.download`. From Xet's storage a file comes whole or not at all."""
        if content.xet is None:
            super().download(content, file, report)
            return
        with private_folder(file) as work, self._converted("fetches the missing files"):
            part, headers = work / "content", self._headers(self._endpoint)
            xet.receive(content.xet, content.size, part, headers, report, self._excess(content))
            files.replace(part, file)

    def _xet(self, response: Any) -> Any:
        """The description of a file in Xet's storage, where that can be used. Its address gets the
        token, and must be the hub's."""
        from huggingface_hub.utils import parse_xet_file_data_from_response
        from huggingface_hub.utils._runtime import is_xet_available

        content = parse_xet_file_data_from_response(response, self._endpoint)
        if content is None or not is_xet_available():
            return None
        ours = origin_of(content.refresh_route) == origin_of(self._endpoint)
        return content if ours and _XET_HASH.fullmatch(content.file_hash) else None

    def _headers(self, url: str) -> dict[str, str]:
        """The token is the hub's alone. huggingface_hub's own headers ask the hub for more."""
        from huggingface_hub import get_token
        from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN

        headers = {"User-Agent": f"ggmodel/{__version__}"}
        ours = origin_of(url) in (origin_of(self._endpoint), origin_of(_ENDPOINT))
        if ours and not HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _stops(self, response: Any, url: str, target: str) -> bool:
        return "X-Linked-Etag" in response.headers or origin_of(target) != origin_of(url)

    def _refusal(self, response: Any) -> Error:
        status, code = response.status_code, response.headers.get("X-Error-Code")
        name, repo = self._name, self._hub.repo
        if code == "GatedRepo":
            return DownloadError(
                f"{repo} is gated: ask for access on its page of the hub, then {_LOGIN}"
            )
        if code == "RevisionNotFound":
            return ModelNotFound(
                f"{repo} has no revision {self._hub.revision or 'main'!r}; see its page of the hub"
            )
        if code == "EntryNotFound":
            return ModelNotFound(f"a file of {name} has gone from the hub; try again")
        is_refused = response.headers.get("X-Error-Message", "").startswith("Invalid credentials")
        if code == "RepoNotFound" or (status == 401 and not is_refused):
            return ModelNotFound(
                f"the hub has no repository {repo}, or it is private: check the name; if you "
                f"have access, {_LOGIN}"
            )
        if reason := _REASONS.get(status):
            return DownloadError(f"{name}: {reason}")
        return super()._refusal(response)


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
