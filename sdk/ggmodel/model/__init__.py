"""Declarative models: fields, hyperparameters, the reflective loader, the registry."""

from __future__ import annotations

from .batch import Batch, Step
from .cache import CacheSpec
from .config import Config
from .fields import gguf, kv
from .loader import LoadReport, Missing, WrongShape, fill
from .memory import LayerMemory, Rotation
from .model import Model, config_class
from .module import Module
from .multimodal import Input, Multimodal, MultimodalEmbedding, Pixels, Span
from .operations import (
    Computed,
    Every,
    MXFP4Blocks,
    Operation,
    Part,
    PermuteRope,
    Plus,
    Sources,
    Stack,
    Transpose,
)
from .registry import find, find_hf, register, supported

__all__ = [
    "Batch",
    "CacheSpec",
    "Computed",
    "Config",
    "Every",
    "Input",
    "LayerMemory",
    "LoadReport",
    "MXFP4Blocks",
    "Missing",
    "Model",
    "Module",
    "Multimodal",
    "MultimodalEmbedding",
    "Operation",
    "Part",
    "PermuteRope",
    "Pixels",
    "Plus",
    "Rotation",
    "Sources",
    "Span",
    "Stack",
    "Step",
    "Transpose",
    "WrongShape",
    "config_class",
    "fill",
    "find",
    "find_hf",
    "gguf",
    "kv",
    "register",
    "supported",
]
