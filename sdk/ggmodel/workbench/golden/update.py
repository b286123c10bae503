"""Makes goldens with transformers, or verifies them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ArchitectureError, ConfigError, Error
from . import FLOAT64, REDUCED, Outcome, check, compare, each_case
from .files import Cases, Embeddings, Golden
from .preparation import Preparation
from .runs import nmse

_REASON = 400  # characters of an error of transformers


@dataclass(frozen=True)
class Made:
    """A golden that was made or verified.

    Attributes:
        path: its file.
        differs: when verified, the parts in which the file differs from transformers now.
        margin: the least distance of the top two logits in its greedy continuation; None for
            embeddings.
        f16, q8_0: NMSE of the logits of rounded weights; None for embeddings.
        versions: of torch, transformers and numpy, which have computed it now.
        before: when verified, of those that had made the file.
    """

    case: str
    path: Path
    differs: tuple[str, ...] = ()
    margin: float | None = None
    f16: float | None = None
    q8_0: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)


def update(
    folder: Path,
    case: str | None = None,
    verify: bool = False,
    *,
    models: str | Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Made]:
    """Makes the goldens of a folder and writes each as soon as it is done. A case that cannot be
    made does not keep the others from it: its error is raised after the last.

    Args:
        case: only this one.
        verify: recompute the stored goldens on their prompts and compare; write nothing.
        models: a folder of architectures, searched first. Their fields say which tensors a
            quantised file rounds.
        tell: called with the case and what is computed of it.

    Raises:
        Unsupported: torch or transformers is missing.
        ConfigError: a configuration cannot be computed, or several cannot; or rounding alone takes
            a right model further from the golden than the check of it allows.
        ArchitectureError: a function of cases.py fails; names the line.
        FormatError: a file to verify is missing or damaged.
    """
    cases = Cases(folder)
    from . import reference

    reference.quiet()

    def make(name: str) -> Iterator[Made]:
        want = cases.load(name) if verify else None
        preparation = None
        with _computing(cases, name):
            if name in cases.embeddings:
                tell(f"{name}: texts")
                golden = reference.embeddings(cases, name, models)
            else:
                assert not isinstance(want, Embeddings)
                golden = reference.Case(cases, name, models, tell).compute(want)
                preparation = reference.prepared(cases, name, golden)
        differs = () if want is None else tuple(compare(golden, want))
        if want is None:
            golden.save(name)
            if preparation is not None:
                preparation.save(folder, name)
            tell(f"{name}: checking rounded weights")
            _hold_rounded(cases, name, models)
        elif preparation is not None:
            differs += preparation.differing(Preparation.load(folder, name))
        margin = f16 = q8_0 = None
        if isinstance(golden, Golden):
            margin = float(golden.greedy_margins.min())
            f16 = nmse(golden.logits_f16, golden.logits)
            q8_0 = nmse(golden.logits_q8_0, golden.logits)
        before = {} if want is None else want.versions
        path = cases.path(name)
        yield Made(name, path, differs, margin, f16, q8_0, golden.versions, before)

    return each_case(cases, case, make)


def _hold_rounded(cases: Cases, name: str, models: str | Path | None) -> None:
    """Refuses a case whose rounded weights the check calls different although the model is right.
    A model that is not written yet, or is wrong, is not judged."""
    outcome: Outcome | None = None
    with suppress(Error):
        outcome = next(iter(check(cases.folder, name, models)))
    if outcome is None or not outcome.nmse < outcome.bound:
        return
    exact = [run for run in outcome.runs if run.name == "float64"]
    reduced = {dtype.name for dtype in REDUCED}
    wrong = [str(run) for run in outcome.runs if run.name in reduced and not run.ok]
    if wrong and all(run.nmse < FLOAT64 for run in exact):
        raise ConfigError(
            f"{name}: the golden is written, but rounding alone would fail it: {'; '.join(wrong)}. "
            "Change the configuration (fewer layers, another width), or the weights by `weight` in "
            f"{cases.folder / 'cases.py'}"
        )


@contextmanager
def _computing(cases: Cases, case: str) -> Iterator[None]:
    """Turns any error of transformers into a `ConfigError` that names the case, and one of a
    function of cases.py into an `ArchitectureError` that names the line."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        file = cases.module.__file__
        # All of it: transformers' validators write the reason below the first line.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_REASON]}"
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        if own:
            raise ArchitectureError(
                f"{file}:{own[-1].lineno} in {own[-1].name}: the case {case!r}: {reason}"
            ) from error
        raise ConfigError(
            f"{cases.folder / 'cases.py'}: the case {case!r} cannot be computed with transformers: "
            f"{reason}"
        ) from error
