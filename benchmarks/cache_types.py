"""How much of a model's answers a KV cache of few bits loses, with and without spread heads.

    python benchmarks/cache_types.py FILE.gguf … [--text FILE] [--tokens 2048]

For each file and type of cache: the KL divergence of the next token's probabilities from those with
an F16 cache, over the positions of a text: the mean and the 99th of 100 in nats, and the share of
positions whose most probable token is the same. Heads are stored as they are ("plain"), or rotated
by Hadamard's matrix ("spread"), as `ggmodel` does.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ggmodel
from ggmodel.kvcache import layer

TEXT = Path(__file__).parent.parent / "docs" / "architecture.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--types", nargs="+", default=["q8_0", "q4_0"])
    args = parser.parse_args()
    table = Table("file", "cache", "heads", "mean KL", "99 %", "same token")
    for file in args.files:
        want = probabilities(file, args, "f16")
        for kv_type in args.types:
            for name, width in (("plain", 1), ("spread", layer.SPREAD)):
                layer.SPREAD, usual = width, layer.SPREAD
                got = probabilities(file, args, kv_type)
                layer.SPREAD = usual
                table.add_row(file.name, kv_type, name, *compared(want, got))
    Console().print(table)


def probabilities(file: Path, args: argparse.Namespace, kv_type: str) -> np.ndarray:
    """Logarithms of the next token's probabilities behind each token, [n, vocabulary]."""
    options: dict[str, Any] = {"kv_type": kv_type, "flash_attention": "on"}
    with ggmodel.load(file, context_length=args.tokens, **options) as model:
        tokens = model.tokenize(args.text.read_text(encoding="utf-8"))[: args.tokens]
        logits = model.logits(tokens)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def compared(want: np.ndarray, got: np.ndarray) -> list[str]:
    divergence = (np.exp(want) * (want - got)).sum(-1)
    same = (want.argmax(-1) == got.argmax(-1)).mean()
    return [f"{divergence.mean():.5f}", f"{np.quantile(divergence, 0.99):.5f}", f"{same:.1%}"]


if __name__ == "__main__":
    main()
