"""Time the first token of a prompt after a restart, with prefixes on disk, beside a cold one.

    python benchmarks/restart.py FILE.gguf … --tokens 2048
    .cache/reference/bin/python benchmarks/restart.py --wide [ARCHITECTURE/CASE …]

The prompt of a model that transcribes is the longest sound that it takes, and a few tokens.

With --wide goldens are measured with rows eight times as wide, windows 64 times as long and random
weights in Q8_0: those that are named, or one of each architecture that generates. States grow with
the width of rows and products with its square, so that tiny models take longer to read the ones
than to compute the others. transformers knows the shapes.

Each number is a process of its own: one that computes the prompt, and four that find it on disk, of
which the fastest counts. A time is that from the request to its first token; loading comes
before. Without --tokens a prompt is lengthened until it takes five seconds. Logits are compared by
all their bits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ggmodel

SECONDS, SHARE = 5.0, 0.05
_FIRST, _MOST = 2048, 1 << 16  # tokens
_AGAIN = 4  # processes that find the prompt
# Keys of config.json → by how much they grow. Sizes of heads and numbers of layers stay.
_WIDER = {
    **dict.fromkeys(
        "hidden_size intermediate_size num_attention_heads num_key_value_heads d_model n_embd "
        "n_head n_heads num_heads n_inner d_ff d_inner ffn_dim hidden_dim conv_dim block_dim "
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "intermediate_size_mlp moe_shared_expert_intermediate_size block_ff_dim moe_latent_size "
        "num_global_key_value_heads linear_num_key_heads linear_num_value_heads mamba_n_heads "
        "mamba_num_heads mamba_d_ssm mamba_dt_rank time_step_rank kv_lora_rank q_lora_rank "
        "num_attention_heads_per_layer encoder_ffn_dim decoder_ffn_dim encoder_attention_heads "
        "decoder_attention_heads vision_output_dim out_hidden_size output_dim embed_dim "
        "linear_num_heads value_dim".split(),
        8,
    ),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 512),
}
# The same of architectures that transcribe: their encoder takes the time.
_HEAR = ("whisper", "moonshine")
_LONGER = {
    **dict.fromkeys(
        "encoder_num_attention_heads encoder_num_key_value_heads decoder_num_attention_heads "
        "decoder_num_key_value_heads".split(),
        8,
    ),
    **dict.fromkeys(("encoder_layers", "num_hidden_layers", "encoder_num_hidden_layers"), 12),
    "max_source_positions": 75,
}
_ASKED = 16  # tokens behind a sound


def main() -> None:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--wide", action="store_true", help="goldens, of wider rows")
    parser.add_argument("--tokens", type=int, help="of the prompt")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a prompt takes")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, folder, tokens = options.one
        print(json.dumps(one(name, Path(folder), int(tokens))))
        return
    console, table = Console(), Table("model", "tokens", "cold s", "again s", "share", "bits")
    missed = []
    for name in options.files or goldens():
        try:
            row, share = measured(name, options.wide, options.tokens, options.seconds)
        except (ggmodel.Error, ValueError, RuntimeError, TypeError) as error:
            console.print(f"{name}: {type(error).__name__}: {error!s:.300}")
            continue
        table.add_row(*row)
        console.print(*row)
        missed += [name] * (share > SHARE)
    console.print(table)
    console.print(f"above {SHARE:.0%}: {', '.join(missed) or 'none'}")


def goldens() -> list[str]:
    """A golden of each architecture that generates, one of text where there are several kinds."""
    from importlib import import_module

    from tests.golden.files import HERE, cases

    names = []
    for folder in sorted(file.parent for file in HERE.glob("*/cases.py")):
        module = import_module(f"tests.golden.{folder.name}.cases")
        seeing = getattr(module, "PICTURES", {})
        names += [
            f"{folder.name}/{case}"
            for case in sorted(cases(folder.name), key=lambda case: case in seeing)[:1]
        ]
    return names


def widened(name: str, path: Path) -> None:
    """Writes a golden's model with wider rows."""
    from ggmodel.convert.quantize import quantize
    from ggmodel.workbench.golden import source_of
    from ggmodel.workbench.golden.reference import layout
    from tests.golden.text import golden_of

    factors = _WIDER | (_LONGER if name.partition("/")[0] in _HEAR else {})

    def wider(value: Any, factor: int = 1) -> Any:
        if isinstance(value, dict):
            return {key: wider(inner, factors.get(key, 1)) for key, inner in value.items()}
        if isinstance(value, list):
            return [wider(one, factor) for one in value]
        return value * factor if factor > 1 and isinstance(value, int) else value

    golden = golden_of(name)
    if name.startswith("rwkv7/"):
        from tests.golden.rwkv7.make import register

        register()
    config = wider(golden.config)
    made = dataclasses.replace(golden, config=config, tensors=layout(config)[0])
    quantize(source_of(made), path, "q8_0")


