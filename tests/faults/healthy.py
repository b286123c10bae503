"""The unmodified models: no tool may say no."""

from __future__ import annotations

from pathlib import Path

from ggmodel.workbench.diff import diff
from tests.faults.subjects import ARCHITECTURES, TYPES, Subject, subjects


def false_alarms(cache: Path) -> dict[str, tuple[int, int]]:
    """Type of the weights → number of comparisons by `diff`, and of those that it calls wrong,
    which are printed."""
    found = {}
    for dtype in TYPES:
        compared = wrong = 0
        for architecture in ARCHITECTURES:
            for subject in subjects(architecture):
                for alarm in alarms_of(Subject(architecture, subject.case, dtype), cache):
                    compared += 1
                    wrong += bool(alarm)
                    if alarm:
                        print(alarm, flush=True)
        found[dtype.name] = compared, wrong
    return found


def alarms_of(subject: Subject, cache: Path) -> list[str]:
    """A text for each comparison of a healthy model: empty if all agrees."""
    found = []
    with subject.load(cache) as model:
        for i, reference in enumerate(subject.references(cache)):
            first = diff(model, reference).first
            found.append(
                "" if first is None else f"{subject.name} in {subject.dtype.name}, {i}: {first}"
            )
    return found
