"""Which engine runs a model: ggmodel those whose architecture it has, llama.cpp others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ArchitectureError, ConfigError, ModelNotFound
from ...names import find
from ...names.grammar import hub_name
from .ggmodel import GgmodelRunner, Progress
from .llama_cpp import LlamaCppRunner, program
from .needs import Admit

if TYPE_CHECKING:
    from ..models.catalogue import Target

log = logging.getLogger("ggmodel.serve")

ENGINES = ("auto", "ggmodel", "llama.cpp")


class Engines:
    """Starts runners.

    Args:
        engine: "ggmodel" or "llama.cpp" for every model; "auto" takes ggmodel for architectures
            that it has, and an installed llama.cpp for other GGUF files.

    Raises:
        ConfigError: there is no such engine.
    """

    def __init__(self, engine: str = "auto"):
        if engine not in ENGINES:
            raise ConfigError(f"there is no engine {engine!r}; there is {', '.join(ENGINES)}")

        self._engine = engine
        self._foreign: set[str] = set()

    def check(self, target: Target, options: Mapping[str, Any]) -> None:
        """Reads the header of a model on this machine. A name of the hub may be downloaded later.

        Raises:
            Error: `start` would raise it, too: the file is broken or cut short, no engine has its
                architecture, an option is wrong. ModelNotFound: the name stands for nothing.
        """
        from ...runner.loading.options import Options
        from ...runner.loading.preparation import Preparation
        from ...runner.loading.sources import open_source

        try:
            found = find(target.source, download=False)
        except ModelNotFound:
            if hub_name(target.source) is None:
                raise
            return
        own = Options(**options)
        with (
            open_source(found, own.mmproj, own.models, own.type) as source,
            Preparation(source, own) as steps,
        ):
            try:
                if self._engine != "llama.cpp":
                    steps.configure()
            except ArchitectureError:
                if not self._is_for_llama_cpp(target):
                    raise

    def _is_for_llama_cpp(self, target: Target) -> bool:
        """Whether a model whose architecture ggmodel lacks goes to llama.cpp."""
        is_file = target.path is not None and target.path.is_file()
        return self._engine == "auto" and is_file and program() is not None

    async def start(
        self,
        target: Target,
        options: Mapping[str, Any],
        admit: Admit | None = None,
        progress: Progress | None = None,
    ) -> GgmodelRunner | LlamaCppRunner:
        """A runner that has loaded the model.

        Args:
            admit: asked before it is loaded; see `GgmodelRunner.start`.
            progress: called with the share that is loaded, where the engine tells it.

        Raises:
            Error: it cannot be loaded.
        """
        if self._engine != "llama.cpp" and target.key not in self._foreign:
            try:
                return await GgmodelRunner.start(
                    target.source,
                    options,
                    name=target.key,
                    stored=target.stored,
                    admit=admit,
                    progress=progress,
                )
            except ArchitectureError as error:
                if not self._is_for_llama_cpp(target):
                    raise
                log.info("%s goes to llama.cpp: %s", target.key, error)
                self._foreign.add(target.key)
        if target.path is None or not target.path.is_file():
            raise ConfigError(f"llama.cpp runs GGUF files, and {target.key} is none")
        return await LlamaCppRunner.start(target.path, options, name=target.key, admit=admit)
