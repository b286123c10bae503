"""The architectures that exist, and how one is found by its name.

Searched in order: a folder given with `--models`, classes registered by code that has run, the
package `ggmodel.models`, entry points of the group "ggmodel.models".

A folder given with `--models` is imported whole, so that what it registers wins whatever its files
are called: `*.py`, folders with an `__init__.py`, and those modules of such a folder that may
register the name. It serves only callers that name it. In the package an architecture is `NAME.py`,
`NAME/` or `FAMILY/NAME.py`, and only that module is imported; all of them are when a name is asked
for that none is called by.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import ArchitectureError
from .model import Model
from .source_code import author_code, line_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

M = TypeVar("M", bound=type[Model])

_GROUP = "ggmodel.models"
# Its group is empty where the name is no literal.
_REGISTER = re.compile(r"""\bregister\(\s*(?:["']([^"']+)["'])?""")
_POOLED = " with pooling"  # behind the name of a variant; no file's architecture has a space
# Methods that the base classes of models with media ask for.
_ENCODERS = {
    "encode_multimodal": "ggmodel.model.VisionModel",
    "encode_audio": "ggmodel.nn.AudioModel",
    "encode_video": "ggmodel.nn.VideoVision",
}
_lock = threading.RLock()
_registered: dict[str, type[Model]] = {}
# For files of folders: name of the module → the state of its files when it was imported, and what
# they registered.
_stamps: dict[str, tuple[tuple[str, int, int], ...]] = {}
_of_files: dict[str, dict[str, type[Model]]] = {}


def register(
    name: str,
    *,
    hf: tuple[str, ...] | str = (),
    pairs: Mapping[str, str] | None = None,
    pooled: bool = False,
) -> Callable[[M], M]:
    """Decorator: registers a model class for files whose `general.architecture` is `name`.

    Args:
        hf: the `architectures` of Hugging Face configs that this class serves.
        pairs: a text architecture → the type of projector beside its file with which this class
            serves the two, as llama.cpp writes them: `{"llama": "idefics3"}`.
        pooled: the class is the embedding variant, for files with a `pooling_type`.

    Raises:
        ArchitectureError: the name is taken by a class of another module, or the class is no model,
            or has an encoder that nobody asks for.
    """

    def enter(cls: M) -> M:
        if not (isinstance(cls, type) and issubclass(cls, Model) and isinstance(name, str)):
            raise ArchitectureError(
                f"@register({name!r:.80}) stands before {cls!r:.80}; it takes the name of "
                "an architecture, and stands before a class that inherits from Model"
            )
        for method, base in _ENCODERS.items():
            if hasattr(cls, method) and cls.modalities is Model.modalities:
                raise ArchitectureError(
                    f"{line_of(cls)}: {cls.__name__} has {method}, which a model is asked for that "
                    f"inherits from {base} or writes modalities(); add this base"
                )
        with _lock:
            target = _of_files.get(cls.__module__.partition(".")[0], _registered)
            key = name + _POOLED if pooled else name
            former, own = (f"{c.__module__}.{c.__qualname__}" for c in (target.get(key, cls), cls))
            if former != own:
                raise ArchitectureError(
                    f"{line_of(cls)}: the architecture {key!r} is already registered, by {former}; "
                    "choose another name"
                )
            cls.architecture = name
            cls.hf_architectures = (hf,) if isinstance(hf, str) else tuple(hf)
            cls.pairs = dict(pairs or {})
            target[key] = cls
        return cls

    return enter


def find(name: str, folder: str | Path | None = None, pooled: bool = False) -> type[Model]:
    """The model class of an architecture.

    Args:
        folder: of further architectures, which come first; a file that has changed since is
            imported again.
        pooled: take the embedding variant, if the architecture has one.

    Raises:
        ArchitectureError: no such architecture (lists all, and the nearest name), two files of the
            folder register it, or one of its files cannot be imported (names the line).
    """
    keys = (name + _POOLED, name) if pooled else (name,)
    with _lock:
        in_folder = _of_folder(folder, name)
        for key in keys:
            if candidates := [own[key] for own in in_folder.values() if key in own]:
                return _only(candidates, f"register the architecture {key!r}")
        _check_named(name, in_folder)
        _import_elsewhere(name)
        for key in keys:
            if key in _registered:
                return _registered[key]
    names = supported(folder)
    near = difflib.get_close_matches(name[:100], names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ArchitectureError(
        f"no architecture {name[:100]!r}{hint} Supported: {', '.join(names)}. "
        "Another one is a file NAME.py in a folder given with --models (models=)."
    )


def _import_elsewhere(name: str) -> None:
    """Imports what registers an architecture outside of folders: the module that is called by its
    name, else all, else the entry point of that name."""
    if name in _registered:
        return
    file = _importable(name)
    for module in _built_in():
        if module.rpartition(".")[2] == file:
            _import_built_in([module])
            if name in _registered:
                return
    _import_built_in(_built_in())
    if name not in _registered:
        _from_entry_points(name)


def find_hf(names: Sequence[str], folder: str | Path | None = None) -> type[Model]:
    """The model class that serves a Hugging Face class, by the `architectures` of a config.

    Args:
        folder: searched first.

    Raises:
        ArchitectureError: no architecture does (lists some that are), two files of the folder
            do, or one of its files cannot be imported (names the line).
    """
    with _lock:
        in_folder = [_serving(own) for own in _of_folder(folder).values()]
        for name in names:
            if candidates := [own[name] for own in in_folder if name in own]:
                return _only(candidates, f"serve {name}")
        _import_all()
        served = _serving(_registered)
    for name in names:
        if name in served:
            return served[name]
    requested = ", ".join(n[:100] for n in names) or "(config.json names none)"
    available = sorted({*served, *(name for own in in_folder for name in own)})
    near = difflib.get_close_matches(requested[:100], available, 4, 0.0)
    raise ArchitectureError(
        f"no architecture serves {requested}. `ggmodel new NAME --hf FOLDER` begins one from the "
        "checkpoint; a folder of one's own is given with --models (models=). Served are "
        f"{len(available)} classes; those with the most similar names: {', '.join(near)}."
    )


def find_pair(
    text: str, projectors: Sequence[str], folder: str | Path | None = None
) -> type[Model] | None:
    """The model class that serves files of a text architecture beside a projector of one of these
    types; None without.

    Args:
        folder: searched first.

    Raises:
        ArchitectureError: two files of the folder do, or one of its files cannot be imported.
    """
    with _lock:
        in_folder = [cls for own in _of_folder(folder).values() for cls in own.values()]
        if candidates := [cls for cls in in_folder if cls.pairs.get(text) in projectors]:
            return _only(candidates, f"serve {text!r} beside {', '.join(map(repr, projectors))}")
        _import_all()
        return next((c for c in _registered.values() if c.pairs.get(text) in projectors), None)


def paired(text: str, folder: str | Path | None = None) -> list[str]:
    """The types of projectors that are supported beside files of a text architecture, sorted."""
    with _lock:
        in_folder = [cls for own in _of_folder(folder).values() for cls in own.values()]
        _import_all()
        every = [*in_folder, *_registered.values()]
    return sorted({cls.pairs[text] for cls in every if text in cls.pairs})


def _serving(registered: Mapping[str, type[Model]]) -> dict[str, type[Model]]:
    """Hugging Face class → the first of these architectures that serves it."""
    served: dict[str, type[Model]] = {}
    for cls in registered.values():
        for name in cls.hf_architectures:
            served.setdefault(name, cls)
    return served


def _only(candidates: list[type[Model]], what: str) -> type[Model]:
    if len(candidates) > 1:
        lines = " and ".join(line_of(cls) for cls in candidates)
        raise ArchitectureError(f"{lines} both {what}; keep one of them in the folder")
    return candidates[0]


def supported(folder: str | Path | None = None) -> list[str]:
    """The names of all architectures that can be found, sorted."""
    with _lock:
        _import_built_in(_built_in())
        names = {n for n in _registered if not n.endswith(_POOLED)}
    names |= {entry.name for entry in _entry_points()}
    if folder is not None and _is_folder(folder):
        names = names.union(*map(_named_in, _units(Path(folder))))
    return sorted(names)


def _is_folder(path: str | Path) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # its name is too long
        return False


def _units(folder: Path) -> list[Path]:
    """The files to import: single ones, and the `__init__.py` of folders."""
    files = [*folder.glob("[!_.]*.py"), *folder.glob("[!_.]*/__init__.py")]
    return sorted((p.resolve() for p in files), key=_name_of)


def _name_of(unit: Path) -> str:
    return unit.parent.name if unit.name == "__init__.py" else unit.stem


def _importable(name: str) -> str:
    """The name of an architecture's module: "gpt-oss" → "gpt_oss"."""
    return re.sub(r"\W", "_", name)


def _modules(unit: Path) -> list[Path]:
    return [unit] if unit.name != "__init__.py" else sorted(unit.parent.glob("*.py"))


def _names_in(module: Path) -> list[str]:
    """The names that a file's text registers; "" for one that is no literal."""
    return _REGISTER.findall(module.read_text("utf-8", "replace"))


def _registering(unit: Path, name: str | None) -> list[str]:
    """The modules of a folder that may register an architecture: this one, or any."""
    modules = [] if unit.name != "__init__.py" else _modules(unit)
    texts = {m.stem: _names_in(m) for m in modules if not m.name.startswith(("_", "."))}
    return [m for m, names in texts.items() if names and (name in (None, *names) or "" in names)]


def _named_in(unit: Path) -> set[str]:
    """The names that a file or folder seems to register; its own if it is not clear."""
    return {name for m in _modules(unit) for name in _names_in(m) if name} or {_name_of(unit)}


def _built_in() -> Iterator[str]:
    """The modules of `ggmodel.models`: "llama", "qwen" … before "llama.model", "qwen.qwen2" …: most
    architectures are found without a look into the others' folders."""
    package = importlib.import_module("ggmodel.models")
    units = list(pkgutil.iter_modules(package.__path__))
    yield from (unit.name for unit in units)
    for unit in units:
        if unit.ispkg:
            paths = [str(Path(path) / unit.name) for path in package.__path__]
            yield from (f"{unit.name}.{m.name}" for m in pkgutil.iter_modules(paths))


def _import_built_in(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(f"ggmodel.models.{module}")


def _import_all() -> None:
    """Imports whatever registers architectures outside of folders."""
    _import_built_in(_built_in())
    for entry in _entry_points():
        with author_code(f"the entry point {entry.value!r} cannot be imported", None):
            entry.load()


def _entry_points() -> EntryPoints:
    # Imported late: slow, and needed only for architectures of other packages.
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


def _of_folder(
    folder: str | Path | None, name: str | None = None
) -> dict[Path, dict[str, type[Model]]]:
    """Each file or folder of a folder → the architectures that it registers, if it can be named
    or any. Imports all of them."""
    if folder is None:
        return {}
    if not _is_folder(folder):
        raise ArchitectureError(f"models={str(folder)!r:.200} is no folder")
    units = _units(Path(folder))
    return {unit: _registered_by(unit, *_registering(unit, name)) for unit in units}


def _check_named(name: str, in_folder: Mapping[Path, Mapping[str, type[Model]]]) -> None:
    """Refuses a folder with a file of an architecture's name that does not register it."""
    for unit, own in in_folder.items():
        if _name_of(unit) == _importable(name):
            others = f", only {', '.join(map(repr, own))}" if own else ""
            raise ArchitectureError(
                f"{unit} registers no architecture {name!r}{others}; "
                f"decorate its model with @register({name!r})"
            )


def _registered_by(unit: Path, *modules: str) -> dict[str, type[Model]]:
    """The architectures that a file or folder and these modules of the folder register. Imports it,
    and again if it has changed."""
    # A name of its own per path: two folders may hold the same architecture.
    digest = hashlib.blake2s(str(unit).encode(), digest_size=6).hexdigest()
    module_name = f"ggmodel_models_{digest}_{_name_of(unit)}"
    stamp = _stamp(unit)
    what = "the model file cannot be imported"
    try:
        with author_code(what, str(unit), keep=ArchitectureError), _no_bytecode():
            if _stamps.get(module_name) != stamp:
                _import(module_name, unit)
                _stamps[module_name] = stamp
            for module in modules:
                importlib.import_module(f"{module_name}.{module}")
    except SystemExit as error:
        raise ArchitectureError(
            f"{unit}: {what}: it ends the process; keep scripts out of a folder of models"
        ) from error
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
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(module_name)
        raise


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Bytecode is checked by seconds: it would be stale for a file saved twice within one."""
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes


def _forget(module_name: str) -> None:
    _stamps.pop(module_name, None)
    _of_files.pop(module_name, None)
    for name in [m for m in sys.modules if m == module_name or m.startswith(f"{module_name}.")]:
        del sys.modules[name]
