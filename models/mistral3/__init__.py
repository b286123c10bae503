"""Mistral 3, Ministral 3 and Pixtral."""

from .model import Mistral3

__all__ = ["Mistral3"]
