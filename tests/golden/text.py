"""Models of text among the goldens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import ggmodel
from ggmodel import DType
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import source_of
from ggmodel.workbench.routers import routed
from tests.golden.files import HERE, Golden, cases, load_golden


def of_text(arch: str) -> bool:
    """Whether an architecture's goldens are of text alone; those with images have tests of their
    own, with all that is said here of text."""
    return not hasattr(import_module(f"tests.golden.{arch}.cases"), "PICTURES")


# Architectures with images whose other cases are tested as those of text are.
MIXED = {"gemma4"}
TEXT = sorted(
    arch for file in HERE.glob("*/cases.py") if (arch := file.parent.name) in MIXED or of_text(arch)
)


def _without_pictures(arch: str) -> list[str]:
    seeing = getattr(import_module(f"tests.golden.{arch}.cases"), "PICTURES", {})
    return [case for case in cases(arch) if case not in seeing]


CASES = [f"{arch}/{case}" for arch in TEXT for case in _without_pictures(arch)]


def golden_of(name: str) -> Golden:
    """The golden called ARCHITECTURE/CASE."""
    return load_golden(*name.split("/"))


@contextmanager
def loaded(golden: Golden, dtype: DType = DType.F32, **options: Any) -> Iterator[LoadedModel]:
    """The model of a golden, with its choices of experts."""
    with (
        ggmodel.load(source_of(golden, dtype), **options) as model,
        routed(model, golden.routers),
    ):
        yield model
