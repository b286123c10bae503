"""Coverage: the hyperparameters and weights that no case of a folder of goldens can see.

A golden proves only the numbers that move its results. Each hyperparameter and each weight is
changed in turn, and the model computed again in float64: a case sees it if a result leaves the
golden by more than that run's bound, or if no changed file loads. A factor that the
forward drops stays unseen, even where its value is 1 and all results are equal.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, Error
from ...gguf_file import MemorySource
from ...gguf_file.values import KeyValues
from ...model import config_class
from ...model.config import key_fields
from ...model.loader import of_source
from ...model.module import of_tower
from ...runner import LoadedModel
from ..unread import KEPT
from . import FLOAT64, Loading, laid_out, source_of, text_of
from .changes import others
from .files import Cases, Embeddings, Golden, Picture, Prompt
from .runs import nmse
from .weights import uniform

Progress = Callable[[float, str], None]
NEUTRAL = 1.0  # a factor of one proves nothing, even to a forward that multiplies by it


@dataclass(frozen=True)
class Unseen:
    """A hyperparameter or a weight whose value moves no result of any case.

    Attributes:
        name: of the hyperparameter's field, or of the tensor in a file.
        values: of the hyperparameter, in the cases; none for a weight.
        reason: that of `UNSEEN` in cases.py; "" without.
    """

    name: str
    values: tuple[Any, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        if not self.values:
            return f"{self.name}: no case can see this weight"
        said = ", ".join(f"{value!r:.40}" for value in self.values)
        return f"{self.name} = {said}: no case can see it; add one with another value"


def hold(
    cases: Cases, models: str | Path | None = None, progress: Progress = lambda share, text: None
) -> None:
    """Refuses a folder of goldens that cannot see a number, and does not say why. A model that is
    not written yet, or differs from a golden, is not judged.

    Args:
        models, progress: as for `unseen`.

    Raises:
        ConfigError: names each such number.
    """
    if not all(cases.path(name).is_file() for name in cases.names):
        return
    found: list[Unseen] | None = None
    with suppress(Error):
        found = unseen(cases, models, progress)
    names = [one.name for one in found or ()]
    idle = [p for p in cases.unseen if not fnmatch.filter(names, p)]
    if found is not None and idle:
        raise ConfigError(
            f"UNSEEN of {cases.folder / 'cases.py'} has {', '.join(idle)}, which a case sees or no "
            "file has: remove it"
        )
    loaded = {name: cases.load(name) for name in cases.names}
    paths = [f"{n}.{p}" for n, g in loaded.items() if isinstance(g, Golden) for p in g.changes]
    unfollowed = getattr(cases.module, "UNFOLLOWED", {})
    if idle := [pattern for pattern in unfollowed if not fnmatch.filter(paths, pattern)]:
        raise ConfigError(
            f"UNFOLLOWED of {cases.folder / 'cases.py'} has {', '.join(idle)}, which no golden "
            "changes: remove it"
        )
    if left := [str(one) for one in found or () if not one.reason]:
        raise ConfigError(
            "\n  ".join([f"{cases.folder}: the goldens are written, and prove too little:", *left])
            + f"\nAdd such a case to {cases.folder / 'cases.py'}, or say there why none can: "
            'UNSEEN = {"name": "reason"}'
        )


def unseen(
    cases: Cases, models: str | Path | None = None, progress: Progress = lambda share, text: None
) -> list[Unseen] | None:
    """Everything that no case of a folder sees, whether `UNSEEN` of cases.py says so or not; None
    where the model itself differs from a golden, and so proves nothing about it.

    Args:
        models: a folder of architectures, searched first.
        progress: called with the share of the cases that are done, and the next.

    Raises:
        FormatError: a golden is missing or damaged.
        Error: as raised by loading or running an unchanged model.
    """
    loading = Loading(cases, models, {"kv_type": "f32", "backend": "reference"})
    seen, values = set[str](), dict[str, list[Any]]()
    for i, name in enumerate(cases.names):
        progress(i / len(cases.names), name)
        case = Case(loading, cases.load(name))
        if not case.agrees():
            return None
        for field, value in case.hyperparameters.items():
            known = values.setdefault(field, [])
            known += [value] * (value not in known)
        values |= {tensor: [] for tensor in case.arrays}
        seen |= case.sees(values.keys() - seen)
    return [
        Unseen(name, tuple(found), _reason(cases.unseen, name))
        for name, found in values.items()
        if name not in seen
    ]


def _reason(reasons: Mapping[str, str], name: str) -> str:
    return next((why for p, why in reasons.items() if fnmatch.fnmatchcase(name, p)), "")


@dataclass(frozen=True)
class _Result:
    """A result of the reference, and its computation by a loaded model."""

    want: np.ndarray
    compute: Callable[[LoadedModel], np.ndarray]


class Case:
    """A golden whose hyperparameters and weights are changed one by one.

    Attributes:
        hyperparameters: field → its value, of those that the file says and that have numbers.
        arrays: tensor → its weights, in the order of numpy; the models of this case read them here.
    """

    def __init__(self, loading: Loading, golden: Golden | Embeddings):
        self._loading = loading
        source = source_of(golden, models=loading.models)
        self._metadata = dict(source.metadata)
        self.arrays = {
            name: np.frombuffer(source.data(name), info.dtype.numpy)
            .reshape(info.shape[::-1])
            .copy()
            for name, info in source.tensors.items()
        }
        self._texts, self._items = _results(golden, loading.cases.ways(golden.config))
        keys = KeyValues(source.metadata, source.name)
        config = config_class(of_source(keys, loading.models))
        read, self._keys = config.read(keys), dict[str, str]()
        self.hyperparameters = dict[str, Any]()
        for name, field, *_ in key_fields(config):
            given = [k for k in map(keys.full, field.names) if k in self._metadata]
            left_out = field.names[0] in KEPT or name in config.unread
            if given and not left_out and any(others(getattr(read, name))):
                self.hyperparameters[name], self._keys[name] = getattr(read, name), given[0]

    def agrees(self) -> bool:
        """Whether the unchanged model gives the golden's results."""
        with self._load() as model:
            results = (*self._texts, *self._items)
            return all(nmse(r.compute(model), r.want) < FLOAT64 for r in results)

    def sees(self, names: set[str]) -> set[str]:
        """The given hyperparameters and tensors that move a result when they change."""
        fields = {name for name in self.hyperparameters.keys() & names if self._sees_other(name)}
        return fields | {name for name in self.arrays.keys() & names if self._sees_weight(name)}

    def _load(self, **changes: Any) -> LoadedModel:
        return self._loading.load(MemorySource(self._metadata | changes, self.arrays))

    def _sees_other(self, name: str) -> bool:
        key, value = self._keys[name], self.hyperparameters[name]
        if isinstance(value, float) and value == NEUTRAL:
            return False
        encodes = key.split(".", 1)[-1].startswith(("vision.", "audio."))
        refused = True
        for other in others(value):
            moved = self._moved({key: other}, encodes)
            if moved:
                return True
            refused = refused and moved is None
        return refused

    def _sees_weight(self, name: str) -> bool:
        values = self.arrays[name]
        kept = values.copy()
        noise = uniform(f"coverage {name}", values.shape)
        values[...] = kept * (1 + noise / 2) + noise / 2 * (not kept.any())
        try:
            # A model loaded before may compute with copies of weights, and keeps rows of items.
            return self._moved({}, of_tower(name)) is not False
        finally:
            values[...] = kept

    def _moved(self, changes: Mapping[str, Any], encodes: bool) -> bool | None:
        """Whether a changed file gives other results; None if it is refused."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = self._load(**changes)
            except Exception:
                return None
            with model:
                return self._differs(model, encodes)

    def _differs(self, model: LoadedModel, encodes: bool) -> bool | None:
        """Whether a result differs from the golden, of items first where an encoder changed; None
        if a computation is refused."""
        results = (*self._items, *self._texts) if encodes else (*self._texts, *self._items)
        with np.errstate(all="ignore"):
            try:
                return any(nmse(r.compute(model), r.want) >= FLOAT64 for r in results)
            except Exception:
                return None


def _results(
    golden: Golden | Embeddings, ways: Sequence[Any]
) -> tuple[list[_Result], list[_Result]]:
    """The results of texts, and those of items and of prompts with them."""
    if isinstance(golden, Embeddings):

        def vectors(model: LoadedModel) -> np.ndarray:
            return np.concatenate([model.embed(golden.texts, pooling=w) for w in ways], axis=1)

        return [_Result(golden.vectors, vectors)], []
    items = []
    for picture in golden.pictures.values():

        def rows(model: LoadedModel, picture: Picture = picture) -> np.ndarray:
            seen = model.encode_media(picture.kind, picture.pixels, **picture.data)
            return np.concatenate([one.rows for one in seen])

        items.append(_Result(picture.rows, rows))
    for prompt in golden.prompts.values():

        def logits(model: LoadedModel, prompt: Prompt = prompt) -> np.ndarray:
            return model.logits(laid_out(model, golden, prompt))

        items.append(_Result(prompt.logits, logits))
    text = _Result(golden.logits, lambda model: model.logits(text_of(model, golden)))
    return [text], items
