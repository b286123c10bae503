"""Types of tensors chosen by measured loss, for a file of a given size.

Two measurements are enough, since KL divergence grows with the square of small errors:

1. sensitivity: the divergence of the next token if one tensor alone is rounded to a probe type, in
   nats, on a text. The original is loaded once more with the rounded values of this tensor.
2. error: the squared error of a tensor's products, by type: (W - Q)² × the mean square of each
   input.

The loss of a type is the probe's divergence × the type's error / the probe's error. Losses add up
nearly, so the tensors start with their smallest types, and get larger ones where a byte saves most,
until the file has its size.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.imatrix import ImportanceMatrix
from ..convert.quantize import check_requantized, decode, encode, write_quantized
from ..convert.tensor_types import Candidate, choose, recipe_of
from ..errors import ConfigError, FormatError
from ..gguf_file import DType, MemorySource, TensorInfo, TensorSource
from ..loading import load
from ..storage import check_target
from .compare import logits, score
from .compare.modules import SwappedSource
from .text_statistics import Chunks, importance, split_chunks

# Types that a tensor may get, if their blocks fill its rows.
LADDER = tuple(
    DType[name]
    for name in "IQ2_S Q2_K IQ3_XXS Q3_K IQ3_S IQ4_XS Q4_0 IQ4_NL Q4_K Q4_1 Q5_0 Q5_K Q5_1 Q6_K "
    "Q8_0".split()
)
_CONTEXT, _CHUNKS = 256, 4  # of the text, for sensitivities
_IMPORTANCE_CHUNKS = 32
_SAMPLE = 1 << 18  # numbers of a tensor that its errors are taken from
_ON_GRID = 16  # as little of a type's usual error, and numbers were of that type before
_KEY = "ggmodel.mixture."

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Option:
    """A type that a tensor may get: its bytes, and its loss in nats."""

    dtype: DType
    nbytes: int
    loss: float


@dataclass(frozen=True)
class Mixture:
    """Types of all tensors of a file, and where they come from.

    Attributes:
        types: tensor → type, in the order of the file.
        losses: tensor → the estimated loss by its type, in nats, for those that were chosen.
        target_bits: bits a weight, that the file has at most.
        text: SHA-256 of the text.
    """

    types: Mapping[str, DType]
    losses: Mapping[str, float]
    target_bits: float
    text: str

    def metadata(self) -> dict[str, Any]:
        """The recipe as metadata of the file; `read` makes the mixture of it again."""
        return {
            f"{_KEY}target_bits": self.target_bits,
            f"{_KEY}text_sha256": self.text,
            f"{_KEY}types": json.dumps({name: str(t) for name, t in self.types.items()}),
            f"{_KEY}losses": json.dumps({n: float(f"{v:.4g}") for n, v in self.losses.items()}),
        }

    @classmethod
    def read(cls, source: TensorSource) -> Mixture:
        """The mixture of a file that was made by one.

        Raises:
            FormatError: it was not, or its recipe is damaged.
        """
        missing = FormatError(
            f"{source.name} has no recipe of types; files of `ggmodel quantize --target-bits` do"
        )
        try:
            bits, text, types, losses = (
                source.metadata[_KEY + name]
                for name in ("target_bits", "text_sha256", "types", "losses")
            )
            named = {str(n): DType.parse(t) for n, t in json.loads(types).items()}
            known = {str(n): float(v) for n, v in json.loads(losses).items()}
            return cls(named, known, float(bits), str(text))
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError, ConfigError):
            raise missing from None


def quantize(
    source: TensorSource,
    path: str | Path,
    text: str,
    target_bits: float | None = None,
    *,
    recipe: TensorSource | None = None,
    imatrix: str | Path | None = None,
    allow_requantize: bool = False,
    force: bool = False,
    progress: Progress = lambda share, text: None,
) -> Mixture:
    """Writes a file whose types are chosen by measured loss on a text, or those of a recipe.

    Args:
        text: also for the importance of inputs, unless there is `imatrix`.
        target_bits: bits a weight that the file has at most; see `search`.
        recipe: in place of target_bits, a file that was made so: the same source and text give
            the same bytes.
        imatrix: the file of an importance matrix.
        allow_requantize: quantised tensors may be quantised again.

    Raises:
        ConfigError: see `search`; or the recipe is of another model or text.
        FormatError: the recipe's file has none, or the importance matrix cannot be read.
        PromptError: the text has less than a chunk of 256 tokens.
        WriteError: the file cannot be written.
    """
    if (target_bits is None) == (recipe is None):
        raise ConfigError("give target_bits or recipe, one of them")
    check_target(path, force=force, device=False)
    mixture = None if recipe is None else Mixture.read(recipe)
    if mixture is not None:
        _check_recipe(mixture, source, text)
        check_requantized(source, mixture.types, allow_requantize)
    if imatrix is None:
        matrix = importance_of(source, text, progress)
    else:
        matrix = ImportanceMatrix.read(imatrix)
    if mixture is None:
        assert target_bits is not None  # one of both is given
        how: Any = {"allow_requantize": allow_requantize, "progress": progress}
        mixture = search(source, text, target_bits, matrix, **how)
    write_quantized(
        *(source, path, mixture.types, matrix, mixture.metadata()),
        force=force,
        progress=lambda share: progress(share, "writing"),
    )
    return mixture


def _check_recipe(mixture: Mixture, source: TensorSource, text: str) -> None:
    if mixture.text != digest(text):
        raise ConfigError("the recipe was made with another text; give that one")
    others = mixture.types.keys() ^ source.tensors.keys()
    if others:
        raise ConfigError(
            f"the recipe is of another model than {source.name}: {min(others)} is in one of them"
        )


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def importance_of(source: TensorSource, text: str, progress: Progress) -> ImportanceMatrix:
    """The importance of inputs on the text's first chunks, the same on any number of threads.

    Raises:
        PromptError: the text has fewer tokens than a chunk.
    """
    matrix: ImportanceMatrix | None = None
    with load(source, **_how()) as model:
        for done, matrix in importance(
            model, text, _CONTEXT, chunks=_IMPORTANCE_CHUNKS, dataset=digest(text)
        ):
            progress(done, f"importance, chunk {matrix.chunks}")
    assert matrix is not None  # a text has a chunk
    return matrix


def search(
    source: TensorSource,
    text: str,
    target_bits: float,
    matrix: ImportanceMatrix,
    *,
    allow_requantize: bool = False,
    progress: Progress = lambda share, text: None,
) -> Mixture:
    """Chooses the types of a file's tensors.

    Tensors that llama-quantize leaves alone keep their types, and rows that are no multiple of 32
    are F16.

    Args:
        text: of at least a few hundred tokens, like those that the model will read.
        target_bits: bits a weight, over all tensors.
        matrix: importance of the inputs; the file has to be written with it.
        allow_requantize: quantised tensors may be quantised again.

    Raises:
        ConfigError: there is no file so small, or the source is quantised already.
        TokenizerError, PromptError: see `Chunks.of`.
    """
    if not 0 < target_bits < 33:
        raise ConfigError(f"target_bits is {target_bits}; give bits a weight, such as 4.5")
    tensors = source.tensors
    candidates = [Candidate(t.name, t.shape, t.dtype) for t in tensors.values()]
    types = choose(recipe_of("q8_0"), source.metadata, candidates)
    chosen = [name for name, dtype in types.items() if dtype is DType.Q8_0]
    check_requantized(source, {**types, **dict.fromkeys(chosen, DType.F16)}, allow_requantize)
    weights = sum(t.n_elements for t in tensors.values())
    budget = int(target_bits * weights / 8) - sum(
        nbytes(tensors[name], dtype) for name, dtype in types.items() if name not in set(chosen)
    )
    least = sum(min(nbytes(tensors[n], t) for t in fitting(tensors[n])) for n in chosen)
    if not chosen or least > budget:
        fewest = target_bits + 8 * (least - budget) / weights
        raise ConfigError(
            f"target_bits is {target_bits}; with the types that fit its rows {source.name} has at "
            f"least {fewest:.2f} bits a weight"
        )
    base = unrounded(source, chosen)
    options = {}
    for number, (name, loss) in enumerate(sensitivities(base, text, chosen, target_bits, matrix)):
        options[name] = loss
        progress((number + 1) / len(chosen), name)
    picked = knapsack(options, budget)
    types |= {name: option.dtype for name, option in picked.items()}
    losses = {name: option.loss for name, option in picked.items()}
    return Mixture(types, losses, target_bits, digest(text))


def nbytes(t: TensorInfo, dtype: DType) -> int:
    """Bytes of a tensor in a type."""
    return dtype.row_size(t.shape[0]) * prod(t.shape[1:])


def fitting(t: TensorInfo) -> list[DType]:
    """The types of the ladder whose blocks fill a tensor's rows."""
    return [dtype for dtype in LADDER if t.shape[0] % dtype.block_size == 0]


