"""The options of loading, and its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError, Unsupported
from ...gguf_file import TensorSource
from ...gguf_file.metadata import KeyValues
from ...kvcache import KV_TYPES
from ...ml import (
    Backend,
    BackendParams,
    DType,
    FlashAttention,
    GPULayersList,
    Optimize,
    new_backend,
)
from ...model import Config, LoadReport, Model, config_class, fill, find
from ...model.defaults import completed
from ...model.source_code import author_code, file_of
from ..engine.engine import Engine
from .gpu_option import GPULayersOption, parse_gpu_layers

if TYPE_CHECKING:
    from ...ml.process import RunnerProcess
    from ...tokenizer import Tokenizer

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
    gpu_layers: GPULayersOption = "auto"
    override_tensor: Mapping[str, str] = field(default_factory=dict)
    flash_attention: str = "auto"
    kv_type: str = "f16"
    optimize: str = "speed"
    rpc: Sequence[str] | None = None
    models: str | Path | None = None
    strict: bool = True
    alloc_memory: bool = True

    def __post_init__(self):
        self.gpu_request = parse_gpu_layers(self.gpu_layers)
        if self.rpc is None:
            self.rpc = os.environ.get("GGMODEL_RPC", "") if self.backend == "ggml" else ()
        if isinstance(self.rpc, str):
            self.rpc = [part.strip() for part in self.rpc.split(",") if part.strip()]
        if self.rpc and self.backend != "ggml":
            raise Unsupported(f"the backend {self.backend!r} uses no workers; leave out rpc")
        _positive("batch_size", self.batch_size)
        _positive("parallel", self.parallel)
        self.cache_type = parse_kv_type(self.kv_type)
        self.backend_params = BackendParams(
            alloc_memory=self.alloc_memory,
            num_threads=_positive("threads", self.threads or 0, 0),
            flash_attention=FlashAttention.parse(self.flash_attention),
            optimize=Optimize.parse(self.optimize),
            tensor_overrides=tuple(self.override_tensor.items()),
        )

    @property
    def uses_devices(self) -> bool:
        """Whether anything may be placed elsewhere than on the CPU."""
        return self.gpu_request.count != 0 or bool(self.override_tensor)


class Preparation:
    """All of loading but reading the weights, in steps.

    `load` takes them in the order in which they stand here. `ggmodel check` takes the same ones and
    goes on after an error wherever the next step does not need what failed. Each sets what it
    finds: architecture and config; backend, model and report; tokenizer; engine.

    Args:
        layers: those that go to devices; None is none.
        runner: the process that holds these devices, if not this one.
    """

    architecture: type[Model]
    config: Config
    backend: Backend
    model: Model
    report: LoadReport
    tokenizer: Tokenizer | None = None
    engine: Engine

    def __init__(
        self,
        source: TensorSource,
        options: Options,
        layers: GPULayersList | None = None,
        runner: RunnerProcess | None = None,
    ):
        self.source, self.options = source, options
        self._params = replace(options.backend_params, gpu_layers=layers or GPULayersList())
        self._runner = runner
        self._undo = ExitStack()

    def take_steps(self) -> None:
        """All but reading the vocabulary and `finish`, which ends what `Backend.load` begins."""
        self.configure()
        self.fill()
        self.fit()
        self.validate()
        self.trace()
        self.reserve()

    def configure(self) -> None:
        """Finds the architecture and reads its hyperparameters.

        Raises:
            ArchitectureError, ConfigError: there is none, or one is missing or wrong.
        """
        keys = KeyValues(self.source.metadata, self.source.name)
        name = keys.architecture
        self.architecture = find(name, self.options.models, bool(keys.get("pooling_type", int)))
        self.config = config_class(self.architecture).read(keys)
        trained = getattr(self.config, "context", _DEFAULT_CONTEXT)
        length = self.options.context_length
        self.config.loaded_context = min(trained, _DEFAULT_CONTEXT) if length is None else length
        with self._authors("a default"):
            self.source = completed(self.source, self.architecture, self.config)

    def fill(self) -> None:
        """Constructs the model and gives its fields their tensors; whatever does not fit is in
        the report."""
        options = self.options
        self.backend = new_backend(self.source, self._params, options.backend, self._runner)
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
        self.report.add_unread(self.source.unread)

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
        from ...tokenizer import Tokenizer

        if self.source.metadata.get("tokenizer.ggml.model", "no_vocab") != "no_vocab":
            self.tokenizer = Tokenizer.from_metadata(self.source.metadata)
            if hasattr(self, "model"):
                self.model.tokenizer = self.tokenizer

    def trace(self) -> None:
        """Traces the forward.

        Raises:
            ConfigError: no context is left to run in.
            TensorError: it does not fit its weights; names the model's line.
        """
        options = self.options
        with self._authors("caches"):
            self.engine = Engine(
                self.model,
                self.backend,
                kv_type=options.cache_type,
                context_length=_positive("context_length", self.config.loaded_context),
                batch_size=options.batch_size,
                parallel=options.parallel,
            )
        self._undo.callback(self.engine.close)
        self.engine.vocabulary = self.engine.worst.trace(self.engine.cache, options.parallel)

    def reserve(self) -> None:
        """Allocates all memory and has the backend lay out the traced graphs.

        Raises:
            OutOfMemory: with the memory report.
            TensorError: the backend refuses an op.
        """
        self.backend.allocate(*self.engine.worst.graphs)
        self.engine.worst.reserve()

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


def parse_kv_type(name: str) -> DType:
    """ "f16", "f32", "q8_0" or "q4_0".

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