def measured(name: str, wide: bool, tokens: int | None, seconds: float) -> tuple[list[str], float]:
    """A row of the table, and the share of the cold time."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "wide.gguf")) if wide else name
        if wide:
            widened(name, Path(file))
        return compared(name, file, tokens, seconds)


def compared(name: str, file: str, tokens: int | None, seconds: float) -> tuple[list[str], float]:
    """As `measured`, of a file or golden."""
    count = tokens or _FIRST
    while True:
        with tempfile.TemporaryDirectory() as folder:
            cold = child(file, folder, count)
            if tokens is None and cold["seconds"] < seconds and count < cold["most"]:
                growth = max(1.5, min(8.0, 1.2 * seconds / max(cold["seconds"], 0.01)))
                count = min(cold["most"], int(count * growth))
                continue
            again = [child(file, folder, count) for _ in range(_AGAIN)]
        break
    best = min(again, key=lambda one: one["seconds"])
    share = best["seconds"] / cold["seconds"]
    same = "same" if all(one["sum"] == cold["sum"] for one in again) else "OTHERS"
    times = (f"{one['seconds']:.3f}" for one in (cold, best))
    return [name, f"{cold['tokens']:,}", *times, f"{share:.1%}", same], share


def child(name: str, folder: str, tokens: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, folder, str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    return json.loads(done.stdout)


def one(name: str, folder: Path, tokens: int) -> dict[str, Any]:
    """Asks a prompt once, in a process of its own."""
    warnings.simplefilter("ignore")
    source, most = opened(name)
    count = min(tokens, most)
    options: dict[str, Any] = {"context_length": count + 8, "deterministic": True}
    with ggmodel.load(source, prefix_store=folder, **options) as model:
        store: Any = model.engine.store
        deadline = time.monotonic() + 60
        while store.writer.root is None and time.monotonic() < deadline:
            time.sleep(0.001)  # the digest of a model that was never seen
        chance, size = random.Random(1), min(model.engine.vocabulary, 30_000)
        prompt: list[Any] = [chance.randrange(3, size) for _ in range(count)]
        if model.report.architecture in _HEAR:
            prompt = [model.engine.images.modality("audio").largest(), *prompt]
        begun = time.perf_counter()
        answer = model.generate(prompt, max_tokens=1, temperature=0)
        seconds = time.perf_counter() - begun
        found = {"seconds": seconds, "reused": answer.usage.reused_tokens, "tokens": count}
        found["most"] = most
        found["sum"] = answer.receipt.sums[0] if answer.receipt else ""
    return found


def opened(name: str) -> tuple[Any, int]:
    """A file or a golden, and the longest prompt that it takes."""
    if Path(name).exists():
        with ggmodel.open_gguf(name) as source:
            hears = source.metadata["general.architecture"] in _HEAR
        return name, _ASKED if hears else _MOST
    from ggmodel.workbench.golden import source_of
    from tests.golden.text import golden_of

    golden = golden_of(name)
    learned = any(golden.config.get(key) for key in ("n_positions", "max_target_positions"))
    return source_of(golden), 100 if learned else _MOST


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
