"""Folders of sparse autoencoders as SAELens writes them, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.folders import stored, write_safetensors

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("standard", {}),
    ("standard", {"apply_b_dec_to_input": False, "normalize_activations": "none"}),
    ("jumprelu", {}),
    (
        "topk",
        {
            "k": 3,
            "metadata": {"hook_name": "blocks.3.hook_resid_pre", "sae_lens_version": "6.54.0"},
            "hook_name": None,
        },
    ),
    ("topk", {"k": 24, "rescale_acts_by_decoder_norm": True}),
    ("standard", {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 2}}),
]
WIDTH = 16
ROWS = np.random.default_rng(3).normal(size=(5, WIDTH)).astype(np.float32)


def write(folder: Path, kind: str = "standard", width: int = 192, **config: Any) -> dict[str, Any]:
    """The weights, float32: of 24 features of a layer's result."""
    random, n = np.random.default_rng(7), 24
    shapes = {"W_enc": (width, n), "b_enc": (n,), "W_dec": (n, width), "b_dec": (width,)}
    shapes |= {"threshold": (n,)} if kind == "jumprelu" else {}
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir()
    write_safetensors(
        folder / "sae_weights.safetensors", {k: stored(v) for k, v in weights.items()}
    )
    described = {
        "d_in": width,
        "d_sae": n,
        "architecture": kind,
        "dtype": "float32",
        "device": "cpu",
    }
    described |= {"hook_name": "blocks.2.hook_resid_post", "apply_b_dec_to_input": True, **config}
    (folder / "cfg.json").write_text(json.dumps(described))
    return weights