def unrounded(source: TensorSource, names: Sequence[str]) -> TensorSource:
    """A source whose tensors of these names are not quantised, but F16 where they were."""
    rounded = [name for name in names if source.tensors[name].dtype.is_quantized]
    if not rounded:
        return source
    values = {name: _values(source, name) for name in rounded}
    return SwappedSource(source, _as_f16(source, values), rounded)


def _values(source: TensorSource, name: str) -> np.ndarray:
    """A tensor as float32 [rows, width]."""
    t = source.tensors[name]
    return decode(source.data(name), t.dtype, t.n_elements).reshape(-1, t.shape[0])


def _as_f16(source: TensorSource, values: Mapping[str, np.ndarray]) -> MemorySource:
    tensors = {
        name: (DType.F16, source.tensors[name].shape, rows.astype(np.float16).tobytes())
        for name, rows in values.items()
    }
    return MemorySource({}, tensors)


def sensitivities(
    source: TensorSource,
    text: str,
    names: Sequence[str],
    target_bits: float,
    matrix: ImportanceMatrix,
) -> Iterator[tuple[str, list[Option]]]:
    """Tensor by tensor its options, with their losses.

    Args:
        source: an unquantised one.
        target_bits: the probe is the type next to it; see `probe_of`.
    """
    with load(source, **_how()) as model:
        cut = Chunks.of(model, text, _CONTEXT)
        count = min(cut.count, _CHUNKS)
        parts = list(split_chunks(model, cut.ids, cut.size, count))
        rows = [logits(model, part, cut.first) for part in parts]
    for name in names:
        t = source.tensors[name]
        values = _values(source, name)
        weights = matrix.of(name, t.shape)
        errors = dict(_errors(values, fitting(t), name, weights))
        probe = probe_of(errors, target_bits)
        rounded = _as_f16(source, {name: _rounded(values, probe, name, weights)})
        with load(SwappedSource(source, rounded, [name]), **_how()) as model:
            scores = [score(r, model, p, cut.first) for r, p in zip(rows, parts, strict=True)]
        loss = float(np.mean([s.divergences.mean() for s in scores]))
        scale = loss / errors[probe] if errors[probe] else 0.0
        yield name, [Option(d, nbytes(t, d), e * scale) for d, e in errors.items()]


