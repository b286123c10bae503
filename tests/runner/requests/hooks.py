"""Results of transformers' hooks for tiny models, in `hooks/`."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent / "hooks"
CASES = {
    "llama": "plain_gqa",
    "gemma3": "every_3rd",
    "qwen3": "plain",
    "gpt_oss": "released",
    "qwen35": "published",
}
LAYER = 1  # whose parts are captured, and whose result is patched


def direction(width: int) -> np.ndarray:
    """Numbers float32 [width] that are added to a layer's result."""
    return np.cos(np.arange(width, dtype=np.float64) * 1.7).astype(np.float32)
