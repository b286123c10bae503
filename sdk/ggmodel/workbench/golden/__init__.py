"""Golden tests: tiny models compared with transformers on the same checkpoint.

`check` runs a model on the goldens of its folder, without torch: weights are derived from the
names of the tensors. `reference` makes goldens with transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...convert import from_hf
from ...convert.quantize import decode, encode
from ...errors import ConfigError, Error, FormatError
from ...gguf_file import DType, MemorySource
from ...loading import load
from ...model import Input, Model, find
from ...model.registry import find_hf, supported
from ...runner import LoadedModel
from ...runner.engine.scoring import Scoring
from ..activations import EXACT
from ..diff.inputs import placeholder_of
from ..diff.preparation import differing
from ..routers import Routing, routed, watched
from . import changes, runs
from .files import GREEDY, Cases, Embeddings, Golden, Picture, Prompt, cases, checkpoint, lossy
from .preparation import Item, Preparation
from .runs import Run, nmse
from .weights import stored_as, uniform, weight

__all__ = [
    "EXACT",
    "GREEDY",
    "Cases",
    "Embeddings",
    "Golden",
    "Outcome",
    "Picture",
    "Prompt",
    "cases",
    "check",
    "checkpoint",
    "compare",
    "laid_out",
    "lossy",
    "nmse",
    "source_of",
    "uniform",
    "weight",
]

R = TypeVar("R")


def each_case(cases: Cases, only: str | None, work: Callable[[str], Iterable[R]]) -> Iterator[R]:
    """The results of `work` for each case, or for one. A case that fails does not hide the others:
    errors are raised after the last case.

    Raises:
        Error: that of the only case that failed.
        ConfigError: several failed; it says how each did.
    """
    errors: dict[str, Error] = {}
    for name in cases.names:
        if only not in (None, name):
            continue
        try:
            yield from work(name)
        except Error as error:
            errors[name] = error
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        lines = (f"  {name}: {error}" for name, error in errors.items())
        raise ConfigError("\n".join([f"{len(errors)} cases of {cases.folder} failed:", *lines]))


# Types of weights that are compared. ggml rounds activations to them, too, at the same products as
# the weights and to as many bits: that moves the results about as far as the reference moves when
# its weights are rounded. In the goldens of this repository it is 0.3 to 2.4 times as far.
REDUCED = DType.F16, DType.BF16, DType.Q8_0
ACTIVATIONS = 4
# On the numpy backend, in float64 and without ggml's tables, only the reference rounds: 1e-12.
FLOAT64 = 1e-10
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
        runs: the same prompt computed in other ways.
        differs: the step of the preparation of a file in which it parts from the reference's
            processor, and how; "" if it does not.
        versions: of torch, transformers and numpy, which made the golden.
    """

    case: str
    rows: int
    nmse: float
    bound: float
    greedy: tuple[int, int] | None = None
    runs: tuple[Run, ...] = ()
    differs: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all errors are below their bounds and all tokens are equal."""
        same = self.greedy is None or self.greedy[0] == self.greedy[1]
        return (
            not self.differs
            and self.nmse < self.bound
            and same
            and all(run.ok for run in self.runs)
        )

    def __str__(self) -> str:
        tokens = "" if self.greedy is None else f", {self.greedy[0]} of {self.greedy[1]} tokens"
        text = f"{self.case}: NMSE {self.nmse:.1e} (bound {self.bound:.0e}){tokens}"
        text = f"{self.case}: {self.differs}" if self.differs else text
        return "; ".join([text, *(str(run) for run in self.runs if not run.ok)])


def source_of(
    golden: Golden | Embeddings, dtype: DType = DType.F32, models: str | Path | None = None
) -> MemorySource:
    """The checkpoint of a golden, converted by the declarations.

    Args:
        dtype: of the file. Each tensor has the type that it has in a converted file, see
            `Golden.types`.
        models: a folder of architectures, searched first.
    """
    cls = architecture_of(golden.folder, golden.config, isinstance(golden, Embeddings), models)
    if dtype is DType.F32:
        return from_hf(cls, golden.config, golden.weights())
    types = stored_as(cls, golden.config, golden.tensors, golden.types, dtype)

    def store(name: str, values: np.ndarray) -> Any:
        kind = types[name]
        if values.ndim < 2 or values.shape[-1] % kind.block_size:
            kind = DType.F32
        data = encode(np.ascontiguousarray(values, np.float32), kind, name)
        return kind, values.shape[::-1] or (1,), data.tobytes()

    return from_hf(cls, golden.config, golden.weights(dtype), store)


def in_float32(source: MemorySource) -> MemorySource:
    """The same numbers in F32; indices stay as they are."""
    tensors = {
        name: (t.dtype, t.shape, bytes(source.data(name)))
        if t.dtype.is_integer
        else (DType.F32, t.shape, decode(source.data(name), t.dtype, t.n_elements).tobytes())
        for name, t in source.tensors.items()
    }
    return MemorySource(dict(source.metadata), tensors, source.name)


def architecture_of(
    folder: Path, config: Mapping[str, Any], embeds: bool, models: str | Path | None = None
) -> type[Model]:
    """The model class of a golden: the one for its class of transformers, or for an embedding model
    the one named like the folder.

    Raises:
        ArchitectureError: there is none.
    """
    if embeds:
        name = folder.resolve().name
        names = (own for own in supported(models) if own.replace("-", "_") == name)
        return find(next(names, name), models, pooled=True)
    return find_hf(config.get("architectures") or (), models)


def check(
    folder: str | Path, case: str | None = None, models: str | Path | None = None, **options: Any
) -> Iterator[Outcome]:
    """Runs the model on each golden of a folder, in float32 throughout, and in every other way of
    `runs`, with weights in F32, F16, BF16 and Q8_0.

    A case that cannot be run does not keep the others from it: its error is raised after the last.

    Args:
        case: only this one.
        models: a folder of architectures, searched first.
        options: of `load`, to override the float32 cache and unfused attention.

    Raises:
        FormatError: a golden is missing or damaged.
        Error: as raised by loading or running the model.
    """
    cases = Cases(Path(folder))
    loading = Loading(cases, models, {"kv_type": "f32", "flash_attention": "off", **options})

    def checked(name: str) -> Iterator[Outcome]:
        golden = cases.load(name)
        for outcome in _outcomes(loading, golden, name):
            yield replace(outcome, versions=golden.versions)

    return each_case(cases, case, checked)


def _outcomes(loading: Loading, golden: Golden | Embeddings, name: str) -> Iterator[Outcome]:
    bound = loading.cases.bounds.get(name, EXACT)
    if isinstance(golden, Embeddings):
        yield _embedded(loading, golden, name, bound)
        return
    with loading.load(source_of(golden, models=loading.models)) as model, routed(model) as routing:
        (first, numbers), *others = _texts(model, golden, name, bound, routing)
        routing.routers = golden.routers
        shift = runs.shifted(model, numbers, bound)
        exact = *_in_float64(loading, golden), *changes.runs(loading, golden, name, FLOAT64)
        others_of_first = *exact, *_rounded(loading, golden, bound)
        yield replace(first, runs=(*first.runs, shift, *others_of_first))
        for picture_name, picture in golden.pictures.items():
            encoded = model.encode_media(picture.kind, picture.pixels, **picture.data)
            rows = np.concatenate([e.rows for e in encoded])
            title = f"{name}, {picture.kind} {picture_name}"
            yield Outcome(title, len(rows), nmse(rows, picture.rows), bound)
        for outcome, _ in others:
            yield outcome
    yield from _prepared(loading, golden, name, bound)


def _prepared(loading: Loading, golden: Golden, name: str, bound: float) -> Iterator[Outcome]:
    """The case's files, prepared by the model, beside the reference's processor: the prepared
    values, the tokens, and the logits of the last one."""
    preparation = Preparation.load(loading.cases.folder, name)
    if preparation is None:
        if name in getattr(loading.cases.module, "FILES", {}):
            path = loading.cases.folder / "prepared" / f"{name}.npz"
            raise FormatError(f"there is no {path}: `ggmodel golden --update` makes it, with torch")
        return
    config = {**golden.config, **preparation.documents}
    source = source_of(replace(golden, config=config), models=loading.models)
    with loading.load(source) as model:
        for title, item in preparation.items.items():
            case = f"{name}, file {title}"
            if differs := _differing(model, golden, item):
                yield Outcome(case, len(item.ids), float("inf"), bound, differs=differs)
                continue
            last = model.logits(item.prompt)[-1]
            yield Outcome(case, len(item.ids), nmse(last, item.logits), bound)


def _differing(model: LoadedModel, golden: Golden, item: Item) -> str:
    """How the prepared values or the tokens of a file differ from the reference's, as "preparation,
    STEP: …"; "" if they do not."""
    modality = model.engine.images.modality(item.kind)
    try:
        prepared = modality.prepare(modality.open(item.file))
    except Exception as error:  # of any kind: the model's author wrote it
        return f"preparation, preparing fails: {type(error).__name__}: {error}"
    inputs, token = {**item.inputs, "input_ids": item.ids}, placeholder_of(golden.config, item.kind)
    return differing(model, item.kind, prepared, inputs, item.prompt, token, exact=True)


