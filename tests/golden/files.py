"""The goldens of this repository, by name."""

from pathlib import Path

from ggmodel.workbench import golden
from ggmodel.workbench.golden import (
    GREEDY,
    Embeddings,
    Golden,
    Picture,
    Prompt,
    checkpoint,
    lossy,
)

__all__ = [
    "GREEDY",
    "HERE",
    "Embeddings",
    "Golden",
    "Picture",
    "Prompt",
    "cases",
    "checkpoint",
    "load_embeddings",
    "load_golden",
    "lossy",
]

HERE = Path(__file__).parent


def load_golden(arch: str, case: str) -> Golden:
    return Golden.load(HERE / arch / f"{case}.npz")


def load_embeddings(arch: str, case: str) -> Embeddings:
    return Embeddings.load(HERE / arch / "embeddings" / f"{case}.npz")


def cases(arch: str, kind: str = "") -> list[str]:
    """The names of the committed files of an architecture; kind: "embeddings"."""
    return golden.cases(HERE / arch / kind)
