"""The folders of the user in which ggmodel keeps things."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .errors import ConfigError


def data() -> Path:
    """The folder for what is to stay, such as builds of ggml and models made here: "ggmodel" in
    $XDG_DATA_HOME, ~/.local/share or, on Windows, %LOCALAPPDATA%.

    Raises:
        ConfigError: the user has no home folder.
    """
    return _below("XDG_DATA_HOME", ".local/share")


def cache() -> Path:
    """The folder for what can be made again: "ggmodel" in $XDG_CACHE_HOME, ~/.cache, on macOS
    ~/Library/Caches and on Windows %LOCALAPPDATA%.

    Raises:
        ConfigError: the user has no home folder.
    """
    return _below("XDG_CACHE_HOME", "Library/Caches" if sys.platform == "darwin" else ".cache")


def _below(variable: str, in_home: str) -> Path:
    if root := os.environ.get(variable):
        return Path(root) / "ggmodel"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "ggmodel"
    try:
        return Path.home() / in_home / "ggmodel"
    except RuntimeError as error:
        raise ConfigError(f"this user has no home folder; set {variable}") from error
