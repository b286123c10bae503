"""The registry of backends: makes one by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import ConfigError, Error, Unsupported
from ..gguf_file import TensorSource, open_gguf
from ..resources import closed_on_error
from .arguments import checked_call
from .backend import Backend
from .params import BackendParams

Factory = Callable[..., Backend]

_factories: dict[str, Factory] = {}
# These packages register themselves when imported, which waits until one is needed: "ggml" loads
# the native library.
_OWN = ("ggml", "process", "reference")


def register_backend(name: str, factory: Factory) -> None:
    """Makes a backend known by name.

    Args:
        factory: called with a `TensorSource` and `BackendParams`.

    Raises:
        Error: the name is taken.
    """
    if not isinstance(name, str) or not callable(factory):
        raise ConfigError(f"a backend has a name and a factory, not {name!r:.80}, {factory!r:.80}")
    if name in _factories:
        raise Error(f"a backend named {name!r} is already registered")
    _factories[name] = factory


@checked_call(convert=False, calls=True)
def new_backend(
    source: TensorSource | str | Path,
    params: BackendParams | None = None,
    name: str = "ggml",
    runner: Any = None,
) -> Backend:
    """A backend for a tensor source or the path of a GGUF file.

    Args:
        name: "ggml", "reference", "process" (ggml in a child process), or a registered one.
        runner: the `RunnerProcess` to compute in; None computes in this process. Workers in
            `params.rpc` always need a process, because ggml aborts the one that loses a worker: it
            is started here where none is given.

    Raises:
        Unsupported: no backend has that name; lists those that exist.
        Busy, ConfigError, DeviceLost: a worker cannot be used, see `RunnerProcess`.
    """
    params = BackendParams() if params is None else params
    if not isinstance(params, BackendParams):
        raise ConfigError(f"params is {params!r:.80}; it must be BackendParams")
    if not isinstance(source, (TensorSource, str, PathLike)):
        raise ConfigError(f"a source is a path or a TensorSource, not {type(source).__name__}")
    if not isinstance(name, str) or (name not in _factories and name not in _OWN):
        names = ", ".join(sorted({*_factories, *_OWN}))
        raise Unsupported(f"there is no backend {name!r:.80}; there is {names}")
    if params.rpc or runner is not None or name == "process":
        inner = "ggml" if name == "process" else name
        make = partial(_factory("process"), runner=runner, name=inner)
    else:
        make = _factory(name)
    if isinstance(source, TensorSource):
        return make(source, params)
    opened = open_gguf(source)
    with closed_on_error(opened):
        backend = make(opened, params)
    backend.owns_source = True
    return backend


def _factory(name: str) -> Factory:
    if name not in _factories:
        importlib.import_module(f".{name}", __package__)
    return _factories[name]
