"""Arcee's AFM."""

from .model import Arcee

__all__ = ["Arcee"]
