"""The models of a server: their names, and the runners that hold them."""

from .pool import ModelPool

__all__ = ["ModelPool"]
