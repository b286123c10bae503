"""Makes the compiled module that binds one version of ggml.

A module's name has the version and a hash over all of its inputs (headers, generator, platform), so
that modules of several versions live side by side and a stale one is never loaded. Parsers are
imported only to make a module, because every start of a process computes a name.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path

from ..errors import NativeError
from .install import Prefix, present

_HERE = Path(__file__).parent
_SHAPED_BY = ("install.py", "headers.py", "guards.py", "shim.c", "build.py")

_SHIM_DECLARATIONS = """
const char *ggmodel_last_abort(void);
void ggmodel_install(void);
void ggmodel_detach(void);
void ggmodel_set_log_level(int level);
extern "Python" void ggmodel_log_line(int level, const char *text);
"""


def module_name(prefix: Prefix) -> str:
    """The name of the module that binds the ggml in `prefix`, such as _ggml_0_20_2_1f2e3d4c."""
    machine = f"{sys.platform} {platform.machine()} {sys.maxsize} {sys.abiflags}"
    digest = hashlib.sha256(machine.encode())
    for name in present(prefix.include):
        digest.update(name.encode() + (prefix.include / name).read_bytes())
    for name in _SHAPED_BY:
        digest.update((_HERE / name).read_bytes())
    return f"_ggml_{prefix.version.replace('.', '_')}_{digest.hexdigest()[:8]}"


def file_name(module: str) -> str:
    """The file of a module; it uses Python's stable interface, so one serves every Python 3."""
    return f"{module}.abi3.so"


def write_source(prefix: Prefix, module: str, path: Path) -> None:
    """Write the C source of the module to `path`."""
    from cffi import FFI
    from cffi.recompiler import make_c_source

    from . import guards, headers

    libraries = [ctypes.CDLL(str(library)) for library in prefix.preload()]
    declared = headers.read(
        prefix.include, lambda symbol: any(hasattr(library, symbol) for library in libraries)
    )
    ffi = FFI()
    ffi.cdef(declared.types)
    ffi.cdef("\n".join(guards.prototype(function) for function in declared.functions))
    ffi.cdef(_SHIM_DECLARATIONS)
    includes = "".join(f'#include "{name}"\n' for name in present(prefix.include))
    wrappers = "".join(guards.wrapper(f) for f in declared.functions if guards.is_guarded(f))
    code = includes + (_HERE / "shim.c").read_text() + wrappers
    make_c_source(ffi, module, code, str(path))


def compile_module(prefix: Prefix, target: Path) -> None:
    """Compile the module for the ggml in `prefix` into the file `target`, atomically."""
    from . import headers

    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise NativeError(
            f"{python} has no Python.h, which is needed once to bind to this build of ggml. "
            "Install Python's development headers (Debian: apt-get install python3-dev; "
            "Fedora: dnf install python3-devel)"
        )
    module = target.name.split(".")[0]
    # Symbols of ggml stay open: the loader puts the libraries into the global scope first, so one
    # module serves every build of its version, in any folder and with any backends.
    mac = sys.platform == "darwin"
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if mac else ["-shared"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as work:
        code, binary = Path(work) / f"{module}.c", Path(work) / target.name
        write_source(prefix, module, code)
        places = [f"-I{python}", f"-I{prefix.include}"]
        options = ["-O1", "-fPIC", "-fvisibility=hidden", "-w", *shared]
        headers.run_compiler([*options, *places, str(code), "-o", str(binary)])
        os.replace(binary, target)