def probe_of(errors: Mapping[DType, float], target_bits: float) -> DType:
    """The type next to the target whose error tells how sensitive a tensor is: a bit more quarters
    an error, and types whose grid the numbers are on already, which have almost none, are out.

    Args:
        errors: by type, see `_errors`.
    """

    def bits(dtype: DType) -> float:
        return 8 * dtype.type_size / dtype.block_size

    usual = max(error * 4 ** bits(d) for d, error in errors.items())  # of a type with no bits
    off_grid = [d for d in errors if errors[d] * 4 ** bits(d) * _ON_GRID >= usual]
    return min(off_grid, key=lambda d: abs(bits(d) - target_bits))


def _how() -> dict[str, Any]:
    """Load options: the same bits on any number of threads, so that the choice is the same."""
    return {
        "context_length": _CONTEXT,
        "batch_size": _CONTEXT,
        "mmproj": "",
        "rpc": (),
        "gpu_layers": 0,
        "deterministic": True,
    }


def _rounded(values: np.ndarray, dtype: DType, name: str, weights: np.ndarray | None) -> np.ndarray:
    """Values after a way through a type, float32 of the same shape."""
    return decode(encode(values, dtype, name, weights), dtype, values.size).reshape(values.shape)


def _errors(
    values: np.ndarray, dtypes: Sequence[DType], name: str, weights: np.ndarray | None
) -> Iterator[tuple[DType, float]]:
    """The squared error of products with a tensor, by type, from some of its rows.

    Args:
        values: float32 [rows, width].
        weights: mean squares of the inputs, float32 [matrices, width]; None counts all alike.
    """
    matrices = 1 if weights is None else len(weights)
    by_matrix = values.reshape(matrices, -1, values.shape[1])
    step = max(1, values.size // _SAMPLE)
    some = np.ascontiguousarray(by_matrix[:, ::step])
    for dtype in dtypes:
        rounded = _rounded(some.reshape(-1, some.shape[2]), dtype, name, weights)
        squares = (rounded.reshape(some.shape) - some).astype(np.float64) ** 2
        if weights is not None:
            squares *= weights[:, None]
        yield dtype, float(squares.sum())


def knapsack(options: Mapping[str, Sequence[Option]], budget: int) -> dict[str, Option]:
    """An option for each tensor, of little loss in sum and at most `budget` bytes.

    Every tensor begins with its smallest option. Then the step that saves most loss a byte is
    taken, along the lower hull of a tensor's options, as long as it fits.
    """
    hulls = {name: hull(one) for name, one in options.items()}
    at = dict.fromkeys(hulls, 0)
    left = budget - sum(steps[0].nbytes for steps in hulls.values())
    queue: list[tuple[float, str]] = []

    def offer(name: str) -> None:
        steps, i = hulls[name], at[name]
        if i + 1 < len(steps):
            gain = (steps[i].loss - steps[i + 1].loss) / (steps[i + 1].nbytes - steps[i].nbytes)
            heapq.heappush(queue, (-gain, name))

    for name in hulls:
        offer(name)
    while queue:
        _, name = heapq.heappop(queue)
        steps, i = hulls[name], at[name]
        more = steps[i + 1].nbytes - steps[i].nbytes
        if more <= left:  # a tensor whose next step does not fit stays as it is
            left -= more
            at[name] = i + 1
            offer(name)
    return {name: steps[at[name]] for name, steps in hulls.items()}


def hull(options: Sequence[Option]) -> list[Option]:
    """The options on the lower convex hull of loss over bytes, by bytes."""
    kept: list[Option] = []
    for new in sorted(options, key=lambda o: (o.nbytes, o.loss)):
        if kept and new.loss >= kept[-1].loss:
            continue
        while len(kept) > 1 and _above(kept[-2], kept[-1], new):
            kept.pop()
        kept.append(new)
    return kept


def _above(a: Option, b: Option, c: Option) -> bool:
    """Whether b is on or above the line from a to c."""
    return (b.loss - a.loss) * (c.nbytes - a.nbytes) >= (c.loss - a.loss) * (b.nbytes - a.nbytes)
