"""The ggml that the user chose as the default, by `ggmodel ggml use`.

The file "ggml.json" in the user's data folder names its folder; without it ggmodel uses the ggml
that it was installed with. Every start of a process looks here.
"""

from __future__ import annotations

import os
from pathlib import Path

from .. import atomic, folders
from ..errors import ConfigError, Error, NativeError

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
    with atomic.naming(file):
        if path is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(file, json.dumps({"path": str(path)}))


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
    from . import processor, stamp

    found = stamp.read(path)
    if found and (lacking := processor.lacking(found.features)):
        raise NativeError(
            f"the ggml in {path} was built for another processor: this one has no "
            f"{', '.join(lacking)}. `ggmodel ggml build` builds one for this; {RESET}"
        )


def _file() -> Path:
    return folders.data() / "ggml.json"
