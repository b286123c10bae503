"""From a file to a model that runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, Unsupported
from ..gguf import TensorSource, open_gguf
from ..kvcache import KV_TYPES
from ..ml import Backend, BackendParams, DType, FlashAttention, new_backend
from ..ml.backend import Progress
from ..model import LoadReport, Model, config_class, fill, find
from .engine import Engine
from .face import LoadedModel

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

_DEFAULT_CONTEXT = 4096  # positions, where the model knows more: a cache for all could be huge


@dataclass
class Prepared:
    """A model whose fields are filled and which has been traced; nothing is allocated yet."""

    source: TensorSource
    backend: Backend
    model: Model
    report: LoadReport
    tokenizer: Tokenizer | None
    engine: Engine


def load(
    source: str | Path | TensorSource,
    *,
    mmproj: str | Path | None = None,
    backend: str = "ggml",
    threads: int | None = None,
    context_length: int | None = None,
    batch_size: int = 512,
    parallel: int = 1,
    gpu_layers: int | str | Sequence[object] = "auto",
    flash_attention: str = "auto",
    kv_type: str = "f16",
    rpc: Sequence[str] = (),
    models: str | Path | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a model.

    Args:
        source: a GGUF file (of a split one the first part), or a tensor source, which stays open.
        backend: the tensor library.
        threads: None uses the cores this process may use.
        context_length: positions a sequence may have; None is the model's own, at most 4096.
        batch_size: the most tokens of a prompt computed at once.
        parallel: sequences that may be open at the same time.
        flash_attention: "auto", "on", "off".
        kv_type: of keys and values in the cache, "f16" or "f32".
        models: a folder with architectures, looked in first.
        strict: unused tensors are errors.
        progress: called with the share of weights loaded, at the end with 1.0.

    Raises:
        FormatError: the file is not what it says.
        ArchitectureError: its architecture is unknown; lists those known.
        ConfigError: a hyperparameter is missing or wrong.
        TokenizerError: the vocabulary cannot be built.
        LoadError: tensors are missing, unused or of wrong shape; carries the report.
        TensorError: the model's forward does not fit its weights; names the line.
        OutOfMemory: with the memory report.
        Unsupported: an option that is not there yet.
    """
    if rpc:
        raise Unsupported("rpc devices are not there yet; the model runs on this machine's CPU")
    if gpu_layers not in ("auto", 0):
        raise Unsupported("layers cannot be placed on GPUs yet; leave gpu_layers at 'auto'")
    params = BackendParams(
        num_threads=_positive("threads", threads or 0, 0),
        flash_attention=FlashAttention.parse(flash_attention),
    )
    with ExitStack() as undo:
        opened = open_source(source, mmproj)
        if opened is not source:
            undo.callback(opened.close)
        ready = prepare(
            opened,
            new_backend(opened, params, backend),
            context_length=context_length,
            batch_size=_positive("batch_size", batch_size),
            parallel=_positive("parallel", parallel),
            kv_type=parse_kv_type(kv_type),
            models=models,
            strict=strict,
            undo=undo,
        )
        ready.engine.allocate()
        ready.backend.load(progress)
        ready.engine.reserve()
        ready.model.post_load()
        undo.pop_all()
    loaded = LoadedModel(
        opened, ready.backend, ready.model, ready.report, ready.tokenizer, ready.engine
    )
    if opened is not source:
        loaded._owned.append(opened)
    return loaded


def open_source(
    source: str | Path | TensorSource, mmproj: str | Path | None = None
) -> TensorSource:
    """The source itself, or the file of that path."""
    if mmproj is not None:
        raise Unsupported("mmproj files come with the models that see; text models need none")
    return source if isinstance(source, TensorSource) else open_gguf(source)


def prepare(
    source: TensorSource,
    backend: Backend,
    *,
    context_length: int | None,
    batch_size: int,
    parallel: int,
    kv_type: DType,
    models: str | Path | None,
    strict: bool,
    undo: ExitStack,
) -> Prepared:
    """All of loading that can go wrong before memory is needed: what `ggmodel check` does too."""
    undo.callback(backend.close)
    from ..tokenizer import Tokenizer

    architecture = find(backend.config.architecture, models)
    model, report = build(architecture, backend)
    report.check(strict)
    model.validate()
    tokenizer = None
    if "tokenizer.ggml.model" in source.metadata and source.metadata["tokenizer.ggml.model"] != "no_vocab":
        tokenizer = Tokenizer.from_metadata(source.metadata)
    trained = getattr(model.config, "context", _DEFAULT_CONTEXT)
    length = min(trained, _DEFAULT_CONTEXT) if context_length is None else context_length
    engine = Engine(
        model,
        backend,
        kv_type=kv_type,
        context_length=_positive("context_length", length),
        batch_size=batch_size,
        parallel=parallel,
    )
    undo.callback(engine.close)
    engine.dry_trace()
    return Prepared(source, backend, model, report, tokenizer, engine)


def build(architecture: type[Model], backend: Backend) -> tuple[Model, LoadReport]:
    """The model of a source with its fields filled, and the report; raises for neither."""
    config = config_class(architecture).read(backend.config)
    model = architecture(config)
    tensors = backend.source.tensors
    report = fill(model, backend, tensors, architecture.architecture, architecture.ignore)
    return model, report


def parse_kv_type(name: str) -> DType:
    """ "f16" or "f32".

    Raises:
        Unsupported: another type.
    """
    for dtype in KV_TYPES:
        if dtype.name.lower() == name.lower():
            return dtype
    names = ", ".join(t.name.lower() for t in KV_TYPES)
    raise Unsupported(f"kv_type {name!r} is not there; there is {names}")


def _positive(name: str, value: int, least: int = 1) -> int:
    if not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}")
    return value
