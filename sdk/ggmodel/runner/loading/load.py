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

from ...errors import Cancelled, ConfigError, Unsupported
from ...gguf_file import TensorSource
from ...model.source_code import file_of
from ...resources import closed_on_error, reported
from ..engine.prefix_files import PrefixFiles
from ..options import OWN, LoadOptions, Options, with_options
from ..requests.adapters import Adapters, Open
from ..requests.loaded_model import LoadedModel
from ..sampling import Sampler
from .adapters import open_adapter, strengths_of
from .origin import ModelOrigin
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


def load_opened(
    source: Source, options: Options, opener: Opener, adapter_opener: Open = open_adapter
) -> LoadedModel:
    """See `load`.

    Args:
        opener: makes a tensor source of `source`.
        adapter_opener: makes one of an adapter's path.
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
    with closed_on_error(model):
        _add_adapters(model, source, options, adapter_opener)
        if options.prefix_store is not None:
            _store_prefixes(model, options)
    model.defaults = defaults.over(generation_defaults(opened.metadata))
    if options.steer is not None:
        with closed_on_error(model):
            model.steer_by_default(options.steer)
    if options.draft == OWN:
        with closed_on_error(model):
            use_head(model, options)
    elif options.draft is not None:
        from .draft import load_draft

        with closed_on_error(model):
            model.draft = load_draft(
                model, options, opener, lambda source, own: load_opened(source, own, opener)
            )
    return model


def _add_adapters(model: LoadedModel, source: Source, options: Options, opener: Open) -> None:
    """Adds the adapters of a model's store, and those of the options."""
    model.adapters = Adapters(model.engine, model.source, opener)
    stored = source.adapters if isinstance(source, ResolvedModel) else ()
    for number, path in enumerate(stored, 1):
        model.adapters.add(path, "adapter" if len(stored) == 1 else f"adapter-{number}")
    for path, strength in strengths_of(options.adapters).items():
        model.adapters.add(path, strength=strength)


def _store_prefixes(model: LoadedModel, options: Options) -> None:
    """Has a model keep prefixes on disk.

    Raises:
        WriteError: the folder cannot be made.
    """
    folder = Path(options.prefix_store or "").absolute()
    files = PrefixFiles(folder, int(options.prefix_store_size * 2**30))
    own = file_of(type(model.model))
    models = [Path(one) for one in (options.models, own) if one is not None]
    length = model.engine.context_length
    origin = ModelOrigin(files, model.source, options, length, tuple(models))
    model.engine.store_prefixes(files, origin)


def use_head(model: LoadedModel, options: Options) -> None:
    """Has a model's own head draft.

    Raises:
        Unsupported: the file or the architecture has none.
    """
    if model.engine.head is None:
        raise Unsupported(
            f"{model.source.name} has no head for multi-token prediction that "
            f"{model.report.architecture} can use; leave out draft, or give a smaller model"
        )
    model.engine.head.begin(options.draft_tokens, model.engine.speculation.costs.of)
    model.engine.draft_with(model.engine.head)


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
