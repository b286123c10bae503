"""Choosing the next token."""

from .probabilities import log_probabilities, log_probability
from .sampler import Sampler, Sampling

__all__ = ["Sampler", "Sampling", "log_probabilities", "log_probability"]
