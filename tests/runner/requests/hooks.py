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

# Architecture → its golden, and modules of transformers; the first is patched.
ENCODERS = {
    "bert": (
        "reranker",
        "bert.encoder.layer.1",
        "bert.embeddings.LayerNorm",
        "bert.encoder.layer.1.attention",
        "bert.encoder.layer.1.attention.self.value",
        "bert.encoder.layer.2.output.dense",
        "bert.pooler.dense",
    ),
    "modern_bert": (
        "head",
        "model.layers.1",
        "model.layers.0",
        "model.layers.2.attn",
        "model.layers.2.mlp",
        "head.norm",
    ),
}
TOWERS = {
    "lfm2vl": (
        "experts",
        "model.vision_tower.encoder.layers.0",
        "model.vision_tower.encoder.layers.1",
        "model.vision_tower.encoder.layers.1.self_attn.v_proj",
        "model.multi_modal_projector.linear_1",
    ),
    "whisper": (
        "published",
        "model.encoder.layers.0",
        "model.encoder.layers.1",
        "model.encoder.layers.1.self_attn",
        "model.encoder.layer_norm",
    ),
}

# The same for a pair of texts that are ranked, of BERT's golden "reranker": token ids, the text
# that each belongs to, modules.
PAIR = [2, 4, 5, 3, 7, 8, 5, 7, 6, 3], [0] * 4 + [1] * 6
PAIR_MODULES = ("bert.encoder.layer.1", "bert.encoder.layer.0", "bert.pooler.dense", "classifier")
# Family of `sentences.labels_tokens` → modules of heads that label tokens.
LABELS = {
    "bert": ("bert.encoder.layer.1", "bert.encoder.layer.0.attention", "classifier"),
    "modernbert": ("model.layers.1", "model.layers.2.mlp", "head.norm", "classifier"),
}


def direction(width: int) -> np.ndarray:
    """Numbers float32 [width] that are added to a layer's result."""
    return np.cos(np.arange(width, dtype=np.float64) * 1.7).astype(np.float32)
