"""Choosing the next token."""

from .probabilities import log_probabilities, log_probability
from .sampler import Constraint, Sampler, Sampling

__all__ = ["Constraint", "Sampler", "Sampling", "log_probabilities", "log_probability"]
