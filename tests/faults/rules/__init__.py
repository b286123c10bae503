"""The rules that seed faults: each finds its places in the tree of any model file.

A rule is a function from a `Source` to `Seed`s. A seed is one fault: the edits that make it, and
whom `ggmodel diff` must blame: the class around the edit, unless the seed says otherwise.
"""

from . import attention, feedforward, images, layers, neutral
from .seeds import RULES, Seed

__all__ = ["RULES", "Seed", "attention", "feedforward", "images", "layers", "neutral"]
