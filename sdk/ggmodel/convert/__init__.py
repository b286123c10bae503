"""Hugging Face checkpoints as GGUF, by the declarations of models; and quantised files."""

from .checkpoint_source import CheckpointSource
from .declaration import plan
from .export import convert
from .from_hf import from_hf, metadata_of, normalize
from .quantize import quantize

__all__ = [
    "CheckpointSource",
    "convert",
    "from_hf",
    "metadata_of",
    "normalize",
    "plan",
    "quantize",
]
