"""The choice of a ggml, and the stamp of what a build was made from; both are read without ggml.

The file "ggml.json" in the user's data folder names the folder of the choice; without it
ggmodel uses the ggml that it was installed with. Every start of a process looks here. A
finished build has a stamp, the file `built-VERSION`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from . import storage
from .errors import ConfigError, Error, NativeError
from .platforms import processor


@dataclass(frozen=True)
class Stamp:
    """The origin of a build.

    Attributes:
        version: of the source.
        options: of cmake, beside ggmodel's own.
        features: of ggml's CPU backend, once it has been tried.
    """

    version: str
    options: list[str] = field(default_factory=list)
    features: dict[str, str] = field(default_factory=dict)


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp of a build, or None; one that cannot be understood says nothing but the version."""
    import json

    for path in sorted(folder.glob("built-*")):
        version = path.name.removeprefix("built-")
        try:
            stamp = json.loads(path.read_text(encoding="utf-8") or "{}")
            return Stamp(version, list(stamp.get("options", ())), dict(stamp.get("features", {})))
        except (OSError, ValueError, TypeError, AttributeError):
            return Stamp(version)
    return None


def is_native(folder: Path) -> bool:
    """Whether the ggml there was built here with all that the compiler knows of the processor."""
    stamp = read_stamp(folder)
    return stamp is not None and "-DGGML_NATIVE=OFF" not in stamp.options


INSTALLED = "default"
"""The name of the ggml that was installed with ggmodel."""

RESET = f"`ggmodel ggml use {INSTALLED}` goes back to the one that was installed with ggmodel"


def chosen() -> Path | None:
    """The default that the user chose, or None.

    Raises:
        NativeError: the file that names it is damaged.
    """
    try:
        path = _file()
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, ConfigError):
        return None
    except (OSError, ValueError) as error:
        raise NativeError(f"{path} cannot be read: {error}; {RESET}") from None
    import json

    try:
        return Path(json.loads(text)["path"])
    except (ValueError, TypeError, LookupError):
        raise NativeError(f"{path} is damaged; {RESET}") from None


def choose(path: Path | None) -> None:
    """Makes a ggml the default; None is the one that was installed.

    Raises:
        WriteError: the choice cannot be written.
    """
    import json

    file = _file()
    with storage.naming(file):
        if path is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
    storage.write_text(file, json.dumps({"path": str(path)}))


def is_chosen(path: Path) -> bool:
    """Whether the user chose it."""
    try:
        current = chosen()
    except Error:
        return False
    return current is not None and os.path.realpath(current) == os.path.realpath(path)


def need_processor(path: Path) -> None:
    """Refuse a build that was made here for another processor, which would end the process.

    Raises:
        NativeError: this processor lacks instructions that it uses.
    """
    stamp = read_stamp(path)
    if stamp and (lacking := processor.lacking(stamp.features)):
        raise NativeError(
            f"the ggml in {path} was built for another processor: this one has no "
            f"{', '.join(lacking)}. `ggmodel ggml build` builds one for this; {RESET}"
        )


def _file() -> Path:
    return storage.data_folder() / "ggml.json"
