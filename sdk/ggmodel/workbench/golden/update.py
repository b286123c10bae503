"""Makes goldens with transformers, or verifies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError, Error
from .check import compare, nmse
from .files import Cases, Embeddings, Golden


@dataclass(frozen=True)
class Made:
    """A golden that was made or verified.

    Attributes:
        path: its file.
        differs: when verified, the parts in which the file differs from transformers now.
        margin: the least distance of the top two logits in its greedy continuation; None for
            embeddings.
        f16, q8_0: NMSE of the logits of rounded weights; None for embeddings.
    """

    case: str
    path: Path
    differs: tuple[str, ...] = ()
    margin: float | None = None
    f16: float | None = None
    q8_0: float | None = None


def update(folder: Path, case: str | None = None, verify: bool = False) -> Iterator[Made]:
    """Makes the goldens of a folder and writes each as soon as it is done.

    Args:
        case: only this one.
        verify: recompute the stored goldens on their prompts and compare; write nothing.

    Raises:
        Unsupported: torch or transformers is missing.
        ConfigError: a configuration cannot be computed.
        FormatError: a file to verify is missing or damaged.
    """
    cases = Cases(folder)
    from . import reference

    reference.quiet()
    for name in cases.names:
        if case not in (None, name):
            continue
        want = cases.load(name) if verify else None
        with _computing(cases, name):
            if name in cases.embeddings:
                golden = reference.embeddings(cases, name)
            else:
                assert not isinstance(want, Embeddings)
                golden = reference.Case(cases, name).compute(want)
        differs = () if want is None else tuple(compare(golden, want))
        if want is None:
            golden.save(name)
        figures: tuple[float, ...] = ()
        if isinstance(golden, Golden):
            rounded = golden.logits_f16, golden.logits_q8_0
            lost = (nmse(logits, golden.logits) for logits in rounded)
            figures = float(golden.greedy_margins.min()), *lost
        yield Made(name, cases.path(name), differs, *figures)


@contextmanager
def _computing(cases: Cases, case: str) -> Iterator[None]:
    """Turns any error of transformers into a `ConfigError` that names the case."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{cases.folder / 'cases.py'}: the case {case!r} cannot be computed with transformers: "
            f"{type(error).__name__}: {reason}"
        ) from error
