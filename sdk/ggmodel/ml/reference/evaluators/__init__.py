"""One evaluator for each op of the table, grouped by theme as in `ml/ops`."""

from . import (
    attention,
    elementwise,
    indexing,
    products,
    recurrent,
    reductions,
    shaping,
    spatial,
    windows,
)
from .table import BYTEWISE, EVALUATORS, Evaluator

__all__ = [
    "BYTEWISE",
    "EVALUATORS",
    "Evaluator",
    "attention",
    "elementwise",
    "indexing",
    "products",
    "recurrent",
    "reductions",
    "shaping",
    "spatial",
    "windows",
]
