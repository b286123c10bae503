"""One evaluator for each op of the table, on values and on shapes."""

from ..elements import BYTEWISE, EVALUATORS, Evaluator
from . import arithmetic, shaping

__all__ = ["BYTEWISE", "EVALUATORS", "Evaluator", "arithmetic", "shaping"]
