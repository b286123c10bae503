"""The adapters of a loaded model: added and removed while it runs, chosen by requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FormatError, Unsupported
from ...gguf_file import TensorSource
from ...ml import Context, Tensor
from ...model import Batch, Step
from ..engine.adapters import Adapter, Strengths
from ..engine.engine import Engine
from ..engine.graphs import trace
from ..engine.scoring import Scoring
from ..loading.adapters import AdapterPaths, changes_of, open_adapter, strengths_of, values_of
from .receipt import digest_of

Open = Callable[[str | os.PathLike[str], Any], TensorSource]


class Adapters(Mapping[str, float]):
    """Name → the strength that an adapter has in requests that do not choose; 0 leaves it out.

    `adapters[name] = strength` changes that for later requests, and `del adapters[name]` removes an
    adapter: requests under way go on with it, and its memory is freed with the last of them.

    Args:
        source: the model's.
        opener: opens an adapter's file or folder for a model.
    """

    def __init__(self, engine: Engine, source: TensorSource, opener: Open = open_adapter):
        self._engine, self._source, self._open = engine, source, opener
        self._loaded: dict[str, Adapter] = {}
        self._strengths: dict[str, float] = {}

    def __getitem__(self, name: str) -> float:
        return self._strengths[self._known(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def __repr__(self) -> str:
        return f"Adapters({self._strengths})"

    def __setitem__(self, name: str, strength: float) -> None:
        self.update({name: strength})

    def update(self, strengths: Mapping[str, float]) -> None:
        """Sets several strengths at once: no request gets some of them.

        Raises:
            ConfigError: there is no adapter of a name, or a strength is no number; nothing is set.
        """
        checked = strengths_of(strengths)
        self._strengths |= {self._known(name): strength for name, strength in checked.items()}
        self._apply()

    def __delitem__(self, name: str) -> None:
        adapter = self._loaded.pop(self._known(name))
        del self._strengths[name]
        self._apply()
        self._engine.retire(adapter)

    def add(
        self, path: str | os.PathLike[str], name: str | None = None, strength: float = 1.0
    ) -> str:
        """Loads an adapter.

        Args:
            path: a folder of PEFT, with adapter_config.json, a GGUF file of llama.cpp's, or
                FOLDER/TASK of a checkpoint that has one for each task.
            name: for requests; None takes that of the folder or the file.
            strength: in requests that do not choose.

        Returns:
            its name.

        Raises:
            FormatError: it is no adapter of this model; names the tensor and the shapes.
            ConfigError: there is one of this name, or the checkpoint has no such task.
            Unsupported: it changes what cannot be changed; names the tensor, or the key of its
                configuration.
        """
        name = Path(path).name.removesuffix(".gguf") if name is None else name
        if name in self._loaded:
            raise ConfigError(
                f"there is an adapter {name!r:.80} already; give the other one a name of its own"
            )
        strength = strengths_of({name: strength})[name]
        with closing(self._open(path, self._engine.model)) as opened:
            changes = changes_of(opened, self._source)
            gains = {
                weight: change.gain(values_of(self._source, weight))
                for (weight, _), change in changes.items()
                if change.magnitude is not None
            }
            digest = digest_of(opened)
        engine = self._engine
        adapter = engine.call(lambda: Adapter(name, engine.backend, changes, gains, digest))
        try:
            self._check_used(adapter)
        except BaseException:
            engine.retire(adapter)
            raise
        engine.loaded.append(adapter)
        self._loaded[name], self._strengths[name] = adapter, strength
        self._apply()
        return name

    def digest(self, name: str) -> str:
        """SHA-256 over an adapter's content, hexadecimal."""
        return self._loaded[self._known(name)].digest

    def chosen(self, adapters: AdapterPaths) -> Strengths:
        """The adapters of a request: one, several, or names with strengths; None takes those of
        requests that do not choose.

        Raises:
            ConfigError: there is no adapter of a name.
        """
        if adapters is None:
            return self._engine.adapters
        strengths = strengths_of(adapters)
        for name in strengths:
            self._known(name)
        return tuple(
            (adapter, strengths[name])
            for name, adapter in self._loaded.items()
            if strengths.get(name)
        )

    def of_receipt(self, adapters: Any) -> dict[str, float]:
        """The adapters with strengths that a receipt names: name → digest and strength.

        Raises:
            ConfigError: one is not loaded, or has another content.
        """
        try:
            strengths = {name: strength for name, (_, strength) in adapters.items()}
            digests = {name: digest for name, (digest, _) in adapters.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(f"the receipt's adapters are {adapters!r:.80}") from None
        for name, digest in digests.items():
            if self.digest(name) != digest:
                raise ConfigError(f"the adapter {name!r:.80} is not the receipt's: load that one")
        return strengths

    def _known(self, name: str) -> str:
        if name not in self._loaded:
            names = ", ".join(map(repr, self._loaded)) or "none"
            raise ConfigError(f"there is no adapter {name!r:.80}; loaded: {names}")
        return name

    def _apply(self) -> None:
        self._engine.adapters = self.chosen(self._strengths)

    def _check_used(self, adapter: Adapter) -> None:
        """Raises FormatError for a change of a weight that no product of the text's graph has."""
        used = self._engine.call(lambda: self._used(adapter))
        unused = sorted(
            weight for weight, use in adapter.pairs if (adapter, weight, use) not in used
        )
        if unused:
            raise FormatError(
                f"the adapter {adapter.name!r} changes {', '.join(unused[:3])}"
                + (f" and {len(unused) - 3} more" if unused[3:] else "")
                + ", which texts are not multiplied by: it is of another model, or of an encoder "
                "of pictures or sounds"
            )

    def _used(self, adapter: Adapter) -> set[tuple[Adapter, str, str]]:
        engine, used = self._engine, set[tuple[Adapter, str, str]]()
        model = engine.model

        def scores(ctx: Context, batch: Batch) -> Tensor:
            return model.class_scores(ctx, model.states(ctx, batch))

        with Scoring(engine).graphs(engine.memory_plan.forward, 1, 1) as graphs:
            step = Step.blank(1, 1, model.own_components()).adapt([(adapter, 1.0)])
            for forward in (graphs.forward, scores):
                if len(used) == len(adapter.pairs):
                    break
                graphs.cache.start_forward(step, reserve=True)
                headless = suppress(Unsupported) if forward is scores else nullcontext()
                with headless, closing(trace(forward, engine.backend, graphs.cache, step)) as made:
                    used |= made.changes.used if made.changes is not None else set()
        return used
