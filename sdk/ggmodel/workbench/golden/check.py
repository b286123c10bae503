"""Checks a model against its golden files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ... import runner
from ...convert import from_hf
from ...gguf_file import DType, MemorySource
from ...model import Model, find
from ...model.names import of_vision
from ...model.registry import find_hf
from ..comparison import EXACT
from .files import GREEDY, Cases, Embeddings, Golden, Prompt

TOLERANCE = 1e-12  # NMSE of a regenerated golden: another machine, or another version of torch


@dataclass(frozen=True)
class Outcome:
    """The error of a model in one case.

    Attributes:
        case: with the image or the prompt, if it has several.
        rows: number of compared rows: tokens, rows of an image, or texts.
        nmse: Σ(got − want)² / Σ want² over all values of all rows.
        bound: `nmse` must stay below it.
        greedy: equal tokens of the greedy continuation, and their number; None without one.
    """

    case: str
    rows: int
    nmse: float
    bound: float
    greedy: tuple[int, int] | None = None

    @property
    def ok(self) -> bool:
        """Whether the error is below its bound and all tokens are equal."""
        same = self.greedy is None or self.greedy[0] == self.greedy[1]
        return self.nmse < self.bound and same

    def __str__(self) -> str:
        tokens = "" if self.greedy is None else f", {self.greedy[0]} of {self.greedy[1]} tokens"
        return f"{self.case}: NMSE {self.nmse:.1e} (bound {self.bound:.0e}){tokens}"


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Σ(got − want)² / Σ want²; infinite if shapes differ or a value is not finite."""
    if got.shape != want.shape:
        return float("inf")
    got, want = got.astype(np.float64), want.astype(np.float64)
    found = ((got - want) ** 2).sum() / (want**2).sum()
    return float(found) if np.isfinite(found) else float("inf")


def source_of(
    golden: Golden | Embeddings, dtype: DType = DType.F32, models: str | Path | None = None
) -> MemorySource:
    """The checkpoint of a golden, converted by the declarations.

    Args:
        dtype: of matrices, except routers, biases of experts, and vision.
        models: a folder of architectures, searched first.
    """
    return from_hf(
        architecture_of(golden, models), golden.config, golden.weights(), _stored_as(dtype)
    )


def architecture_of(golden: Golden | Embeddings, models: str | Path | None = None) -> type[Model]:
    """The model class of a golden: the one for its class of transformers, or for an embedding model
    the one named like the folder."""
    if isinstance(golden, Embeddings):
        return find(golden.folder.resolve().name, models, pooled=True)
    return find_hf(golden.config.get("architectures") or (), models)


def _stored_as(dtype: DType) -> Callable[[str, np.ndarray], Any]:
    import gguf

    kind = gguf.GGMLQuantizationType(dtype.value)

    def store(name: str, values: np.ndarray) -> Any:
        exact = name.endswith(("ffn_gate_inp.weight", ".bias")) or of_vision(name)
        if dtype is DType.F32 or values.ndim < 2 or exact:
            return values.astype(np.float32)
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        return dtype, values.shape[::-1], data.tobytes()

    return store


def check(
    folder: str | Path, case: str | None = None, models: str | Path | None = None, **options: Any
) -> Iterator[Outcome]:
    """Runs the model on each golden of a folder, in float32 throughout.

    Args:
        case: only this one.
        models: a folder of architectures, searched first.
        options: of `load`, to override the float32 cache and unfused attention.

    Raises:
        FormatError: a golden is missing or damaged.
        Error: as raised by loading or running the model.
    """
    folder, given = Path(folder), {"kv_type": "f32", "flash_attention": "off", **options}
    wanted = Cases(folder)
    for name in wanted.names:
        if case not in (None, name):
            continue
        golden, bound = wanted.load(name), wanted.bounds.get(name, EXACT)
        with runner.load(source_of(golden, models=models), models=models, **given) as model:
            if isinstance(golden, Golden):
                _name_tokens(model, wanted)
                yield from _outcomes(model, golden, name, bound)
                continue
            ways = getattr(wanted.module, "POOLING", (None,))
            vectors = [model.embed(golden.texts, pooling=way) for way in ways]
        got = np.concatenate(vectors, axis=1)
        yield Outcome(name, len(got), nmse(got, golden.vectors), bound)


def _name_tokens(model: Any, wanted: Cases) -> None:
    """Lets a model find special tokens by name, from SPECIAL of cases.py."""
    special = getattr(wanted.module, "SPECIAL", None)
    if special is not None:
        model.model.tokenizer = SimpleNamespace(id_of_text=special.get)


def _outcomes(model: Any, golden: Golden, name: str, bound: float) -> Iterator[Outcome]:
    yield _text(model, name, golden.prompt.tolist(), golden, bound)
    for seen, picture in golden.pictures.items():
        encoded = model.encode_image(picture.pixels, **picture.data)
        rows = np.concatenate([e.rows for e in encoded])
        yield Outcome(f"{name}, image {seen}", len(rows), nmse(rows, picture.rows), bound)
    for asked, prompt in golden.prompts.items():
        items = laid_out(model, golden, prompt)
        yield _text(model, f"{name}, prompt {asked}", items, prompt, bound)


def _text(model: Any, case: str, items: list[Any], want: Golden | Prompt, bound: float) -> Outcome:
    logits = model.logits(items)
    found = model.generate(items, max_tokens=GREEDY, temperature=0).tokens
    same = sum(a == b for a, b in zip(found, want.greedy.tolist(), strict=False))
    return Outcome(case, len(logits), nmse(logits, want.logits), bound, (same, len(want.greedy)))


def laid_out(model: Any, golden: Golden, prompt: Prompt) -> list[Any]:
    """The items of a prompt for a loaded model, with embeddings for its images."""
    items: list[Any] = []
    for part in prompt.parts:
        if isinstance(part, str):
            picture = golden.pictures[part]
            items.append(model.embeddings(picture.pixels, **picture.data))
        else:
            items += part
    return items


def compare(got: Golden | Embeddings, want: Golden | Embeddings) -> list[str]:
    """The names of the parts in which a regenerated golden differs from the stored one."""
    wrong = [name for name in ("config", "tensors") if getattr(got, name) != getattr(want, name)]
    if isinstance(got, Golden) and isinstance(want, Golden):
        pairs = ((p, want.pictures[name]) for name, p in got.pictures.items())
        wrong += [a.name for a, b in pairs if (a.shape, a.data) != (b.shape, b.data)]
    stored = want.arrays()
    for name, a in got.arrays().items():
        b = stored[name]
        same = np.array_equal(a, b) if a.dtype == np.int32 else nmse(a, b) <= TOLERANCE
        if not same and not name.endswith("margins"):
            wrong.append(name.removeprefix("prompts.").removeprefix("pictures."))
    return wrong
