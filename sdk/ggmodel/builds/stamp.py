"""The file `built-VERSION` in a finished build, which says what it was made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .version import VERSION

NAME = f"built-{VERSION}"


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


def read(folder: Path) -> Stamp | None:
    """The stamp of a build, or None; one that cannot be understood says nothing but the version."""
    import json

    for path in sorted(folder.glob("built-*")):
        version = path.name.removeprefix("built-")
        try:
            found = json.loads(path.read_text(encoding="utf-8") or "{}")
            return Stamp(version, list(found.get("options", ())), dict(found.get("features", {})))
        except (OSError, ValueError, TypeError, AttributeError):
            return Stamp(version)
    return None


def write(folder: Path, **about: Any) -> None:
    """Marks a build of this version as finished.

    Args:
        about: the fields of a `Stamp`.
    """
    import json

    (folder / NAME).write_text(json.dumps(about), encoding="utf-8")


def is_native(folder: Path) -> bool:
    """Whether the ggml there was built here with all that the compiler knows of the processor."""
    found = read(folder)
    return found is not None and "-DGGML_NATIVE=OFF" not in found.options
