"""Places a model: opens the devices, and prepares the model with its layers on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...closing import Closing, closed_on_error
from ...gguf_file import TensorSource
from ...gguf_file.metadata import KeyValues
from ...ml import BackendMemory, DeviceInfo, GPULayersList
from .gpu_option import choose_layers
from .gpu_split import with_backoff
from .options import Options
from .preparation import Preparation

if TYPE_CHECKING:
    from ...ml.process import RunnerProcess


@dataclass
class Devices(Closing):
    """Devices that layers can be placed on; a context manager.

    Attributes:
        found: GPUs of this machine and devices of workers.
        runner: the process that holds the devices of workers; losing a worker ends it.
    """

    found: list[DeviceInfo] = field(default_factory=list)
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
        from ...ml.ggml.discovery import discover

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
        keys = KeyValues(source.metadata, source.name)
        blocks = keys.get("block_count", int) or 0
        return choose_layers(request, dry_run, devices.found, blocks, backoff=backoff)

    return with_backoff(attempt, choose) if request.automatic else attempt(choose(0.0))