@dataclass(frozen=True)
class Loading:
    """How the models of a folder are loaded.

    Attributes:
        options: of `load`.
    """

    cases: Cases
    models: str | Path | None
    options: Mapping[str, Any]

    def load(self, source: MemorySource, **options: Any) -> LoadedModel:
        given: dict[str, Any] = {**self.options, **options}
        if given.get("backend") == "reference":  # float64 needs no order
            given.pop("deterministic", None)
        elif given.get("deterministic"):
            given["flash_attention"] = "on"
        model = load(source, models=self.models, **given)
        # Lets it find special tokens by name.
        special = getattr(self.cases.module, "SPECIAL", None)
        if special is not None:
            model.model.tokenizer = _Named(special)
        return model


class _Named:
    """Stands in for the tokenizer of a golden, which has no vocabulary: knows texts by name."""

    def __init__(self, ids: Mapping[str, int]):
        self.id_of_text = ids.get
        self._ids = ids

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """The ids of a text that a model lays among the rows of an item."""
        ids: list[int] = []
        while text:
            fitting = [name for name in self._ids if name and text.startswith(name)]
            if not fitting:
                raise ConfigError(f"SPECIAL of cases.py names no beginning of {text!r:.80}")
            longest = max(fitting, key=len)
            ids.append(self._ids[longest])
            text = text[len(longest) :]
        return ids


