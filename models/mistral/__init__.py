"""Mistral."""

from .model import Mistral

__all__ = ["Mistral"]
