"""Models of text among the goldens."""

from __future__ import annotations

from importlib import import_module

from tests.golden.files import HERE, Golden, cases, load_golden


def of_text(arch: str) -> bool:
    """Whether an architecture's goldens are of text alone; those with images have tests of their
    own, with all that is said here of text."""
    return not hasattr(import_module(f"tests.golden.{arch}.cases"), "PICTURES")


TEXT = sorted(arch for file in HERE.glob("*/cases.py") if of_text(arch := file.parent.name))
CASES = [f"{arch}/{case}" for arch in TEXT for case in cases(arch)]


def golden_of(name: str) -> Golden:
    """The golden called ARCHITECTURE/CASE."""
    return load_golden(*name.split("/"))
