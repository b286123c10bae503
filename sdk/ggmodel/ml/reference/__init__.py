"""The tensor interface in numpy and float64, the yardstick for every other backend."""

from ..registry import register_backend
from .reference_backend import ReferenceBackend

__all__ = ["ReferenceBackend"]

register_backend("reference", ReferenceBackend)
