"""Estimated memory beside the memory that a run takes which fills the context.

    python benchmarks/resident.py [FILE.gguf …] [--context 8192] [--flash-attention on off]

Without a file, on the tiny models of the goldens, one of each architecture that generates. A prompt
fills all of the context but four tokens, which are generated.

Each row takes two fresh processes, with a context of 256 tokens and with the wanted one. Taken is
the growth of a process's resident memory, from before the model was loaded to its peak. A part of
it is in no estimate: Python's objects, libraries, the vocabulary. The small context shows it:

    beside  MiB taken beside the estimate with 256 tokens
    ratio   (taken − beside) / estimate, with the wanted context
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
SMALL = 256  # positions of the run that shows the constant part
GENERATED = 4

MODELS = (
    "gemma2/published", "gemma3/every_6th", "gpt_oss/released",
    "llama/plain_gqa", "llama/experts", "llama4/interleaved", "mistral/window",
    "mllama/more_states", "olmo2/gqa", "phi3/partial", "qwen2/yarn", "qwen3/plain",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model with one context.

    Attributes:
        estimate, taken: bytes. beside: those taken beside an estimate for a small context.
    """

    estimate: int
    taken: int
    beside: int

    @property
    def ratio(self) -> float:
        """The bytes taken, less the constant part, divided by those estimated."""
        return (self.taken - self.beside) / self.estimate


def measured(model: str, context: int, **options: Any) -> Row:
    """The memory of a run, in fresh processes.

    Args:
        model: a file, or ARCHITECTURE/CASE of the goldens.
        options: of `load`.
    """
    small, large = (_child(model, n, options) for n in (SMALL, context))
    return Row(large["estimate"], large["taken"], small["taken"] - small["estimate"])


def _child(model: str, context: int, options: dict[str, Any]) -> dict[str, int]:
    wanted = json.dumps({"gpu_layers": 0, **options, "context_length": context})
    done = subprocess.run(
        [sys.executable, __file__, "--child", model, wanted],
        check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def child(model: str, options: dict[str, Any]) -> dict[str, int]:
    """`estimate` and `taken`, in bytes, of this process."""
    import ggmodel

    warnings.simplefilter("ignore")  # of contexts longer than in training
    source = _source(model)
    estimate = ggmodel.estimate(source, **options)
    before = status("VmRSS")
    with ggmodel.load(source, **options) as loaded:
        ids = np.random.default_rng(0).integers(
            0, loaded.engine.vocabulary, options["context_length"]
        )
        loaded.generate(ids[:-GENERATED].tolist(), max_tokens=GENERATED, temperature=0)
    return {"estimate": estimate.size, "taken": status("VmHWM") - before}


def _source(model: str) -> Any:
    if Path(model).is_file():
        return model
    sys.path.insert(0, str(ROOT))
    from ggmodel.workbench.golden import source_of
    from tests.golden.files import load_golden

    return source_of(load_golden(*model.split("/")))


def status(name: str) -> int:
    """A figure of this process in bytes: "VmRSS", its resident memory with mapped files, or
    "VmHWM", the most of it so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(f"{name}:"))


def rows(models: Sequence[str], context: int, attention: Sequence[str]) -> Iterator[str]:
    """A table in Markdown, line by line."""
    yield "| model | flash attention | estimate | taken | beside | ratio |"
    yield "|---|---|---|---|---|---|"
    for model in models:
        name = Path(model).name if Path(model).is_file() else model
        for flash in attention:
            row = measured(model, context, flash_attention=flash)
            sizes = " | ".join(f"{n / MIB:,.1f}" for n in (row.estimate, row.taken, row.beside))
            yield f"| {name} | {flash} | {sizes} | {row.ratio:.3f} |"


def main() -> None:
    """Prints the table."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], json.loads(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description="Estimated memory beside the memory taken.")
    parser.add_argument("files", nargs="*", help="GGUF files")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--flash-attention", nargs="+", default=["on", "off"])
    options = parser.parse_args()
    models = options.files or list(MODELS)
    for line in rows(models, options.context, options.flash_attention):
        print(line, flush=True)


if __name__ == "__main__":
    main()
