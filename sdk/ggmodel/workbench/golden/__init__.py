"""Golden tests: tiny models compared with transformers on the same checkpoint.

`check` runs a model on the goldens of its folder, without torch: weights are derived from the names
of the tensors. `reference` makes goldens with transformers.
"""

from .check import EXACT, Outcome, check, compare, laid_out, source_of
from .files import GREEDY, Cases, Embeddings, Golden, Picture, Prompt, cases, checkpoint, lossy
from .runs import nmse
from .weights import uniform, weight

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