def _texts(
    model: LoadedModel, golden: Golden, name: str, bound: float, routing: Routing
) -> Iterator[tuple[Outcome, np.ndarray]]:
    """The golden's prompts, the one without images first, and each as numbers."""
    prompts: dict[str, tuple[list[Any], Golden | Prompt]]
    prompts = {name: (text_of(model, golden), golden)}
    for title, prompt in golden.prompts.items():
        prompts[f"{name}, prompt {title}"] = laid_out(model, golden, prompt), prompt
    for case, (items, want) in prompts.items():
        routing.routers = want.routers
        numbers = model.prompts.read(items)
        logits = Scoring(model.engine).all_logits(numbers)
        tokens = model.generate(items, max_tokens=len(want.greedy), temperature=0).tokens
        same = sum(a == b for a, b in zip(tokens, want.greedy.tolist(), strict=False))
        error = nmse(logits, want.logits)
        others = tuple(runs.Prompt(model, numbers, want.logits, bound).runs())
        yield Outcome(case, len(logits), error, bound, (same, len(want.greedy)), others), numbers


def _in_float64(loading: Loading, golden: Golden) -> Iterator[Run]:
    """The prompts and images by numpy: the worst of them. Small faults show, such as another
    epsilon, or GELU by erf for tanh. Then the choices of its routers, if it has any."""
    source = source_of(golden, models=loading.models)
    with loading.load(source, backend="reference") as model, routed(model) as routing:
        errors, misled = [], dict[str, str]()

        def compute(items: list[Any], want: Golden | Prompt) -> None:
            routing.routers = want.routers
            if want.routers:
                logits = watched(model, routing, model.prompts.read(items))
            else:
                logits = model.logits(items)
            errors.append(nmse(logits, want.logits))
            misled.update(routing.misled(FLOAT64))

        compute(text_of(model, golden), golden)
        for picture in golden.pictures.values():
            encoded = model.encode_media(picture.kind, picture.pixels, **picture.data)
            errors.append(nmse(np.concatenate([e.rows for e in encoded]), picture.rows))
        for prompt in golden.prompts.values():
            compute(laid_out(model, golden, prompt), prompt)
    yield Run("float64", max(errors), FLOAT64)
    wrong = routing.problem or "; ".join(f"{name}: {text}" for name, text in misled.items())
    if golden.routers:
        yield Run("routers", np.inf if wrong else 0.0, FLOAT64, wrong)


