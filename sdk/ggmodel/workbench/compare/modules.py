"""The loss of each module of a quantised model: the divergence that its weights cause alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...gguf_file import TensorSource
from ...loading import load
from ...model import LoadReport
from ...runner import LoadedModel
from ...runner.requests.module_names import plain
from ..inside import Grid
from ..text_statistics import Chunks, split_chunks
from . import Scores, logits, most, score


class SwappedSource(TensorSource):
    """A source with tensors of another one in place of its own; closing it closes neither.

    Args:
        names: of the tensors that are taken from `other`; their types may differ.

    Raises:
        ConfigError: `other` lacks one, or has another shape.
    """

    def __init__(self, source: TensorSource, other: TensorSource, names: Collection[str]):
        self._source, self._other, self._names = source, other, frozenset(names)
        self.name, self.metadata = source.name, source.metadata
        self.files = source.files + other.files
        tensors = dict(source.tensors)
        for name in names:
            theirs = other.tensors.get(name)
            if theirs is None or theirs.shape != tensors[name].shape:
                found = "no such tensor" if theirs is None else f"one of {list(theirs.shape)}"
                raise ConfigError(
                    f"{source.name} has {name} of {list(tensors[name].shape)}, {other.name} has "
                    f"{found}; give files of one model"
                )
            tensors[name] = replace(theirs, file=theirs.file + len(source.files))
        self.tensors = MappingProxyType(tensors)
        self.unread, self.unread_keys = source.unread, source.unread_keys

    def _owner(self, name: str) -> TensorSource:
        return self._other if name in self._names else self._source

    def data(self, name: str) -> memoryview:
        return self._owner(name).data(name)

    def mapped(self, file: int) -> memoryview | None:
        shift = len(self._source.files)
        return self._source.mapped(file) if file < shift else self._other.mapped(file - shift)

    def release(self, name: str) -> None:
        self._owner(name).release(name)

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        self._source.check_unchanged()
        self._other.check_unchanged()

    def close(self) -> None:
        """Does nothing: both sources belong to the caller."""


@dataclass(frozen=True)
class ModuleLoss:
    """The loss by one module.

    Attributes:
        module: its name, as `capture` takes it.
        original, model: types of its weights, such as "BF16" and "Q4_K".
        nbytes: bytes of its weights in the quantised file.
        kl_divergence: mean divergence in nats of the original with this module's quantised weights
            from the original as it is.
        same_top: share of tokens for which both have the same likeliest one.
    """

    module: str
    original: str
    model: str
    nbytes: int
    kl_divergence: float
    same_top: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def modules_of(report: LoadReport, names: str | None = None) -> dict[str, list[str]]:
    """Module → tensors, in order of declaration.

    Args:
        names: a glob: the outermost modules that match it, with all that is within them; None is
            the innermost ones.

    Raises:
        ConfigError: no module matches.
    """
    modules: dict[str, list[str]] = {}
    done: set[str] = set()
    for tensor, path in report.bound:
        parts = plain(path).removeprefix("text.").split(".")[:-1]
        outer = [".".join(parts[: i + 1]) for i in range(len(parts))]
        if names is not None:
            outer = [name for name in outer if fnmatchcase(name, names)][:1]
        if tensor not in done and outer:
            modules.setdefault(outer[-1], []).append(tensor)
            done.add(tensor)
    if not modules:
        raise ConfigError(f"no module with weights is called {names!r}; 'layers.*.attn' is a glob")
    return modules


def by_module(
    original: LoadedModel,
    model: LoadedModel,
    text: str,
    context: int | None = None,
    chunks: int = 1,
    names: str | None = None,
    **options: Any,
) -> Iterator[ModuleLoss]:
    """The loss of each module whose weights differ, in order of declaration.

    For each module the original is loaded once more with this module's weights from the quantised
    file, and computes the first chunks of the text. Weights stay in the mapped files.

    Args:
        context, chunks: as for `compare`.
        names: see `modules_of`.
        options: of `ggmodel.load`.

    Raises:
        ConfigError: the files have other tensors, or no module matches.
    """
    cut = Chunks.of(original, text, context)
    count = most(cut, chunks)
    parts = list(split_chunks(original, cut.ids, cut.size, count))
    rows = [logits(original, part, cut.first) for part in parts]
    ours, theirs = original.source, model.source
    for name, tensors in modules_of(original.report, names).items():
        changed = [t for t in tensors if differs(ours, theirs, t)]
        if not changed:
            continue
        swapped = SwappedSource(ours, theirs, changed)
        with load(swapped, **{**options, "context_length": cut.size}) as mixed:
            whole: Scores | None = None
            for part, row in zip(parts, rows, strict=True):
                more = score(row, mixed, part, cut.first)
                whole = more if whole is None else whole.joined(more)
        assert whole is not None
        yield ModuleLoss(
            name,
            _types(ours, changed),
            _types(theirs, changed),
            sum(theirs.tensors[t].nbytes for t in changed),
            float(whole.divergences.mean()),
            float(whole.same_top.mean()),
        )


def differs(source: TensorSource, other: TensorSource, name: str) -> bool:
    """Whether a tensor is of another type or has other bytes."""
    a, b = source.tensors[name], other.tensors.get(name)
    if b is None or a.dtype is not b.dtype or a.shape != b.shape:
        return True
    x, y = (np.frombuffer(s.data(name), np.uint8) for s in (source, other))
    return not np.array_equal(x, y)


def _types(source: TensorSource, names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(source.tensors[name].dtype.name for name in names))


def grid(losses: Iterable[ModuleLoss]) -> Grid:
    """The divergence by layer (rows) and part of a layer (columns), to be drawn; modules outside of
    layers are rows of their own."""
    cells: Mapping[tuple[str, str], float] = {
        _place(loss.module): loss.kl_divergence for loss in losses
    }
    rows, columns = (list(dict.fromkeys(place[i] for place in cells)) for i in (0, 1))
    values = [[cells.get((row, column), np.nan) for column in columns] for row in rows]
    return Grid(rows, columns, np.array(values, np.float32).reshape(len(rows), len(columns)))


def _place(name: str) -> tuple[str, str]:
    """The layer and the rest of a name; a name without a number is its own row."""
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[: at + 1]), ".".join(parts[at + 1 :])
