"""A model beside its reference, module by module: the first one that computes something else.

Modules are paired by the declarations alone. Each is judged by what it makes of its input: a module
that merely passes an error on is not at fault. Nested modules are judged innermost first.
"""

from .compare import diff, need_same_kind
from .inputs import fitting_context, placeholder_of, same_item, same_tokens
from .report import Diff, ModuleDiff, by_layer, worst

__all__ = [
    "Diff",
    "ModuleDiff",
    "by_layer",
    "diff",
    "fitting_context",
    "need_same_kind",
    "placeholder_of",
    "same_item",
    "same_tokens",
    "worst",
]
