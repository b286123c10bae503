"""Makes the compiled module that binds one version of ggml.

A module's name has the version and a hash over all of its inputs (headers, generator, platform), so
that modules of several versions live side by side and a stale one is never loaded. Parsers are
imported only to make a module, because every start of a process computes a name.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
import sysconfig
from pathlib import Path

from ..errors import NativeError
from ..platforms import machine as libraries
from ..storage import private_folder, replace
from .install import Prefix, present

_HERE = Path(__file__).parent
_SHAPED_BY = (
    *(_HERE / name for name in ("install.py", "headers.py", "guards.py", "build.py")),
    *sorted(path for path in _HERE.iterdir() if path.suffix in (".c", ".h")),
    Path(libraries.__file__),
)

_SHIM_DECLARATIONS = """
const char *ggmodel_last_abort(void);
void ggmodel_install(void);
void ggmodel_detach(void);
void ggmodel_set_log_level(int level);
void *ggmodel_guard(void *address, size_t size, int64_t file);
void ggmodel_end_guard(void *range);
bool ggmodel_suspect(void **ranges, size_t n);
bool ggmodel_compared(void *range, bool same, int64_t modified);
extern "Python" void ggmodel_log_line(int level, const char *text);
"""

_PRODUCTS = """
int ggmodel_use_products(int most);
bool ggmodel_multiplies(int type);
int ggmodel_blocks_of_a_scale(int type);
size_t ggmodel_columns_bytes(int64_t width, int64_t n);
size_t ggmodel_panel_bytes(void);
size_t ggmodel_order_values(int64_t columns, int64_t experts);
void ggmodel_quantize(struct ggml_tensor *dst, int ith, int nth, void *unused);
void ggmodel_round(struct ggml_tensor *dst, int ith, int nth, void *unused);
size_t ggmodel_rounded_bytes(int type, int64_t width);
void ggmodel_multiply(struct ggml_tensor *dst, int ith, int nth, void *activation);
void ggmodel_multiply_experts(struct ggml_tensor *dst, int ith, int nth, void *unused);
void ggmodel_finish(struct ggml_tensor *dst, int ith, int nth, void *activation);
void ggmodel_sort_experts(struct ggml_tensor *dst, int ith, int nth, void *unused);
bool ggmodel_use_ordered(void *function);
const char *ggmodel_ordered_library(void);
int ggmodel_column_type(int type);
void ggmodel_convert_columns(struct ggml_tensor *dst, int ith, int nth, void *type);
void ggmodel_multiply_ordered(struct ggml_tensor *dst, int ith, int nth, void *unused);
void ggmodel_multiply_experts_ordered(struct ggml_tensor *dst, int ith, int nth, void *unused);
int ggmodel_use_attention(int most);
size_t ggmodel_attention_bytes(int64_t key_width, int64_t value_width);
void ggmodel_attend(struct ggml_tensor *dst, int ith, int nth, void *unused);
struct ggmodel_layer_experts { uint8_t *chosen; const uint8_t *expected; int weights; };
void ggmodel_read_ahead(struct ggml_tensor *dst, int ith, int nth, void *of_layer);
"""


def module_name(prefix: Prefix) -> str:
    """The name of the module that binds the ggml in `prefix`, such as _ggml_0_20_2_1f2e3d4c."""
    flags = getattr(sys, "abiflags", "")  # Windows has none
    machine = f"{sys.platform} {platform.machine()} {sys.maxsize} {flags}"
    digest = hashlib.sha256(machine.encode())
    for name in present(prefix.include):
        digest.update(name.encode() + (prefix.include / name).read_bytes())
    for path in _SHAPED_BY:
        digest.update(path.read_bytes())
    return f"_ggml_{prefix.version.replace('.', '_')}_{digest.hexdigest()[:8]}"


def file_name(module: str) -> str:
    """The file of a module; it uses Python's stable interface, so one serves every Python 3."""
    return module + libraries.BINDING_SUFFIX


def write_source(prefix: Prefix, module: str, path: Path) -> None:
    """Write the C source of the module to `path`."""
    from cffi import FFI
    from cffi.recompiler import make_c_source

    from . import guards, headers

    loaded = [ctypes.CDLL(str(library)) for library in prefix.preload()]
    declared = headers.read(
        prefix.include, lambda symbol: any(hasattr(library, symbol) for library in loaded)
    )
    ffi = FFI()
    ffi.cdef(declared.types)
    ffi.cdef("\n".join(guards.prototype(function) for function in declared.functions))
    ffi.cdef(_SHIM_DECLARATIONS + _PRODUCTS)
    includes = "".join(f'#include "{name}"\n' for name in present(prefix.include))
    wrappers = "".join(guards.wrapper(f) for f in declared.functions if guards.is_guarded(f))
    code = includes + (_HERE / "shim.c").read_text(encoding="utf-8") + _PRODUCTS + wrappers
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
    target.parent.mkdir(parents=True, exist_ok=True)
    with private_folder(target) as work:
        code, binary = work / f"{module}.c", work / target.name
        write_source(prefix, module, code)
        places = [f"-I{python}", f"-I{prefix.include}"]
        # The folder has a new name each time; the same sources make the same bytes.
        options = ["-fvisibility=hidden", "-w", f"-ffile-prefix-map={work}=."]
        shared = libraries.linking(prefix.path, ("ggml-base", "ggml"))
        separate = [option for option in shared if option == "-fPIC"]
        # The same bits on each processor: what is to be fused says so.
        kernel = [*options, "-O3", "-ffp-contract=off", *separate, *places, "-c"]
        objects = [str(code)]
        for source in (p for p in _SHAPED_BY if p.suffix == ".c" and p.name != "shim.c"):
            objects.append(str(work / f"{source.stem}.o"))
            headers.run_compiler([*kernel, str(source), "-o", objects[-1]])
        mathematics = [] if sys.platform == "win32" else ["-lm"]
        given = [*places, *objects, *shared, *mathematics]
        headers.run_compiler([*options, "-O1", *given, "-o", str(binary)])
        replace(binary, target)
