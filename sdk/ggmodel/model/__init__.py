"""Declarative models: fields, hyperparameters, the reflective loader, the registry."""

from __future__ import annotations

from .batch import Batch, Step
from .config import Config
from .fields import gguf, kv
from .loader import LoadReport, Missing, WrongShape, fill
from .model import Model, config_class
from .module import Module
from .multimodal import Embedding, Input, Multimodal, Pixels, Span
from .operations import Computed, Operation, Part, PermuteRope, Plus, Sources, Stack, Transpose
from .registry import find, register, supported

__all__ = [
    "Batch",
    "Computed",
    "Config",
    "Embedding",
    "Input",
    "LoadReport",
    "Missing",
    "Model",
    "Module",
    "Multimodal",
    "Operation",
    "Part",
    "PermuteRope",
    "Pixels",
    "Plus",
    "Sources",
    "Span",
    "Stack",
    "Step",
    "Transpose",
    "WrongShape",
    "config_class",
    "fill",
    "find",
    "gguf",
    "kv",
    "register",
    "supported",
]
