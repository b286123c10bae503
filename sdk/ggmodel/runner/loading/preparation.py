"""Preparation: the steps of loading, and the devices that a model's layers are placed on."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ...gguf_file import TensorSource
from ...gguf_file.values import KeyValues
from ...ml import Backend, BackendMemory, DeviceInfo, GPULayersList, new_backend
from ...ml.params import blocks_of
from ...model import Config, LoadReport, Model, config_class, fill
from ...model.loader import completed, of_source
from ...model.source_code import author_code, file_of
from ...resources import Closing, closed_on_error
from ..engine.engine import Engine
from ..options import OWN, Options, positive
from ..requests.readout import beyond
from .gpu_layers import choose_layers, with_backoff

if TYPE_CHECKING:
    from ...ml.process import RunnerProcess
    from ...tokenizer import Tokenizer

_DEFAULT_CONTEXT = 4096  # positions, if the model was trained with more: the cache would be huge


class Preparation(Closing):
    """The steps of loading before weights are read.

    `load` takes them in the order of the methods. `ggmodel check` goes on after an error as long as
    the next step does not need the result. Each step sets its results: architecture and config;
    backend, model and report; tokenizer; engine.

    Args:
        layers: layers on devices; None is none.
        runner: the process that holds these devices, if not this one.
    """

    architecture: type[Model]
    config: Config
    backend: Backend
    model: Model
    report: LoadReport
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
        """All steps but the vocabulary and `finish`, which follows `Backend.load`."""
        self.configure()
        self.fill()
        self.fit()
        self.validate()
        self.trace()
        self.reserve()

    def configure(self) -> None:
        """Finds the architecture and reads its hyperparameters.

        Raises:
            ArchitectureError: unknown, or the type of its projector is. ConfigError: a
                hyperparameter is missing or wrong.
        """
        keys = KeyValues(self.source.metadata, self.source.name)
        self.architecture = of_source(keys, self.options.models)
        self.config = config_class(self.architecture).read(keys)
        trained = getattr(self.config, "context", _DEFAULT_CONTEXT)
        length = self.options.context_length
        self.config.loaded_context = min(trained, _DEFAULT_CONTEXT) if length is None else length
        self.config.drafts = self.options.draft == OWN
        with self._authors("a default"):
            self.source = completed(self.source, self.architecture, self.config)

    def fill(self) -> None:
        """Constructs the model and fills its fields; the report has all that does not fit."""
        options = self.options
        self.backend = new_backend(self.source, self._params, options.backend, self._runner)
        self._undo.callback(self.backend.close)
        with self._authors("cannot be made"):
            self.model = self.architecture(self.config)
        self.model.read_tokenizer = lambda: self.tokenizer
        self.report = fill(
            self.model,
            self.backend,
            self.source.tensors,
            self.architecture.architecture,
            (*self.model.ignore, *beyond(self.source)),
        )
        self.report.add_unread(self.source.unread, self.source.unread_keys)

    def fit(self) -> None:
        """Refuses a file that does not fit the declaration.

        Raises:
            LoadError: with the report.
        """
        self.report.check(self.options.strict)

    def validate(self) -> None:
        """Calls the model's `validate`; its required fields must be filled."""
        with self._authors("validate"):
            self.model.validate()

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None without a vocabulary; built on first use.

        Raises:
            TokenizerError, ConfigError: the vocabulary is wrong.
        """
        from ...tokenizer import Tokenizer

        if self.source.metadata.get("tokenizer.ggml.model", "no_vocab") == "no_vocab":
            return None
        return Tokenizer.from_metadata(self.source.metadata)

    def read_vocabulary(self) -> None:
        """Builds the tokenizer, if the model has not asked for it yet. Independent of the other
        steps.

        Raises:
            TokenizerError, ConfigError: the vocabulary is wrong.
        """
        tokenizer = self.tokenizer
        if hasattr(self, "model"):
            self.model.tokenizer = tokenizer

    def trace(self) -> None:
        """Makes the engine and traces the forward.

        Raises:
            ConfigError: a context of no positions.
            TensorError: the forward does not fit its weights; names the model's line.
        """
        options = self.options
        with self._authors("caches"):
            self.engine = Engine(
                self.model,
                self.backend,
                kv_type=options.cache_type,
                context_length=positive("context_length", self.config.loaded_context),
                batch_size=options.batch_size,
                parallel=options.parallel,
                cache_ram=options.cache_ram or 0,
            )
        self._undo.callback(self.engine.close)

    def reserve(self) -> None:
        """Allocates all memory and has the backend lay out the traced graphs.

        Raises:
            OutOfMemory: with the memory report.
            TensorError: the backend refuses an op.
        """
        self.backend.allocate(*self.engine.memory_plan.graphs)
        self.engine.memory_plan.reserve()

    def finish(self) -> None:
        """Tells the model that its weights are in place."""
        with self._authors("post_load"):
            self.model.post_load()

    def _authors(self, what: str) -> AbstractContextManager[None]:
        """Guards calls of the model's own methods: a bug there becomes an error with its line."""
        cls = self.architecture
        return author_code(f"{cls.__name__}: {what}", file_of(cls))

    def keep(self) -> None:
        """Hands backend and engine over to a loaded model: `close` does nothing from now on."""
        self._undo.pop_all()

    def close(self) -> None:
        """Frees backend and engine; idempotent."""
        self._undo.close()


@dataclass
class Devices(Closing):
    """Devices that layers can be placed on; a context manager.

    Attributes:
        available: GPUs of this machine and devices of workers.
        runner: the process that holds the devices of workers; losing a worker ends it.
    """

    available: list[DeviceInfo] = field(default_factory=list)
    runner: RunnerProcess | None = None

    @classmethod
    def open(cls, options: Options) -> Devices:
        """The devices that the options let a model use.

        Raises:
            ConfigError, DeviceLost, Busy, Unsupported: a worker's address is wrong, the worker is
                unreachable or in use, or ggml was built without workers.
        """
        if options.rpc:
            from ...ml.process import RunnerProcess

            runner = RunnerProcess(options.rpc)
            with closed_on_error(runner):
                return cls(runner.devices(), runner)
        if options.backend != "ggml" or not options.uses_devices:
            return cls()
        from ...ml.ggml.hardware import discover

        return cls(discover())

    def close(self) -> None:
        """Ends the process; idempotent."""
        if self.runner is not None:
            self.runner.close()


def prepare(source: TensorSource, options: Options, devices: Devices) -> Preparation:
    """Takes all steps of `Preparation` but the vocabulary; layers are placed by the options.

    Raises:
        ConfigError: the options name an unknown device or layer.
        OutOfMemory: with the memory report; "auto" tries fewer layers on devices first.
        Error: the error of a step.
    """
    request = options.gpu_request

    def attempt(layers: GPULayersList, options: Options = options) -> Preparation:
        preparation = Preparation(source, options, layers, devices.runner)
        with closed_on_error(preparation):
            preparation.take_steps()
        return preparation

    def dry_run(layers: GPULayersList) -> BackendMemory:
        with attempt(layers, replace(options, alloc_memory=False)) as preparation:
            return preparation.backend.backend_memory()

    def choose(backoff: float) -> GPULayersList:
        blocks = blocks_of(KeyValues(source.metadata, source.name))
        return choose_layers(request, dry_run, devices.available, blocks, backoff=backoff)

    return with_backoff(attempt, choose) if request.automatic else attempt(choose(0.0))
