"""Hugging Face checkpoints as GGUF, by the declarations of models; and quantised files."""

from .checkpoint import Checkpoint
from .checkpoint_source import CheckpointSource
from .declaration import Entry, plan
from .export import convert
from .from_hf import from_hf, metadata_of, normalize
from .quantize import quantize

__all__ = [
    "Checkpoint",
    "CheckpointSource",
    "Entry",
    "convert",
    "from_hf",
    "metadata_of",
    "normalize",
    "plan",
    "quantize",
]
