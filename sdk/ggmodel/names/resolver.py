"""The resolver of names: the stores in their order, and packages that add others."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..errors import ConfigError, Error, ModelNotFound
from ..reading import MissingFile
from ..runner.loading.resolved import PATH, Progress, ResolvedModel
from . import grammar
from .blobs import Report, Step
from .hub_cache import HubCache
from .lm_studio import LMStudio
from .ollama import Ollama
from .store_files import Stored

_GROUP = "ggmodel.sources"
_MOST_NEAR = 3


class Source(Protocol):
    """A store. A package adds one by an entry point of the group "ggmodel.sources", a class
    without arguments; it is asked after the built-in ones, and before anything is downloaded.

    Attributes:
        title: for people, such as "Ollama's store".
    """

    title: str

    def find(self, name: str, checkpoint: bool = False) -> ResolvedModel | None:
        """The model of a name, or None where the store has none, or the name is none of its own.

        Args:
            checkpoint: take only the folder of a Hugging Face model.

        Raises:
            Error: the store has it, and it cannot be used; says why.
        """

    def stored(self) -> Iterator[Stored]:
        """All models in the store, broken ones with their problem.

        Raises:
            Error: the store itself cannot be read.
        """
        ...


def sources() -> list[Source]:
    """All of them, in order.

    Raises:
        ConfigError: a package's source cannot be imported.
    """
    return [HubCache(), LMStudio(), Ollama(), *_of_packages()]


def _of_packages() -> Iterator[Source]:
    from importlib import metadata  # slow

    for entry in metadata.entry_points(group=_GROUP):
        try:
            yield entry.load()()
        except Exception as error:
            raise ConfigError(
                f"the source of models {entry.name!r} ({entry.value}) fails with "
                f"{type(error).__name__}: {error}; repair or remove its package"
            ) from error


def find(
    name: str | os.PathLike[str],
    *,
    checkpoint: bool = False,
    download: bool = True,
    progress: Progress | None = None,
) -> ResolvedModel:
    """The files of a model, by one string.

    Looked up in order: a path that exists; Hugging Face's cache, LM Studio's folders, Ollama's
    store, stores of other packages; at last the hub itself, from which it is downloaded.

    Args:
        name: a path; `ORG/REPO`, `ORG/REPO:Q4_K_M`, `ORG/REPO@REVISION`, `ORG/REPO/FILE.gguf`, the
            same after `hf.co/`; `NAME[:TAG]` of Ollama, or the same after `ollama://`.
        checkpoint: take a Hugging Face folder, and no GGUF file.
        download: whether to download what is in no store.
        progress: called with the share downloaded; None shows a bar on a terminal.

    Raises:
        MissingFile: a path does not exist.
        ModelNotFound: it is in no store and cannot be downloaded; offers near names.
        DownloadError: the hub refuses it, cannot be reached, or the disk is too small.
        ConfigError: it is no name.
        FormatError: files of the model are missing, damaged or outside of their store.
        Unsupported: the store has it in a form that cannot be run.
    """
    text = os.fspath(name)
    if isinstance(name, ResolvedModel):
        return name
    if os.path.exists(text):
        return ResolvedModel(text, PATH, Path(text))
    if not isinstance(name, str) or grammar.is_path(text):
        raise _no_path(text)
    hub = grammar.hub_name(text)
    if model := find_stored(text, checkpoint):
        return model
    if hub is None:
        raise _unknown(text)
    if not hub.explicit and _below_a_folder(text):
        raise ModelNotFound(
            f"{text[:200]!r} is nothing in the folder of that name, and no store of this machine "
            f"has it; hf.co/{hub} asks the hub" + _near(text)
        )
    if not download:
        raise ModelNotFound(
            f"{hub} is in no store of this machine; `ggmodel pull {hub}` downloads it" + _near(text)
        )
    from .download import download as fetch

    return fetch(hub, checkpoint, progress)


def find_stored(name: str, checkpoint: bool = False) -> ResolvedModel | None:
    """The files of a name in the stores of this machine; never a path, and nothing is downloaded.

    Args:
        checkpoint: as for `find`.

    Raises:
        ConfigError: it is no name.
        FormatError, Unsupported: as for `find`.
    """
    if grammar.is_path(name):
        return None
    for source in sources():
        if model := source.find(name, checkpoint):
            return model
    return None


def pull(
    name: str, *, progress: Progress | None = None, report: Report | None = None
) -> ResolvedModel:
    """Downloads a model of the hub or of Ollama's registry, or what has changed of it.

    Args:
        name: of the hub as for `find`; `NAME[:TAG]` of Ollama, or `ollama://NAMESPACE/NAME[:TAG]`.
        progress: as for `find`.
        report: called with each step, for a program that shows them, in place of `progress`.

    Raises:
        ConfigError: it is no such name.
        DownloadError, ModelNotFound, Unsupported: as for `find`.
    """
    if (hub := grammar.hub_name(name)) is not None:
        from .download import download as fetch

        return fetch(hub, False, progress if report is None else _steps(name, report))
    ollama = None if grammar.is_path(name) else grammar.ollama_name(name)
    if ollama is None:
        raise ConfigError(
            f"{name[:200]!r} is no name of the hub, ORG/REPO[:TAG], and none of Ollama, NAME[:TAG]"
        )
    from . import registry

    if report is None:
        return registry.pull(ollama, progress)
    return registry.pull(ollama, lambda share: None, report)


def _steps(name: str, report: Report) -> Progress:
    return lambda share: report(Step(f"pulling {name}: {share:.1%}"))


def stored() -> list[Stored]:
    """The models of all stores, not opened, by store and name."""
    models: list[Stored] = []
    for source in sources():
        try:
            models += source.stored()
        except Error as error:  # of a whole store
            models.append(Stored("?", source.title, None, problem=str(error)))
    return models


def _no_path(text: str) -> MissingFile:
    return MissingFile(
        f"{text[:400]} does not exist; check the path, or download the file first: ORG/REPO names "
        "a model of the hub"
    )


def _below_a_folder(text: str) -> bool:
    """Whether a text is a path into a folder that exists, more likely than a name."""
    folder, slash, _ = text.partition("/")
    return bool(slash) and os.path.isdir(folder)


def _unknown(text: str) -> ModelNotFound:
    if grammar.ollama_name(text) is None:
        return ModelNotFound(grammar.explain(text))
    near = _near(text)
    return ModelNotFound(
        f"{text[:200]!r} is no file, and no model of that name is in a store of this machine"
        + (
            near
            or "; `ggmodel list` shows what is, ORG/REPO names a model of the hub, and "
            f"`ggmodel pull {text[:200]}` asks Ollama's registry"
        )
    )


def _near(text: str) -> str:
    """Names of this machine that are like a text."""
    names: list[str] = []
    with suppress(Error):
        names = [model.name for model in stored()]
    plain = {name.casefold(): name for name in names}
    shorts = {name.rpartition(":")[0].casefold(): name for name in names if ":" in name}
    near = difflib.get_close_matches(text.casefold()[:100], [*plain, *shorts], _MOST_NEAR)
    similar = dict.fromkeys((plain | shorts)[name] for name in near)
    return f"; near names here: {', '.join(similar)}" if similar else ""
