"""Loading: from a file to a model that runs, with the generation defaults of the file."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ...errors import Cancelled, ConfigError
from ...names.resolved import ADVISED, Defaults, Found
from ...resources import reported
from ..options import LoadOptions, Options, with_options
from ..requests.loaded_model import LoadedModel
from ..sampling import Sampler
from .preparation import Devices, Preparation, prepare
from .sources import Source, open_source

_UNSUPPORTED = tuple(f"general.sampling.{n}" for n in ("sequence", "xtc_probability", "mirostat"))


def advised(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a file advises and that a request may have."""
    return {o: v for _, o, v in _given(metadata) if not _wrong(o, v)}


def not_followed(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about the rest of its advice."""
    for key, option, value in _given(metadata):
        if wrong := _wrong(option, value):
            yield f"{key} of the file is ignored: {wrong}"
    for key in _UNSUPPORTED:
        if metadata.get(key):
            yield f"{key} of the file is ignored: ggmodel has no such way to sample"


def _given(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Keys, options and values; llama.cpp keeps all tokens where top_k is below 1."""
    for key, option in ADVISED.items():
        value = metadata.get(key)
        if isinstance(value, np.generic):
            value = value.item()
        if option == "top_k" and isinstance(value, int):
            value = max(0, value)
        if value is not None:
            yield key, option, value


def _wrong(option: str, value: Any) -> str:
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
    """Loads a model.

    Args:
        source: a GGUF file (of a split one the first part), the folder of a Hugging Face model, a
            name as `ggmodel.find` takes it, or a tensor source, which stays open.
        options: see `LoadOptions`.

    Raises:
        ModelNotFound, DownloadError: a name that is in no store, and cannot be downloaded.
        FormatError: the file is not what it says.
        ArchitectureError: its architecture is unknown; lists those known.
        ConfigError: an unknown option, or a hyperparameter is missing or wrong.
        TokenizerError: the vocabulary cannot be built.
        LoadError: tensors are missing, unused or of wrong shape; carries the report.
        TensorError: the model's forward does not fit its weights; names the line.
        OutOfMemory: with the memory report.
        DeviceLost, Busy: a worker cannot be reached, or serves someone else.
        Unsupported: an option that is not supported.
    """
    found = source if isinstance(source, Found) else None
    if found is not None:
        found.verify()
    with ExitStack() as undo:
        with _without_collector():
            opened = open_source(source, options.mmproj, options.models, options.type)
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
        warnings.warn(advice, stacklevel=4)
    model = LoadedModel(
        opened, devices, ready.backend, ready.model, ready.report, ready.tokenizer, ready.engine
    )
    model.defaults = (found.defaults if found else Defaults()).over(advised(opened.metadata))
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
    if options.gpu_request.count and not devices.found:
        yield (
            f"gpu_layers is {options.gpu_layers}, but there is no GPU and no worker: all layers "
            "are on the CPU; `ggmodel devices` shows what this ggml can use"
        )
    yield from not_followed(ready.source.metadata)


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
