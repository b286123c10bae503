"""Loads ggml and the module that binds it, and checks that the two belong together."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
from pathlib import Path
from types import ModuleType

from .. import storage
from ..errors import NativeError
from . import build, contents, logs
from .install import Prefix


def load(prefix: Prefix) -> ModuleType:
    """Load the ggml in `prefix`; returns the compiled module with its `ffi` and `lib`.

    The module comes from the folder of this package, where a wheel has the one of the pinned
    version, or from the user's cache, where it is compiled first if need be.
    """
    _refuse_second_ggml(prefix)
    # Otherwise ggml starts a debugger when it aborts.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    base, _ = prefix.preload()
    _compare_versions(prefix, base)
    name = build.module_name(prefix)
    module = _import(name, _module_file(prefix, name))
    _compare_layouts(prefix, module)
    logs.install(module)
    _find_backends(module, prefix)
    return module


def cache() -> Path:
    """The folder for compiled modules."""
    return storage.cache_folder() / "native"


def _module_file(prefix: Prefix, name: str) -> Path:
    file = build.file_name(name)
    shipped = Path(__file__).parent / file
    if shipped.is_file():
        return shipped
    cached = cache() / file
    if not cached.is_file():
        try:
            build.compile_module(prefix, cached)
        except OSError as error:
            raise NativeError(f"cannot write {cached}: {error}; set XDG_CACHE_HOME") from error
    return cached


def _import(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise NativeError(f"cannot load the binding {path}: {error}; delete that file") from error
    return module


def _compare_versions(prefix: Prefix, base: Path) -> None:
    ggml_version = getattr(ctypes.CDLL(str(base)), "ggml_version", None)
    if ggml_version is None:
        raise NativeError(f"{base} is a ggml too old to tell its version; install a newer one")
    ggml_version.restype = ctypes.c_char_p
    actual = ggml_version().decode()
    if actual != prefix.version:
        raise NativeError(
            f"the headers in {prefix.include} are of ggml {prefix.version}, but the library "
            f"{base} is ggml {actual}: install one build of ggml, whole, into its own folder"
        )


def _compare_layouts(prefix: Prefix, module: ModuleType) -> None:
    """Refuse a build with other limits, which move the fields of a tensor."""
    ffi, lib = module.ffi, module.lib
    parameters = ffi.new("struct ggml_init_params *", {"mem_size": 1 << 12, "no_alloc": True})
    context = lib.ggml_init(parameters[0])
    tensor = lib.ggml_new_tensor_1d(context, lib.GGML_TYPE_F32, 1)
    lib.ggml_set_name(tensor, b"x" * (1 << 10))  # is cut to what fits
    name = lib.ggml_get_name(tensor)
    same = name == ffi.addressof(tensor, "name") and len(ffi.string(name)) + 1 == len(tensor.name)
    lib.ggml_free(context)
    if not same:
        raise NativeError(
            f"the headers in {prefix.include} describe another layout of tensors than the library "
            f"in {prefix.libraries} has; build ggml without defining limits such as GGML_MAX_NAME"
        )


def _refuse_second_ggml(prefix: Prefix) -> None:
    """Refuse a process with another ggml: the symbols of the two would mix."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    loaded = {Path(line.split(maxsplit=5)[5]) for line in lines if "/libggml" in line}
    for path in sorted(loaded):
        if path.name.startswith("libggml") and path.parent.resolve() != prefix.libraries.resolve():
            raise NativeError(
                f"this process has already loaded another ggml, {path}; ggmodel needs "
                f"{prefix.libraries}. Use one of the two in a process, or set GGMODEL_GGML to a "
                "build that serves both"
            )


def _find_backends(module: ModuleType, prefix: Prefix) -> None:
    """Load the backends of a build that has them as separate modules, from its own folder only."""
    lib = module.lib
    if not lib.ggml_backend_reg_count():
        lib.ggml_backend_load_all_from_path(os.fsencode(prefix.libraries))
    if not lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU):
        why = contents.why_none_fits(prefix.path, prefix.variants) or "it has none"
        raise NativeError(
            f"the ggml in {prefix.libraries} has no library of the CPU's functions that fits this "
            f"processor: {why}; `ggmodel ggml build` makes one for it"
        )
