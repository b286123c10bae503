"""Which architectures there are, and where they are found.

In order: a folder given with `--models`, those registered by code already run, the package
`ggmodel.models`, and entry points of the group "ggmodel.models". An architecture is `NAME.py` or a
folder `NAME/` with an `__init__.py`; its module is imported when its name is asked for. A module of
the package may register more names than its own: it is imported also when a name is asked for that
no module has. What a folder holds serves those who name that folder, and no one else.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import linecache
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import ArchitectureError
from .model import Model
from .source_code import author_code, line_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

M = TypeVar("M", bound=type[Model])

_GROUP = "ggmodel.models"
_POOLED = " with pooling"  # behind the name of a variant; no file's architecture has a space
_lock = threading.RLock()
_registered: dict[str, type[Model]] = {}


# Of each model file of a folder, by the name its module got: the state of the file (or of all
# files beside an __init__.py) when it was imported, and what it registered.
_stamps: dict[str, tuple[tuple[str, int, int], ...]] = {}
_of_files: dict[str, dict[str, type[Model]]] = {}


def register(
    name: str, *, hf: tuple[str, ...] | str = (), pooled: bool = False
) -> Callable[[M], M]:
    """Decorator: registers a model class for files whose `general.architecture` is `name`.

    Args:
        hf: the `architectures` of Hugging Face configs that this class serves.
        pooled: the class is the embedding variant, for files with a `pooling_type`.

    Raises:
        ArchitectureError: the name is taken by a class of another module.
    """

    def enter(cls: M) -> M:
        with _lock:
            target = _of_files.get(cls.__module__.partition(".")[0], _registered)
            key = name + _POOLED if pooled else name
            known = target.get(key)
            if known is not None and (known.__module__, known.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise ArchitectureError(
                    f"{line_of(cls)}: the architecture {key!r} is already registered, by "
                    f"{known.__module__}.{known.__qualname__}; choose another name"
                )
            cls.architecture = name
            cls.hf_architectures = (hf,) if isinstance(hf, str) else tuple(hf)
            target[key] = cls
        return cls

    return enter


def find(name: str, folder: str | Path | None = None, pooled: bool = False) -> type[Model]:
    """The model class of an architecture.

    Args:
        folder: where to look first for `NAME.py` or `NAME/`; a file that has changed since is
            imported again. In file names "_" stands for what no identifier may have ("gpt-oss").
        pooled: take the embedding variant, if the architecture has one.

    Raises:
        ArchitectureError: there is none (lists those there are and the nearest name), or its
            file cannot be imported (names the line).
    """
    with _lock:
        base = _find(name, folder)
        if not pooled:
            return base
        registered = _of_files.get(base.__module__.partition(".")[0], _registered)
        return registered.get(name + _POOLED, base)


def _find(name: str, folder: str | Path | None) -> type[Model]:
    importable = re.sub(r"\W", "_", name)
    with _lock:
        if folder is not None:
            if not Path(folder).is_dir():
                raise ArchitectureError(f"models={str(folder)!r} is no folder")
            path = _in_folder(Path(folder), importable)
            if path is not None:
                return _from_file(name, importable, path)
        if name not in _registered:
            modules = _built_in()
            _import_built_in([importable] if importable in modules else modules)
        if name not in _registered:
            _from_entry_points(name)
        if name in _registered:
            return _registered[name]
        if folder is not None and (found := _in_any_file(name, Path(folder))) is not None:
            return found
    known = supported(folder)
    near = difflib.get_close_matches(name[:100], known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ArchitectureError(
        f"no architecture {name[:100]!r}{hint} Supported: {', '.join(known)}. "
        "Another one is a file NAME.py in a folder given with --models (models=)."
    )


def find_hf(names: Sequence[str], folder: str | Path | None = None) -> type[Model]:
    """The model class that serves a Hugging Face class, by the `architectures` of a config.

    Args:
        folder: where to look first.

    Raises:
        ArchitectureError: none does (lists the classes served), or a file in the folder cannot be
            imported (names the line).
    """
    served: dict[str, type[Model]] = {}
    if folder is not None and not Path(folder).is_dir():
        raise ArchitectureError(f"models={str(folder)!r} is no folder")
    with _lock:
        if folder is not None:
            for name in _in_files(Path(folder)):
                path = _in_folder(Path(folder), name)
                if path is not None:
                    _enter(served, _registered_by(name, path))
        _import_built_in(_built_in())
        for entry in () if any(n in served for n in names) else _entry_points():
            with author_code(f"the entry point {entry.value!r} cannot be imported", None):
                entry.load()
        _enter(served, _registered)
    for name in names:
        if name in served:
            return served[name]
    wanted = ", ".join(n[:100] for n in names) or "(config.json names none)"
    near = difflib.get_close_matches(wanted, served, 1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise ArchitectureError(
        f"no architecture serves {wanted}{hint} Served are: {', '.join(sorted(served))}. Another "
        "one is a file NAME.py in a folder given with --models (models=), registered with hf=."
    )


def _in_any_file(name: str, folder: Path) -> type[Model] | None:
    """The architecture of a file that is called otherwise."""
    for other in sorted(_in_files(folder)):
        path = _in_folder(folder, other)
        found = {} if path is None else _registered_by(other, path)
        if name in found:
            return found[name]
    return None


def _enter(served: dict[str, type[Model]], registered: Mapping[str, type[Model]]) -> None:
    for cls in registered.values():
        for name in cls.hf_architectures:
            served.setdefault(name, cls)


def supported(folder: str | Path | None = None) -> list[str]:
    """The names of all architectures that can be found, sorted."""
    with _lock:
        _import_built_in(_built_in())
        names = {n for n in _registered if not n.endswith(_POOLED)}
    names |= {entry.name for entry in _entry_points()}
    if folder is not None and Path(folder).is_dir():
        names |= _in_files(Path(folder))
    return sorted(names)


def _in_files(folder: Path) -> set[str]:
    files = {p.stem for p in folder.glob("[!_.]*.py")}
    return files | {p.parent.name for p in folder.glob("[!_.]*/__init__.py")}


def _built_in() -> list[str]:
    package = importlib.import_module("ggmodel.models")
    return [m.name for m in pkgutil.iter_modules(package.__path__)]


def _import_built_in(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(f"ggmodel.models.{module}")


def _entry_points() -> EntryPoints:
    # Costs as much as many others together, and is for architectures that are not ours.
    from importlib import metadata

    return metadata.entry_points(group=_GROUP)


def _from_entry_points(name: str) -> None:
    for entry in _entry_points():
        if entry.name != name:
            continue
        with author_code(f"the entry point {entry.value!r} of {name!r} cannot be imported", None):
            entry.load()
        if name not in _registered:
            raise ArchitectureError(
                f"the entry point {entry.value!r} is called {name!r} but registers no model of "
                f"that name; decorate its class with @register({name!r})"
            )


def _in_folder(folder: Path, name: str) -> Path | None:
    if not name or len(name) > 100 or name.startswith("_"):  # it comes from a file
        return None
    for path in (folder / f"{name}.py", folder / name / "__init__.py"):
        if path.is_file():
            return path.resolve()
    return None


def _from_file(name: str, importable: str, path: Path) -> type[Model]:
    found = _registered_by(importable, path)
    if name not in found:
        others = f", only {', '.join(map(repr, found))}" if found else ""
        raise ArchitectureError(
            f"{path} registers no architecture {name!r}{others}; "
            f"decorate its model with @register({name!r})"
        )
    return found[name]


def _registered_by(importable: str, path: Path) -> dict[str, type[Model]]:
    """What a file registers; it is imported, again if it has changed."""
    # A name of its own per folder: two folders may hold the same architecture.
    digest = hashlib.blake2s(str(path).encode(), digest_size=6).hexdigest()
    module_name = f"ggmodel_models_{digest}_{importable}"
    stamp = _stamp(path)
    if _stamps.get(module_name) != stamp:
        what = "the model file cannot be imported"
        with author_code(what, str(path), keep=ArchitectureError):
            _import(module_name, path)
        _stamps[module_name] = stamp
    return _of_files[module_name]


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return tuple((str(f), s.st_mtime_ns, s.st_size) for f in files for s in [f.stat()])


def _import(module_name: str, path: Path) -> None:
    _forget(module_name)
    _of_files[module_name] = {}
    importlib.invalidate_caches()
    linecache.checkcache()
    search = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        module_name, path, submodule_search_locations=search
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # Bytecode is checked by seconds: it would be stale for a file saved twice within one.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(module_name)
        raise
    finally:
        sys.dont_write_bytecode = writes


def _forget(module_name: str) -> None:
    _stamps.pop(module_name, None)
    _of_files.pop(module_name, None)
    for known in [m for m in sys.modules if m == module_name or m.startswith(f"{module_name}.")]:
        del sys.modules[known]
