"""Where the layers of a model go: the devices there are, and a layout of the model on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...gguf_file import TensorSource
from ...gguf_file.metadata import KeyValues
from ...ml import BackendMemory, DeviceInfo, GPULayersList
from .gpu_option import choose_layers
from .gpu_split import with_backoff
from .preparation import Options, Preparation

if TYPE_CHECKING:
    from ...ml.process import RunnerProcess


@dataclass
class Devices:
    """Devices that layers can be placed on; a context manager.

    Attributes:
        found: GPUs of this machine and devices of workers.
        runner: the process that holds them where there are workers: losing one ends it.
    """

    found: list[DeviceInfo] = field(default_factory=list)
    runner: RunnerProcess | None = None

    @classmethod
    def open(cls, options: Options) -> Devices:
        """Those that the options let a model use.

        Raises:
            ConfigError, DeviceLost, Busy, Unsupported: a worker's address is none, or it cannot be
                reached, is in use, or ggml was built without them.
        """
        if options.rpc:
            from ...ml.process import RunnerProcess

            runner = RunnerProcess(options.rpc)
            try:
                return cls(runner.devices(), runner)
            except BaseException:
                runner.close()
                raise
        if options.backend != "ggml" or not options.uses_devices:
            return cls()
        from ...ml.ggml.discovery import discover

        return cls(discover())

    def close(self) -> None:
        """Ends the process; idempotent."""
        if self.runner is not None:
            self.runner.close()

    def __enter__(self) -> Devices:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def prepare(source: TensorSource, options: Options, devices: Devices) -> Preparation:
    """Takes all steps of `Preparation` but the vocabulary, with the layers placed as asked for.

    Raises:
        ConfigError: a device or a layer is named that does not exist.
        OutOfMemory: with the memory report; a layout of our own choosing goes back to fewer layers
            on devices first.
        Error: whatever a step raises.
    """
    request = options.gpu_request

    def attempt(layers: GPULayersList, options: Options = options) -> Preparation:
        preparation = Preparation(source, options, layers, devices.runner)
        try:
            preparation.take_steps()
        except BaseException:
            preparation.close()
            raise
        return preparation

    def dry_run(layers: GPULayersList) -> BackendMemory:
        with attempt(layers, replace(options, alloc_memory=False)) as preparation:
            return preparation.backend.backend_memory()

    def choose(backoff: float) -> GPULayersList:
        keys = KeyValues(source.metadata, source.name)
        blocks = keys.get("block_count", int) or 0
        return choose_layers(request, dry_run, devices.found, blocks, backoff=backoff)

    return with_backoff(attempt, choose) if request.automatic else attempt(choose(0.0))
