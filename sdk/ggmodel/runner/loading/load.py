"""Loading: from a file to a model that runs, with the generation defaults of the file."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...errors import Cancelled, ConfigError
from ...gguf_file import TensorSource
from ...resources import reported
from ..options import LoadOptions, Options, with_options
from ..requests.loaded_model import LoadedModel
from ..sampling import Sampler
from .preparation import Devices, Preparation, prepare
from .resolved import SAMPLING_KEYS, Defaults, ResolvedModel
from .sources import Source, open_source

_UNSUPPORTED = tuple(f"general.sampling.{n}" for n in ("sequence", "xtc_probability", "mirostat"))


def generation_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The generation defaults of a file: options that a request may have."""
    return {o: v for _, o, v in _sampling_options(metadata) if not _problem(o, v)}


def ignored_defaults(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about the generation defaults of a file that no request can have."""
    for key, option, value in _sampling_options(metadata):
        if problem := _problem(option, value):
            yield f"{key} of the file is ignored: {problem}"
    for key in _UNSUPPORTED:
        if metadata.get(key):
            yield f"{key} of the file is ignored: ggmodel has no such way to sample"


def _sampling_options(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Keys, options and values; llama.cpp keeps all tokens where top_k is below 1."""
    for key, option in SAMPLING_KEYS.items():
        value = metadata.get(key)
        if isinstance(value, np.generic):
            value = value.item()
        if option == "top_k" and isinstance(value, int):
            value = max(0, value)
        if value is not None:
            yield key, option, value


def _problem(option: str, value: Any) -> str:
    """The reason why an option cannot have a value; "" if it can."""
    options: dict[str, Any] = {option: value}
    try:
        Sampler(**options)
    except ConfigError as error:
        return str(error)
    return ""


@reported
@with_options(LoadOptions)
def load(source: Source, options: Options) -> LoadedModel:
    """Loads a GGUF file, a resolved model or a tensor source; `ggmodel.load` takes all others, too.

    Raises:
        Error: as `ggmodel.load`.
    """
    return load_opened(source, options, open_source)


class Opener(Protocol):
    """See `sources.open_source`."""

    def __call__(
        self,
        source: Source,
        mmproj: str | Path | None = None,
        models: str | Path | None = None,
        type: str | None = None,
    ) -> TensorSource: ...


def load_opened(source: Source, options: Options, opener: Opener) -> LoadedModel:
    """See `load`.

    Args:
        opener: makes a tensor source of `source`.
    """
    defaults = Defaults()
    if isinstance(source, ResolvedModel):
        source.verify()
        defaults = source.defaults
    with ExitStack() as undo:
        with _without_collector():
            opened = opener(source, options.mmproj, options.models, options.type)
            if opened is not source:
                undo.callback(opened.close)
            devices = undo.enter_context(Devices.open(options))
            ready = undo.enter_context(prepare(opened, options, devices))
        # Copying weights needs little of the interpreter, which builds the tokenizer meanwhile.
        with ThreadPoolExecutor(1, "ggmodel-vocabulary") as pool:
            vocabulary = pool.submit(_without_collector()(ready.read_vocabulary))
            try:
                ready.backend.load(options.progress, lambda: _has_failed(vocabulary))
            except Cancelled:
                vocabulary.result()  # raises what it was cancelled for, unless `progress` did it
                raise
            vocabulary.result()
        ready.finish()
        ready.keep()
        undo.pop_all()
    ready.backend.owns_source = opened is not source
    for advice in _advice(options, devices, ready):
        warnings.warn(advice, stacklevel=5)
    model = LoadedModel(
        opened, devices, ready.backend, ready.model, ready.report, ready.tokenizer, ready.engine
    )
    model.defaults = defaults.over(generation_defaults(opened.metadata))
    return model


def _advice(options: Options, devices: Devices, ready: Preparation) -> Iterator[str]:
    """Warnings about options that a user hardly means."""
    length, trained = ready.engine.context_length, getattr(ready.config, "context", None)
    beyond = (
        trained is not None
        and length > trained
        and (
            f"context_length is {length:,}, but the model was trained with {trained:,} positions: "
            "texts may fall apart beyond these"
        )
    )
    if about_context := [text for text in (beyond, ready.model.left_out()) if text]:
        yield "; ".join(about_context)
    if options.gpu_request.count and not devices.available:
        yield (
            f"gpu_layers is {options.gpu_layers}, but there is no GPU and no worker: all layers "
            "are on the CPU; `ggmodel devices` shows what this ggml can use"
        )
    yield from ignored_defaults(ready.source.metadata)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switches the collector of cycles off within the block: a vocabulary is half a million objects
    that stay, and looking through them again and again takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _has_failed(work: Future[None]) -> bool:
    return work.done() and work.exception() is not None