def _rounded(loading: Loading, golden: Golden, bound: float) -> Iterator[Run]:
    """The prompt with rounded weights. The golden has the logits of those in F16 and Q8_0; BF16 is
    compared with the same weights in F32. The bound follows from how far rounded weights move the
    reference."""
    of_f16 = nmse(golden.logits_f16, golden.logits)
    recorded = {DType.F16: golden.logits_f16, DType.BF16: None, DType.Q8_0: golden.logits_q8_0}
    for dtype, want in recorded.items():
        source = source_of(golden, dtype, loading.models)
        # BF16 has 3 bits less than F16, and errors 8 times as large.
        moved = 8**2 * of_f16 if want is None else nmse(want, golden.logits)
        if want is None:
            with loading.load(in_float32(source)) as model, routed(model, golden.routers):
                want = model.logits(text_of(model, golden))
        with loading.load(source) as model, routed(model, golden.routers):
            most = bound + ACTIVATIONS * moved
            yield Run(dtype.name, nmse(model.logits(text_of(model, golden)), want), most)


def _embedded(loading: Loading, golden: Embeddings, name: str, bound: float) -> Outcome:
    ways = loading.cases.ways(golden.config)

    def vectors(model: LoadedModel, groups: list[list[list[int]]]) -> np.ndarray:
        each = [np.concatenate([model.embed(g, pooling=way) for g in groups]) for way in ways]
        return np.concatenate(each, axis=1)

    together, apart = [golden.texts], [[text] for text in golden.texts]
    with loading.load(source_of(golden, models=loading.models)) as model:
        error = nmse(vectors(model, together), golden.vectors)
        others = [Run("each text alone", nmse(vectors(model, apart), golden.vectors), bound)]
    with loading.load(source_of(golden, models=loading.models), backend="reference") as model:
        others.append(Run("float64", nmse(vectors(model, together), golden.vectors), FLOAT64))
    for dtype in REDUCED:
        source = source_of(golden, dtype, loading.models)
        with loading.load(source) as model, loading.load(in_float32(source)) as exact:
            got, want = vectors(model, together), vectors(exact, together)
        most = bound + ACTIVATIONS * nmse(want, golden.vectors)
        others.append(Run(dtype.name, nmse(got, want), most))
    return Outcome(name, len(golden.texts), error, bound, None, tuple(others))


def text_of(model: Any, golden: Golden) -> list[Any]:
    """The prompt without items, for a loaded model: inputs of the decoder."""
    ids = golden.prompt.tolist()
    return [Input(id) for id in ids] if model.model.prompt_item else ids


def laid_out(model: Any, golden: Golden, prompt: Prompt) -> list[Any]:
    """The items of a prompt for a loaded model, with embeddings for its images."""
    items: list[Any] = []
    for part in prompt.parts:
        if isinstance(part, str):
            picture = golden.pictures[part]
            items.append(model.embeddings(picture.pixels, picture.kind, **picture.data))
        else:
            items += part
    return items


def compare(got: Golden | Embeddings, want: Golden | Embeddings) -> list[str]:
    """The names of the parts in which a regenerated golden differs from the stored one."""
    wrong = [name for name in ("config", "tensors") if getattr(got, name) != getattr(want, name)]
    if isinstance(got, Golden) and isinstance(want, Golden):
        wrong += ["changes"] * (got.changes != want.changes)
        pairs = ((p, want.pictures[name]) for name, p in got.pictures.items())
        wrong += [a.name for a, b in pairs if (a.shape, a.data) != (b.shape, b.data)]
    stored, made = want.arrays(), got.arrays()
    wrong += sorted(stored.keys() - made.keys())
    for name, a in made.items():
        if name not in stored and "routers." in name:
            continue  # an older file: no router is near a tie in its prompts
        b = stored[name]
        # Experts of groups that are left out have a score of -∞.
        numbers = [np.nan_to_num(x, neginf=0.0) for x in (a, b)]
        same = np.array_equal(a, b) if a.dtype == np.int32 else nmse(*numbers) <= TOLERANCE
        same = np.array_equal(np.isneginf(a), np.isneginf(b)) and (same or a.size == b.size == 0)
        if not same and not name.endswith("margins"):
            wrong.append(name.removeprefix("prompts.").removeprefix("pictures."))
    return wrong
