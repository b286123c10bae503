"""From a file to a model that runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, Unsupported
from ..gguf import TensorSource, open_gguf
from ..kvcache import KV_TYPES
from ..ml import Backend, BackendParams, DType, FlashAttention, new_backend
from ..ml.backend import Progress
from ..ml.keyvalues import KeyValues
from ..model import Config, LoadReport, Model, config_class, fill, find
from ..model.source import author_code, file_of
from .engine import Engine
from .face import LoadedModel

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

_DEFAULT_CONTEXT = 4096  # positions, where the model knows more: a cache for all could be huge


@dataclass(kw_only=True)
class Options:
    """The options of `load` that shape a model, checked.

    Raises:
        ConfigError: a value outside of its range.
        Unsupported: an option that is not there yet.
    """

    backend: str = "ggml"
    threads: int | None = None
    context_length: int | None = None
    batch_size: int = 512
    parallel: int = 1
    gpu_layers: int | str | Sequence[object] = "auto"
    flash_attention: str = "auto"
    kv_type: str = "f16"
    rpc: Sequence[str] = ()
    models: str | Path | None = None
    strict: bool = True

    def __post_init__(self):
        if self.rpc:
            raise Unsupported("rpc devices are not there yet; the model runs on this machine's CPU")
        if self.gpu_layers not in ("auto", 0):
            raise Unsupported("layers cannot be placed on GPUs yet; leave gpu_layers at 'auto'")
        _positive("batch_size", self.batch_size)
        _positive("parallel", self.parallel)
        self.cache_type = parse_kv_type(self.kv_type)
        self.backend_params = BackendParams(
            num_threads=_positive("threads", self.threads or 0, 0),
            flash_attention=FlashAttention.parse(self.flash_attention),
        )


class Preparation:
    """All of loading but reading the weights, in steps.

    `load` takes them in the order in which they stand here. `ggmodel check` takes the same ones and
    goes on after an error wherever the next step does not need what failed. Each sets what it
    finds: architecture and config; backend, model and report; tokenizer; engine.
    """

    architecture: type[Model]
    config: Config
    backend: Backend
    model: Model
    report: LoadReport
    tokenizer: Tokenizer | None = None
    engine: Engine

    def __init__(self, source: TensorSource, options: Options):
        self.source, self.options = source, options
        self._undo = ExitStack()

    def configure(self) -> None:
        """Finds the architecture and reads its hyperparameters.

        Raises:
            ArchitectureError, ConfigError: there is none, or one is missing or wrong.
        """
        keys = KeyValues(self.source.metadata, self.source.name)
        name = keys.architecture
        self.architecture = find(name, self.options.models, bool(keys.get("pooling_type", int)))
        self.config = config_class(self.architecture).read(keys)

    def fill(self) -> None:
        """Constructs the model and gives its fields their tensors; whatever does not fit is in
        the report."""
        options = self.options
        self.backend = new_backend(self.source, options.backend_params, options.backend)
        self._undo.callback(self.backend.close)
        with self._authors("cannot be made"):
            self.model = self.architecture(self.config)
        self.report = fill(
            self.model,
            self.backend,
            self.source.tensors,
            self.architecture.architecture,
            self.architecture.ignore,
        )

    def fit(self) -> None:
        """Refuses a file that does not fit the declaration.

        Raises:
            LoadError: with the report.
        """
        self.report.check(self.options.strict)

    def validate(self) -> None:
        """Asks the model, whose required fields must be filled."""
        with self._authors("validate"):
            self.model.validate()

    def read_vocabulary(self) -> None:
        """Builds the tokenizer, if the file has a vocabulary; needs no other step.

        Raises:
            TokenizerError, ConfigError: it cannot be built.
        """
        from ..tokenizer import Tokenizer

        if self.source.metadata.get("tokenizer.ggml.model", "no_vocab") != "no_vocab":
            self.tokenizer = Tokenizer.from_metadata(self.source.metadata)

    def trace(self) -> None:
        """Traces the forward.

        Raises:
            ConfigError: no context is left to run in.
            TensorError: it does not fit its weights; names the model's line.
        """
        options = self.options
        trained = getattr(self.config, "context", _DEFAULT_CONTEXT)
        length = options.context_length
        with self._authors("caches"):
            self.engine = Engine(
                self.model,
                self.backend,
                kv_type=options.cache_type,
                context_length=_positive(
                    "context_length", min(trained, _DEFAULT_CONTEXT) if length is None else length
                ),
                batch_size=options.batch_size,
                parallel=options.parallel,
            )
        self._undo.callback(self.engine.close)
        self.engine.dry_trace()

    def reserve(self) -> None:
        """Allocates all memory and has the backend lay out the traced graphs.

        Raises:
            OutOfMemory: with the memory report.
            TensorError: the backend refuses an op.
        """
        self.engine.allocate()
        self.engine.reserve()

    def finish(self) -> None:
        """Tells the model that its weights are in place."""
        with self._authors("post_load"):
            self.model.post_load()

    def _authors(self, what: str) -> AbstractContextManager[None]:
        """Around calls of the model's own methods: a bug there becomes an error with its line."""
        cls = self.architecture
        return author_code(f"{cls.__name__}: {what}", file_of(cls))

    def keep(self) -> None:
        """From now on `close` does nothing: backend and engine belong to a loaded model."""
        self._undo.pop_all()

    def close(self) -> None:
        """Frees backend and engine; idempotent."""
        self._undo.close()

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


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
        threads: None uses the cores this process may use, which are also the most.
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
    options = Options(
        backend=backend,
        threads=threads,
        context_length=context_length,
        batch_size=batch_size,
        parallel=parallel,
        gpu_layers=gpu_layers,
        flash_attention=flash_attention,
        kv_type=kv_type,
        rpc=rpc,
        models=models,
        strict=strict,
    )
    opened = open_source(source, mmproj)
    with ExitStack() as undo:
        if opened is not source:
            undo.callback(opened.close)
        ready = undo.enter_context(Preparation(opened, options))
        ready.configure()
        ready.fill()
        ready.fit()
        ready.validate()
        ready.read_vocabulary()
        ready.trace()
        ready.reserve()
        ready.backend.load(progress)
        ready.finish()
        ready.keep()
        undo.pop_all()
    ready.backend.owns_source = opened is not source
    return LoadedModel(
        opened, ready.backend, ready.model, ready.report, ready.tokenizer, ready.engine
    )


def open_source(
    source: str | Path | TensorSource, mmproj: str | Path | None = None
) -> TensorSource:
    """The source itself, or the file of that path."""
    if mmproj is not None:
        raise Unsupported("mmproj files come with the models that see; text models need none")
    return source if isinstance(source, TensorSource) else open_gguf(source)


def parse_kv_type(name: str) -> DType:
    """ "f16" or "f32".

    Raises:
        Unsupported: another type.
    """
    for dtype in KV_TYPES:
        if dtype.name.lower() == str(name).lower():
            return dtype
    names = ", ".join(t.name.lower() for t in KV_TYPES)
    raise Unsupported(f"kv_type {name!r} is not there; there is {names}")


def _positive(name: str, value: int, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}")
    return value
