"""Every intermediate tensor of a model, and the origin of the first NaN or infinity."""

from __future__ import annotations

import fnmatch
import math
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..chat.messages import OPTIONS
from ..errors import ConfigError
from ..ml.node import Feed, HostData, Node, Weight
from ..ml.tensor import to_float32
from ..model import Prepared
from ..runner import LoadedModel
from ..storage import atomic_write
from .nodes import VIEWS
from .observe import Recording, See, watch_item, watch_source, watch_text

_CHUNK = 1 << 22  # numbers in float64 at a time


@dataclass(frozen=True)
class Statistics:
    """Statistics of a tensor's finite numbers, and the counts of the others.

    Attributes:
        rms: root of the mean square.
    """

    min: float
    max: float
    mean: float
    rms: float
    nan: int
    inf: int

    @property
    def finite(self) -> bool:
        return not (self.nan or self.inf)


@dataclass(frozen=True)
class Value:
    """An intermediate tensor.

    Attributes:
        part: "text", or the kind of an item, such as "image".
        name: its place in the model; repeated names end with "#2", "#3", …
        op: that computed it. line: of the model's source that recorded it.
        shape: ggml order.
    """

    part: str
    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    line: str
    statistics: Statistics


@dataclass(frozen=True)
class OperandValue:
    """An operand of an op.

    Attributes:
        kind: "weight", "cache", "input" or "result".
        statistics: None for caches and inputs of the batch.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    statistics: Statistics | None


@dataclass
class Trace:
    """The values that a model computed for a prompt.

    Attributes:
        values: in execution order, without views.
        first: the first value with a NaN or an infinity that no computed operand has; a weight may
            have it. None if there is none. Masks and their results may be infinite.
        operands: of that value.
        kept: the values that were asked for, by name; numpy order.
    """

    model: str
    tokens: int
    values: list[Value] = field(default_factory=list)
    first: Value | None = None
    operands: list[OperandValue] = field(default_factory=list)
    kept: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no NaN and no infinity arose."""
        return self.first is None


def trace(
    model: LoadedModel,
    prompt: Any,
    *,
    item: tuple[str, Prepared] | None = None,
    names: str = "*",
    keep: bool = False,
) -> Trace:
    """Computes a prompt and takes the statistics of every result.

    Args:
        prompt: as for `LoadedModel.generate`; with an item a text.
        item: the kind of an image, sound or video, and what its encoder takes.
        names: a glob pattern for the values to list; the search for NaN covers all values.
        keep: keep the listed values.

    Raises:
        PromptError: the prompt is invalid, or longer than a batch.
        ConfigError: no tensor's name matches.
    """
    result = Trace(model.source.name, 0)
    if item is not None:
        kind, prepared = item
        look = _Look(result, model, kind, names, keep)
        embeddings = watch_item(model, kind, prepared, look.begin)
        prompt = model.prompts.with_items(prompt, {OPTIONS[kind]: [embeddings]})
    if item is None and (kind := model.model.prompt_item):
        begin = _Look(result, model, kind, names, keep).begin
        numbers = watch_source(model, model.prompts.ids(prompt), begin)
    else:
        numbers = model.prompts.read(prompt)
    result.tokens = len(numbers)
    watch_text(model, numbers, _Look(result, model, "text", names, keep).begin)
    if not result.values:
        raise ConfigError(f"no tensor's name matches {names!r}; leave it out to see all names")
    return result


class _Look:
    def __init__(self, result: Trace, model: LoadedModel, part: str, names: str, keep: bool):
        self.result, self.model, self.part = result, model, part
        self.names, self.keep = names, keep
        self._known: dict[int, Statistics] = {}
        self._uses: Counter[str] = Counter()

    def begin(self, recording: Recording) -> See:
        return self.see

    def see(self, node: Node, value: np.ndarray) -> None:
        numbers = to_float32(value, node.dtype, node.ne)
        self._known[node.uid] = statistics = statistics_of(numbers)
        assert node.op is not None
        if node.base is not None and node.op.name in VIEWS:
            return
        self._uses[node.name] += 1
        times = self._uses[node.name]
        name = f"{node.name}#{times}" if times > 1 else node.name
        made = Value(
            self.part,
            name,
            node.op.name,
            node.shape,
            node.dtype.name,
            str(node.site or ""),
            statistics,
        )
        if self.result.first is None and self._begins(node, statistics):
            self.result.first = made
            self.result.operands = [self._operand(x) for x in node.sources if x is not None]
        if not fnmatch.fnmatchcase(name, self.names):
            return
        self.result.values.append(made)
        if self.keep:
            key = name if self.part == "text" else f"{self.part}.{name}"
            raw = numbers if node.dtype.numpy is None else value
            self.result.kept[key] = raw.reshape(node.shape[::-1]).copy()

    def _begins(self, node: Node, statistics: Statistics) -> bool:
        """Whether a NaN or infinity first appears here."""
        if statistics.finite:
            return False
        operands = [x for x in node.sources if x is not None]
        before = [self._known[x.uid] for x in operands if x.uid in self._known]
        if statistics.nan:
            return not any(s.nan for s in before)
        # Masks hide positions by infinities.
        masked = any(
            isinstance(x.storage, (Feed, HostData)) and not x.dtype.is_integer for x in operands
        )
        return not masked and all(s.finite for s in before)

    def _operand(self, x: Node) -> OperandValue:
        statistics = self._known.get(x.uid)
        owner = x.owner
        kind = "result" if owner.op is not None else "cache"
        if isinstance(x.storage, Weight):
            kind = "weight"
            statistics = statistics_of(to_float32(self.model.backend.read(x), x.dtype, x.ne))
        elif isinstance(x.storage, (Feed, HostData)):
            kind = "input"
        return OperandValue(kind, x.name, x.shape, x.dtype.name, statistics)


def statistics_of(values: np.ndarray) -> Statistics:
    """The statistics of an array of any shape."""
    flat = values.reshape(-1)
    least, most, total, squares = math.inf, -math.inf, 0.0, 0.0
    nan = inf = count = 0
    for lo in range(0, len(flat), _CHUNK):
        part = flat[lo : lo + _CHUNK]
        finite = np.isfinite(part)
        if not finite.all():
            none = int(np.isnan(part).sum())
            nan, inf = nan + none, inf + int((~finite).sum()) - none
            part = part[finite]
        if len(part):
            wide = part.astype(np.float64)
            least, most = min(least, float(wide.min())), max(most, float(wide.max()))
            total, squares = total + float(wide.sum()), squares + float(wide @ wide)
            count += len(part)
    if not count:
        return Statistics(math.nan, math.nan, math.nan, math.nan, nan, inf)
    return Statistics(least, most, total / count, math.sqrt(squares / count), nan, inf)


def save(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to an .npz or .safetensors file, chosen by the name.

    Raises:
        ConfigError: the name ends otherwise.
        WriteError: the file cannot be written.
    """
    kind = Path(path).suffix
    if kind not in (".npz", ".safetensors"):
        raise ConfigError(f"{path}: values are saved as .npz or .safetensors")
    with atomic_write(path) as file:
        if kind == ".safetensors":
            from safetensors.numpy import save as serialized

            file.write(serialized(dict(arrays)))
            return
        # Not np.savez: it takes names as keywords and has some of its own.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, array, allow_pickle=False)
