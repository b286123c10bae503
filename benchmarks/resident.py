"""What `ggmodel estimate` says beside the memory that a run really takes.

    python benchmarks/resident.py [FILE.gguf [CONTEXT]]

Without a file, on a llama of 1.2 billion parameters in Q8_0, all of them zero. A prompt of 512
tokens and four single ones are computed; what counts is by how much the resident memory of the
process has grown since before the model was loaded, with all of ggmodel imported.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import ggmodel

sys.path.insert(0, str(Path(__file__).parents[1]))

MIB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory, mapped files included."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


def main(file: str | None = None, context: str = "2048") -> None:
    if file is None:
        from tests.shapes import write_llama_1b

        with tempfile.TemporaryDirectory() as folder:
            main(str(write_llama_1b(Path(folder) / "llama-1b-q8_0.gguf")), context)
        return
    estimate = ggmodel.estimate(file, context_length=int(context), gpu_layers=0)
    before = resident()
    with ggmodel.load(file, context_length=int(context), gpu_layers=0) as model:
        with model.engine.apart.slot() as sequence:
            model.engine.apart.extend(sequence, np.arange(512, dtype=np.int32), 0)
            for position in range(512, 516):
                model.engine.apart.extend(sequence, np.zeros(1, np.int32), position)
            grown = resident() - before
        reported = model.memory.size()
    print(
        f"{Path(file).name}, context {context}: estimated {estimate.size / MIB:,.1f} MiB, "
        f"reported {reported / MIB:,.1f}, resident {grown / MIB:,.1f}, "
        f"ratio {grown / estimate.size:.3f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
