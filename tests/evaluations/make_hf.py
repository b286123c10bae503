"""Writes hf.json: the results of lm-eval's own `hf` for the checkpoints of this folder.

    LM_EVAL=ENVIRONMENT/bin/lm-eval python -m tests.evaluations.make_hf

The environment has lm-eval[hf] with torch and transformers, as `make test-lm-eval` has not.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tests.evaluations.checkpoints import CASES
from tests.evaluations.harness import TASKS, evaluated

HERE = Path(__file__).parent

if __name__ == "__main__":
    results = {}
    with tempfile.TemporaryDirectory() as made_in:
        for name, (make, more) in CASES.items():
            checkpoint, folder = make(Path(made_in, name, "model")), Path(made_in, name, "run")
            told = f"pretrained={checkpoint},dtype=float32{more}"
            done = evaluated([os.environ["LM_EVAL"]], folder, "hf", told)
            results[name] = {task: done.told(task) for task in TASKS}
    (HERE / "hf.json").write_text(json.dumps(results) + "\n")
