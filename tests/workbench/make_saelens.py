"""Writes saelens.json: features and reconstructions that SAELens gives for the tests' folders.

    PYTHONPATH=. ENVIRONMENT/bin/python -m tests.workbench.make_saelens

The environment has sae-lens 6.54.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from sae_lens import SAE

from tests.workbench.autoencoders import KINDS, ROWS, WIDTH, write

if __name__ == "__main__":
    results = []
    with tempfile.TemporaryDirectory() as made_in, torch.no_grad():
        for i, (kind, config) in enumerate(KINDS):
            write(Path(made_in, str(i)), kind, WIDTH, **config)
            sae = SAE.load_from_disk(Path(made_in, str(i)))
            features = sae.encode(torch.from_numpy(ROWS))
            both = {"features": features, "rows": sae.decode(features)}
            told = {name: np.round(x.double().numpy(), 8).tolist() for name, x in both.items()}
            results.append(told)
    Path(__file__).with_name("saelens.json").write_text(json.dumps(results) + "\n")
