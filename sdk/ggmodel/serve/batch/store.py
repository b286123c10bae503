"""Files that clients upload, and those of answers, in a folder."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from ...bounds import limits
from ...errors import ConfigError
from ...storage import naming
from ..errors import Refused

_RECORD = ".json"


class StoredFile(Struct):
    """A file of a client.

    Attributes:
        owner: see `Call.key`: others cannot see it.
        purpose: "batch" of requests, "batch_output" of answers, or a word of the client's.
        created: seconds since 1970.
    """

    id: str
    owner: str
    filename: str
    purpose: str
    created: int
    nbytes: int


class FileStore:
    """Files by their id, each beside a record with its description."""

    def __init__(self, folder: str | None = None):
        """Reads what an earlier server left there.

        Args:
            folder: None is a temporary one, which `close` removes.

        Raises:
            ConfigError: it cannot be used.
        """
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = None if folder is None else Path(folder)
        self._lock = threading.Lock()
        self._files: dict[str, StoredFile] = {}
        self._nbytes = 0  # of all files
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._read(self._folder)
            except OSError as error:
                raise ConfigError(f"cannot use the folder {folder}: {error.strerror}") from None

    @property
    def stays(self) -> bool:
        """Whether files outlive the server."""
        return self._folder is not None and self._temporary is None

    @property
    def folder(self) -> Path:
        """The folder; a temporary one is made when it is first asked for."""
        with self._lock:
            if self._folder is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="ggmodel-files-")
                self._folder = Path(self._temporary.name)
            return self._folder

    def add(self, owner: str, filename: str, purpose: str, pieces: Iterable[bytes]) -> StoredFile:
        """Keeps a file of these pieces.

        Raises:
            Refused: there is no room.
            WriteError: the disk is full, or the like.
        """
        id = f"file-{secrets.token_hex(12)}"
        file = StoredFile(id, owner, filename, purpose, int(time.time()), 0)
        path = self.path(file)
        try:
            with naming(path), open(path, "wb") as opened:
                for piece in pieces:
                    file.nbytes += len(piece)
                    self._check(file.nbytes)
                    opened.write(piece)
            with self._lock, naming(path):
                self._check(file.nbytes)  # others may have come meanwhile
                path.with_name(id + _RECORD).write_bytes(msgspec.json.encode(file))
                self._files[id] = file
                self._nbytes += file.nbytes
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file

    def _check(self, nbytes: int) -> None:
        """Looks whether a file of so many bytes has room."""
        if len(self._files) >= limits.serve_files:
            raise Refused(
                f"the server keeps {limits.serve_files:,} files, the limit serve_files; delete one",
                413,
            )
        if (held := self._nbytes + nbytes) > limits.serve_files_bytes:
            raise Refused(
                f"the files would take {held:,} bytes (the limit serve_files_bytes is "
                f"{limits.serve_files_bytes:,}); delete some",
                413,
            )

    def get(self, id: str, owner: str) -> StoredFile | None:
        """A file of a client; None if there is none."""
        file = self._files.get(id)
        return file if file is not None and file.owner == owner else None

    def of(self, owner: str) -> list[StoredFile]:
        """The files of a client, the newest first."""
        with self._lock:
            return [one for one in reversed(self._files.values()) if one.owner == owner]

    def path(self, file: StoredFile) -> Path:
        """The place of its bytes."""
        return self.folder / file.id

    def drop(self, file: StoredFile) -> None:
        """Removes a file."""
        with self._lock:
            if self._files.pop(file.id, None):
                self._nbytes -= file.nbytes
        for name in (file.id + _RECORD, file.id):
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def close(self) -> None:
        """Removes the temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _read(self, folder: Path) -> None:
        found = list[StoredFile]()
        for record in folder.glob(f"file-*{_RECORD}"):
            with suppress(msgspec.DecodeError):
                file = msgspec.json.decode(record.read_bytes(), type=StoredFile)
                if file.id + _RECORD == record.name and (folder / file.id).is_file():
                    found.append(file)
        self._files = {one.id: one for one in sorted(found, key=lambda one: one.created)}
        self._nbytes = sum(one.nbytes for one in found)
