"""Folders of sparse autoencoders as SAELens writes them, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.folders import stored, write_safetensors


def write(folder: Path, kind: str = "standard", width: int = 192, **config: Any) -> dict[str, Any]:
    """The weights, float64: of 24 features of a layer's result."""
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
    return {name: x.astype(np.float64) for name, x in weights.items()}
