"""The binding to ggml: `lib` has its functions, `ffi` its types.

Importing this package loads ggml. Functions that build graphs are guarded (see guards.py): where
ggml would abort the process they return NULL, or false if they return nothing in C, and
`last_abort` tells why. After an abort the context holds a half-built tensor and must be freed.
Other aborts of ggml, such as during compute, write to stderr and end the process: check before you
compute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import NativeError
from . import install, loader
from .loader import cache
from .threads import ThreadPool

__all__ = [
    "ThreadPool",
    "cache",
    "describe",
    "features",
    "ffi",
    "last_abort",
    "lib",
    "prefix",
    "proc",
    "version",
]

with install.advising():
    _prefix = install.find()
    _module = loader.load(_prefix)

ffi: Any = _module.ffi
lib: Any = _module.lib
prefix: Path = _prefix.path
version: str = _prefix.version
_last_abort = lib.ggmodel_last_abort


def last_abort() -> str:
    """The text of the abort in this thread's latest guarded call, or "" if it succeeded."""
    return ffi.string(_last_abort()).decode(errors="replace")


def proc(reg: Any, name: str, ctype: str | None = None) -> Any:
    """A function that some builds lack, by its name in a backend's registry entry.

    Args:
        reg: the `ggml_backend_reg_t` of the backend.
        name: its registered name.
        ctype: its C type; by default NAME_t.
    """
    if not reg:
        raise NativeError(f"this ggml ({prefix}) lacks the backend that should have {name}")
    address = lib.ggml_backend_reg_get_proc_address(reg, name.encode())
    if not address:
        backend = ffi.string(lib.ggml_backend_reg_name(reg)).decode()
        raise NativeError(f"the {backend} backend of this ggml ({prefix}) has no {name}")
    return ffi.cast(ctype or f"{name}_t", address)


def features() -> dict[str, str]:
    """The instructions that ggml's CPU backend uses, and its other features."""
    values: dict[str, str] = {}
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    if cpu:
        reg = lib.ggml_backend_dev_backend_reg(cpu)
        feature = proc(reg, "ggml_backend_get_features")(reg)
        while feature.name:
            values[ffi.string(feature.name).decode()] = ffi.string(feature.value).decode()
            feature += 1
    return values


def describe() -> dict[str, Any]:
    """The loaded ggml: version, commit, paths, devices, and the features of its CPU backend."""

    def text(pointer: Any) -> str:
        return ffi.string(pointer).decode(errors="replace") if pointer else ""

    devices = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
    return {
        "version": version,
        "commit": text(lib.ggml_commit()),
        "prefix": str(prefix),
        "module": _module.__file__,
        "backends": [
            text(lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(i)))
            for i in range(lib.ggml_backend_reg_count())
        ],
        "devices": {
            text(lib.ggml_backend_dev_name(d)): text(lib.ggml_backend_dev_description(d))
            for d in devices
        },
        "features": features(),
    }
