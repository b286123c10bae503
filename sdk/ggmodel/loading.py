"""The façade of loading: resolves names and opens checkpoints; the runner does neither."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ConfigError
from .gguf_file import TensorSource
from .model import Model
from .resources import reported
from .runner import LoadedModel, LoadOptions
from .runner.loading import adapters, sources
from .runner.loading import load as loader
from .runner.loading.resolved import ResolvedModel
from .runner.loading.sources import Source
from .runner.options import Options, with_options


def resolved(source: Source) -> Source:
    """A source or a path that exists as it is, else the model of a name; see `ggmodel.find`."""
    if isinstance(source, (TensorSource, ResolvedModel)) or os.path.exists(source):
        return source
    from .names.resolver import find

    return find(source)


def open_source(
    source: Source,
    mmproj: str | Path | None = None,
    models: str | Path | None = None,
    type: str | None = None,
) -> TensorSource:
    """An opened source: a given one, a file with its projector, or a checkpoint's folder.

    Args:
        source: also a name; see `resolved`.
        mmproj: the projector; None takes one that lies beside the file and fits, "" none.
        models: a folder with architectures, looked in first.
        type: the type that the tensors of a folder are rounded to.

    Raises:
        ConfigError: a projector for an open source or a folder, or a type for a file.
        FormatError: a file is not what it says.
    """
    source = resolved(source)
    if isinstance(source, TensorSource) or not os.path.isdir(source):
        return sources.open_source(source, mmproj, models, type)
    if mmproj:
        raise ConfigError(f"{source} is a folder, which has all of its model; leave out mmproj")
    from .convert.checkpoint_source import CheckpointSource  # slow to import

    return CheckpointSource.open(Path(source), type, models)


def open_adapter(path: str | os.PathLike[str], model: Model) -> TensorSource:
    """An opened adapter: a GGUF file, a folder of PEFT, or the task of a checkpoint that has an
    adapter for each, FOLDER/TASK.

    Args:
        model: the architecture with its tensors, which a folder's names are looked up in.

    Raises:
        FormatError, Unsupported: see `convert.peft.open_peft`.
        ConfigError: the checkpoint has no such task; lists those that it has.
    """
    if os.path.isfile(path):
        return adapters.open_adapter(path, model)
    from .convert.tasks import open_in_folder  # slow to import

    return open_in_folder(Path(path), model) or adapters.open_adapter(path, model)


@reported
@with_options(LoadOptions, resolved)
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
    return loader.load_opened(source, options, open_source, open_adapter)
