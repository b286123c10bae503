"""Time answers whose layers are captured, and batches in which some have an adapter, beside plain
ones.

    python benchmarks/inspecting.py FILE.gguf [--pairs 5] [--threads 1]

Plain runs and others alternate, each with new prompts of random tokens. A ratio is that of plain to
other processor time of the whole process, of which programs beside it take nothing: 1 is as fast as
without, and the median over all pairs counts. "prompt" is a prompt of 64 tokens with an answer of
one, "answer" one of 4 with an answer of 16, "batch" four such answers at once, of which none or one
has an adapter: a LoRA of rank 16 on all matrices of all layers, with random numbers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import ggmodel

RANK, TOGETHER = 16, 4
SHORT, LONG, ANSWER = 4, 64, 16  # tokens
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def main() -> None:
    """Prints a line for each kind of run."""
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("file")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder, "lora.gguf")
        write_adapter(options.file, adapter)
        sizes: Any = {"context_length": 1024, "parallel": TOGETHER, "threads": options.threads}
        with ggmodel.load(options.file, adapters={str(adapter): 0.0}, **sizes) as model:
            layers, plain = {"capture": "layers.*"}, dict[str, Any]()
            one_of_all = [{"adapters": {"lora": 1.0}}, *[plain] * (TOGETHER - 1)]
            rows: Any = {
                "prompt, all layers captured": (LONG, 1, [layers]),
                "answer, all layers captured": (SHORT, ANSWER, [layers]),
                "batch, one with an adapter": (SHORT, ANSWER, one_of_all),
            }
            for name, (prompt, tokens, others) in rows.items():
                usual = [plain] * len(others)
                ratios = []
                for pair in range(-1, options.pairs):  # the first one records graphs
                    base = seconds(model, usual, prompt, tokens)
                    ratio = base / seconds(model, others, prompt, tokens)
                    ratios += [ratio] * (pair >= 0)
                worst, best = min(ratios), max(ratios)
                median = statistics.median(ratios)
                print(f"{name}: {median:.3f} ({worst:.3f} to {best:.3f})", flush=True)


def seconds(model: Any, each: Sequence[Mapping[str, Any]], prompt: int, tokens: int) -> float:
    """Processor time of some answers at once.

    Args:
        each: the options of a request. prompt, tokens: of each prompt and answer.
    """
    size, options = model.engine.vocabulary, {"max_tokens": tokens, "ignore_eos": True}
    prompts = [[random.randrange(3, size) for _ in range(prompt)] for _ in each]
    requests = [model.request(p, **options, **own) for p, own in zip(prompts, each, strict=True)]
    ended = [threading.Event() for _ in requests]
    begun = time.process_time()
    for request, event in zip(requests, ended, strict=True):
        request.start(event.set)
    for event in ended:
        event.wait()
    spent = time.process_time() - begun
    for request in requests:
        assert len(request.result().tokens) == tokens
    return spent


def write_adapter(file: str, path: Path) -> None:
    """Writes a LoRA of random numbers for a model."""
    chance = np.random.default_rng(1)
    with ggmodel.open_gguf(file) as source:
        architecture = source.metadata["general.architecture"]
        shapes = {name: info.shape for name, info in source.tensors.items()}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for name, shape in shapes.items():
        if name.startswith("blk.") and name.split(".")[2] in _MATRICES and len(shape) == 2:
            for end, rows, width in (("a", RANK, shape[0]), ("b", shape[1], RANK)):
                values = chance.normal(0, 0.02, (rows, width)).astype(np.float32)
                writer.add_tensor(f"{name}.lora_{end}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
