"""The origin of a model's states, as the name of its folder in a prefix store.

The contents of the model's files count, not their names. A file that was read once is known again
by its place, size and times.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...gguf_file import TensorSource
from ..engine.prefix_files import PrefixFiles
from ..requests.receipt import digest_of, library

if TYPE_CHECKING:
    from ..options import Options

_KEY = 20  # bytes
_PIECE = 8 << 20  # bytes read at once
_SETTLED = 2.0  # seconds after its last change, a file cannot change without another time
_CODE = Path(__file__).parents[2]


class ModelOrigin:
    """Names a folder after model, code, kernels and options that change bits.

    Args:
        files: of the store, which also keeps the digests of the model's files.
        source: the model.
        options: of loading.
        context_length: of a sequence: rotations may depend on it.
        models: folders and files with code of model files.
    """

    def __init__(
        self,
        files: PrefixFiles,
        source: TensorSource,
        options: Options,
        context_length: int,
        models: tuple[Path, ...],
    ):
        self._files, self._source = files, source
        self._about = [*_of_options(options, context_length), *_of_source(source)]
        self._about += [_code(one) for one in (_CODE, *models)]
        if options.backend == "ggml":
            kernels = {} if options.deterministic else {"kernels": ""}  # others', if any
            self._about.append(repr(library() | kernels))

    def known(self) -> str | None:
        """See `Origin`."""
        digests = []
        for path in self._source.files:
            name = _name(path)
            found = None if name is None else self._files.read(name)
            if name is None or not found:
                return None
            self._files.touch([name])
            digests.append(found[0].tobytes())
        return self._root(digests)

    def compute(self, cancelled: Callable[[], bool]) -> str | None:
        """See `Origin`."""
        if not all(path.is_file() for path in self._source.files):  # of a source in memory
            return self._root([digest_of(self._source).encode()])
        digests = []
        for path in self._source.files:
            name, digest = _name(path), _file_digest(path, cancelled)
            if digest is None:
                return None
            if name is not None and name == _name(path):
                self._files.write(name, [np.frombuffer(digest, np.uint8)])
            digests.append(digest)
        self._source.check_unchanged()
        return self._root(digests)

    def _root(self, digests: list[bytes]) -> str:
        text = repr((self._about, digests))
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=_KEY).hexdigest()


def _of_options(options: Options, context_length: int) -> Iterator[str]:
    names = ("backend", "type", "kv_type", "flash_attention", "deterministic", "optimize")
    yield from (f"{name}={getattr(options, name)}" for name in (*names, "gpu_layers", "rpc"))
    yield f"context_length={context_length} override_tensor={options.override_tensor}"


def _of_source(source: TensorSource) -> Iterator[str]:
    """The index, which may be made of a checkpoint's files; their bytes are digested apart."""
    digest = hashlib.blake2b(digest_size=_KEY)
    for key in sorted(source.metadata):
        if not key.startswith("tokenizer."):  # states follow from the ids of tokens
            value = source.metadata[key]
            plain = value if isinstance(value, (str, int, float)) else list(value)
            digest.update(f"{key}={plain!r}\n".encode(errors="replace"))
    for name, info in source.tensors.items():
        digest.update(f"{name} {info.shape} {info.dtype.name}\n".encode(errors="replace"))
    yield digest.hexdigest()


def _code(path: Path) -> str:
    """A digest of a file, or of all files of Python in a folder."""
    digest = hashlib.blake2b(digest_size=_KEY)
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        digest.update(f"{file.name}\n".encode(errors="replace") + file.read_bytes())
    return digest.hexdigest()


def _name(path: Path) -> str | None:
    """The name under which the digest of a file is kept; None for one that is not there, or has
    just changed."""
    try:
        status = path.stat()
    except OSError:
        return None
    if time.time() - status.st_ctime < _SETTLED:
        return None
    times = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    text = repr((os.path.realpath(path), status.st_dev, status.st_ino, *times))
    key = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=_KEY)
    return f"files/{key.hexdigest()}"


def _file_digest(path: Path, cancelled: Callable[[], bool]) -> bytes | None:
    digest = hashlib.blake2b(digest_size=_KEY)
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            if cancelled():
                return None
            digest.update(piece)
    return digest.digest()
