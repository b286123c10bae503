"""From a file to a model that runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...errors import Cancelled
from ...gguf_file import TensorSource
from ...ml.backend import Progress
from ..requests.loaded_model import LoadedModel
from .gpu_option import GPULayersOption
from .placement import Devices, prepare
from .preparation import Options
from .sources import open_source


def load(
    source: str | Path | TensorSource,
    *,
    type: str | None = None,
    mmproj: str | Path | None = None,
    backend: str = "ggml",
    threads: int | None = None,
    context_length: int | None = None,
    batch_size: int = 512,
    parallel: int = 1,
    gpu_layers: GPULayersOption = "auto",
    override_tensor: Mapping[str, str] | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    optimize: str = "speed",
    rpc: Sequence[str] | None = None,
    models: str | Path | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a model.

    Args:
        source: a GGUF file (of a split one the first part), the folder of a Hugging Face model, or
            a tensor source, which stays open.
        type: of a folder's tensors, as `ggmodel convert` takes it ("q8_0", "q4_K_M"); None keeps
            those of the checkpoint.
        mmproj: the file that a text model sees with; None takes one that lies beside the model and
            fits ("mmproj" is in its name), "" none.
        backend: the tensor library.
        threads: None uses the cores this process may use, and fewer while others use them; a
            number stays, but is at most these cores.
        context_length: positions a sequence may have; None is the model's own, at most 4096.
        batch_size: the most tokens of a prompt computed at once.
        parallel: sequences that may be open at the same time.
        gpu_layers: which layers go to GPUs and workers: "auto" is as many as fit, a number the last
            ones (-1 all), and {"CUDA0": range(16), "RPC0": 4} gives each device its layers or how
            many. The last number is the output layer.
        override_tensor: regular expression → device name or "CPU": weights whose name it finds lie
            there, whatever their layer. The first that finds one counts.
        flash_attention: "auto", "on", "off".
        kv_type: of keys and values in the cache: "f16", "f32", and with the fused attention "q8_0",
            "q4_0".
        optimize: "speed" keeps two copies of a weight where prompts and single tokens are each
            faster with another arrangement, if there is memory; "memory" keeps one.
        rpc: workers, "host:port", whose devices are used like GPUs of this machine; None takes
            those in GGMODEL_RPC. The model's tensors then live in a process of their own.
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
        DeviceLost, Busy: a worker cannot be reached, or serves someone else.
        Unsupported: an option that is not there yet.
    """
    options = Options(
        backend=backend,
        threads=threads,
        context_length=context_length,
        batch_size=batch_size,
        parallel=parallel,
        gpu_layers=gpu_layers,
        override_tensor=override_tensor or {},
        flash_attention=flash_attention,
        kv_type=kv_type,
        optimize=optimize,
        rpc=rpc,
        models=models,
        strict=strict,
    )
    with ExitStack() as undo:
        with _without_collector():
            opened = open_source(source, mmproj, models, type)
            if opened is not source:
                undo.callback(opened.close)
            devices = undo.enter_context(Devices.open(options))
            ready = undo.enter_context(prepare(opened, options, devices))
        # Copying weights needs little of the interpreter, which builds the tokenizer meanwhile.
        with ThreadPoolExecutor(1, "ggmodel-vocabulary") as pool:
            vocabulary = pool.submit(_without_collector()(ready.read_vocabulary))
            try:
                ready.backend.load(progress, lambda: _has_failed(vocabulary))
            except Cancelled:
                vocabulary.result()  # raises what it was cancelled for, unless `progress` did it
                raise
            vocabulary.result()
        ready.finish()
        ready.keep()
        undo.pop_all()
    ready.backend.owns_source = opened is not source
    return LoadedModel(
        opened, devices, ready.backend, ready.model, ready.report, ready.tokenizer, ready.engine
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Within the block nobody looks for cycles: a vocabulary is half a million objects that stay,
    and to go through them again and again takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _has_failed(work: Future[None]) -> bool:
    return work.done() and work.exception() is not None
