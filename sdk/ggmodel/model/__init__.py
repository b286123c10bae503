"""Declarative models: fields, hyperparameters, the reflective loader, the registry."""

from .batch import Batch, Step
from .cache import CacheSpec, LayerMemory, Rotation
from .config import Config
from .loader import fill
from .model import Model, VisionModel, config_class
from .module import Module, gguf, kv
from .multimodal import (
    Input,
    Modality,
    Multimodal,
    MultimodalEmbedding,
    Numbers,
    Pixels,
    Prepared,
    Span,
    Speech,
    SpeechPrompt,
)
from .operations import (
    AddConstant,
    Chain,
    Computed,
    Interleaved,
    LastRows,
    MXFP4Blocks,
    NegatedExp,
    Operation,
    Part,
    PartsOfHeads,
    PermuteRope,
    Reshape,
    Sources,
    Stack,
    Transpose,
)
from .registry import find, find_hf, register, supported
from .report import LoadReport, Missing, WrongShape

__all__ = [
    "AddConstant",
    "Batch",
    "CacheSpec",
    "Chain",
    "Computed",
    "Config",
    "Input",
    "Interleaved",
    "LastRows",
    "LayerMemory",
    "LoadReport",
    "MXFP4Blocks",
    "Missing",
    "Modality",
    "Model",
    "Module",
    "Multimodal",
    "MultimodalEmbedding",
    "NegatedExp",
    "Numbers",
    "Operation",
    "Part",
    "PartsOfHeads",
    "PermuteRope",
    "Pixels",
    "Prepared",
    "Reshape",
    "Rotation",
    "Sources",
    "Span",
    "Speech",
    "SpeechPrompt",
    "Stack",
    "Step",
    "Transpose",
    "VisionModel",
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
