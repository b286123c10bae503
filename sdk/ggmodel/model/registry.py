"""Which architectures there are, and where they are found.

In order: those registered by code already run, a folder given with `--models`, the package
`ggmodel.models`, and entry points of the group "ggmodel.models". An architecture is `NAME.py` or a
folder `NAME/`; its module is imported when its name is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ..errors import ArchitectureError
from .model import Model

M = TypeVar("M", bound=type[Model])

_registered: dict[str, type[Model]] = {}
_GROUP = "ggmodel.models"


def register(name: str, *, hf: tuple[str, ...] | str = ()) -> Callable[[M], M]:
    """Decorator: registers a model class for files whose `general.architecture` is `name`.

    Args:
        hf: the `architectures` of Hugging Face configs that this class serves.

    Raises:
        ArchitectureError: the name is taken by a class of another module.
    """

    def enter(cls: M) -> M:
        known = _registered.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ArchitectureError(
                f"the architecture {name!r} is already registered by {known.__module__}"
            )
        cls.architecture = name
        cls.hf_architectures = (hf,) if isinstance(hf, str) else tuple(hf)
        _registered[name] = cls
        return cls

    return enter


def find(name: str, folder: str | Path | None = None) -> type[Model]:
    """The model class of an architecture.

    Args:
        folder: where to look first for `NAME.py` or `NAME/`.

    Raises:
        ArchitectureError: there is none; lists those there are and the nearest name.
    """
    importable = name.replace("-", "_")
    if folder is not None and _in_folder(Path(folder), importable):
        if name not in _registered or not _comes_from(_registered[name], Path(folder)):
            _registered.pop(name, None)
            _import_file(Path(folder), importable)
    elif name not in _registered:
        if importable in _built_in():
            importlib.import_module(f"ggmodel.models.{importable}")
        else:
            for entry in metadata.entry_points(group=_GROUP):
                if entry.name == name:
                    entry.load()
    if name not in _registered:
        known = supported(folder)
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ArchitectureError(
            f"no architecture {name!r}{hint} Supported: {', '.join(known)}. "
            "Another one is a file NAME.py in a folder given with --models (models=)."
        )
    return _registered[name]


def supported(folder: str | Path | None = None) -> list[str]:
    """The names of all architectures that can be found, sorted."""
    names = set(_registered) | set(_built_in())
    names |= {entry.name for entry in metadata.entry_points(group=_GROUP)}
    if folder is not None and Path(folder).is_dir():
        names |= {
            p.stem
            for p in Path(folder).iterdir()
            if not p.name.startswith(("_", ".")) and (p.suffix == ".py" or (p / "__init__.py").is_file())
        }
    return sorted(names)


def _built_in() -> list[str]:
    package = importlib.import_module("ggmodel.models")
    return [m.name for m in pkgutil.iter_modules(package.__path__)]


def _in_folder(folder: Path, name: str) -> Path | None:
    for path in (folder / f"{name}.py", folder / name / "__init__.py"):
        if path.is_file():
            return path
    return None


def _comes_from(cls: type[Model], folder: Path) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and folder.resolve() in Path(file).resolve().parents


def _import_file(folder: Path, name: str) -> ModuleType:
    path = _in_folder(folder, name)
    assert path is not None
    # A name of its own per folder: two folders may hold the same architecture.
    module_name = f"ggmodel_models_{abs(hash(str(path.resolve())))}_{name}"
    search = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(module_name, path, submodule_search_locations=search)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
