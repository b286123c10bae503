"""Small files to be quantised, of many shapes, and what llama.cpp made of them (quantized.json)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.convert.imatrix import Importance, ImportanceMatrix
from ggmodel.convert.quantize import encode
from ggmodel.convert.tensor_types import RECIPES
from ggmodel.convert.write import info, write_gguf
from ggmodel.gguf_file import DType, TensorSource, open_gguf
from ggmodel.workbench.golden import weight

REFERENCE = Path(__file__).with_suffix(".json")
IMATRIX = "importance.gguf"
NAMES = {"mxfp4": "MXFP4_MOE"}  # llama-quantize's
_PLAIN = ("f32", "f16", "bf16", "q8_0")
_NEED = "iq3_XS iq3_XXS q2_K_S iq2_M iq2_S iq2_XS iq2_XXS iq1_M iq1_S".split()
# Every type that does without an importance matrix, and every quantised type with one.
KINDS = [
    *(r.name for r in RECIPES.values() if r.name not in _NEED),
    *(f"{r.name} weighted" for r in RECIPES.values() if r.name not in _PLAIN),
]


def is_weighted(kind: str) -> bool:
    return kind.endswith(" weighted")


def type_of(kind: str) -> str:
    return kind.partition(" ")[0]


DENSE = ("ffn_gate", "ffn_up", "ffn_down")
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")


def model(
    architecture: str,
    layers: int,
    tensors: tuple[str, ...],
    heads: tuple[int, int] = (8, 8),
    output: bool = False,
    experts: int = 0,
    widths: dict[str, int] | None = None,
    others: tuple[str, ...] = (),
    dtype: DType = DType.F32,
) -> dict[str, Any]:
    return locals()


# Shapes are too small to run, and enough to choose by.
MODELS = {
    "grouped": model("llama", 16, (*ATTENTION, *DENSE), heads=(8, 2), output=True),
    "tied": model("gemma3", 13, (*ATTENTION, *DENSE, "attn_q_norm")),
    "odd widths": model(
        *("llama", 9, (*ATTENTION, *DENSE)),
        output=True,
        widths={"ffn_down": 96, "attn_output": 40, "output": 64},
    ),
    "large": model("llama", 80, ("attn_v", "ffn_down"), heads=(8, 1), output=True),
    "eight experts": model("llama", 16, (*ATTENTION, *DENSE), output=True, experts=8),
    "four experts": model("qwen2moe", 12, (*ATTENTION, *DENSE), heads=(8, 2), experts=4),
    "fused": model("phi3", 8, ("attn_qkv", "attn_output", "ffn_up", "ffn_down"), output=True),
    "bert": model(
        *("bert", 4, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")),
        others=("position_embd.weight", "token_types.weight"),
    ),
    "bfloat": model("llama", 3, (*ATTENTION, *DENSE), output=True, dtype=DType.BF16),
}


def write(path: Path, name: str) -> Path:
    """Writes one of the models."""
    made = {n: (kind, values) for n, kind, values in _tensors(name)}
    infos = [info(n, values.shape[::-1], kind) for n, (kind, values) in made.items()]

    def data(t: Any) -> memoryview:
        kind, values = made[t.name]
        return encode(values, kind).data

    write_gguf(path, _metadata(name), infos, data, lambda _: None, force=True)
    return path


def importance(path: Path) -> ImportanceMatrix:
    """An importance matrix for all matrices of a file. One of several experts is never reached."""
    entries: dict[str, Importance] = {}
    with open_gguf(path) as source:
        for t in source.tensors.values():
            if len(t.shape) > 1:
                matrices = t.shape[2] if len(t.shape) > 2 else 1
                counts = np.arange(3, 3 + matrices)
                counts[1:2] = 0
                sums = np.abs(weight(t.name + ".in", (matrices, t.shape[0]))) * counts[:, None]
                entries[t.name] = Importance(sums.astype(np.float32), counts)
    return ImportanceMatrix(entries, IMATRIX, ["texts/à.txt", "b"], 7, 512)


def _metadata(name: str) -> dict[str, Any]:
    of = MODELS[name]
    keys = {
        **{"block_count": of["layers"], "context_length": 64, "embedding_length": 256},
        **{"feed_forward_length": 256, "attention.head_count": of["heads"][0]},
        **{"attention.head_count_kv": of["heads"][1], "attention.layer_norm_rms_epsilon": 1e-5},
        **{"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 32},
        **({"expert_count": of["experts"], "expert_used_count": 2} if of["experts"] else {}),
    }
    own = {f"{of['architecture']}.{key}": value for key, value in keys.items()}
    return {
        "general.architecture": of["architecture"],
        "general.type": "model",
        "general.file_type": 0,
        **own,
        "general.quantization_version": 2,
        "general.tags": ["à", "b"],
    }


def _tensors(name: str) -> Iterator[tuple[str, DType, np.ndarray]]:
    of = MODELS[name]
    widths = of["widths"] or {}
    for n in ("token_embd.weight", *of["others"], *(["output.weight"] if of["output"] else [])):
        kind = DType.F32 if n in of["others"] else of["dtype"]
        yield n, kind, weight(n, (8, widths.get(n.partition(".")[0], 256)))
    yield "output_norm.weight", DType.F32, weight("norm.weight", (256,))
    for i in range(of["layers"]):
        yield f"blk.{i}.attn_norm.weight", DType.F32, weight(f"blk.{i}.norm.weight", (256,))
        yield f"blk.{i}.attn_q.bias", DType.F32, weight(f"blk.{i}.attn_q.bias", (8,))
        for n in of["tensors"]:
            shape, full = (4, widths.get(n, 256)), f"blk.{i}.{n}.weight"
            if n.endswith("norm"):
                yield full, DType.F32, weight(full, (16,))
                continue
            if of["experts"] and n in DENSE:
                shape, full = (of["experts"], *shape), f"blk.{i}.{n}_exps.weight"
            yield full, of["dtype"], weight(full, shape)
        if of["experts"]:
            full = f"blk.{i}.ffn_gate_inp.weight"
            yield full, DType.F32, weight(full, (of["experts"], 256))


def summary(source: TensorSource) -> dict[str, Any]:
    """Types by name, layers of one type together, and a digest of all bytes in order."""
    types: dict[str, dict[str, list[int]]] = {}
    digest = hashlib.sha256()
    for t in source.tensors.values():
        parts = t.name.split(".", 2)
        layer, kind = (int(parts[1]), parts[2]) if parts[0] == "blk" else (-1, t.name)
        types.setdefault(kind, {}).setdefault(t.dtype.name, []).append(layer)
        digest.update(t.name.encode() + source.data(t.name))
    short = {
        kind: {dtype: _ranges(layers) for dtype, layers in found.items()}
        for kind, found in types.items()
    }
    return {"types": short, "bytes": digest.hexdigest()[:32]}


def _ranges(numbers: list[int]) -> str:
    """ "0-3 7"; "" for what is in no layer."""
    starts = [n for i, n in enumerate(numbers) if not i or numbers[i - 1] != n - 1]
    ends = [n for i, n in enumerate(numbers) if i + 1 == len(numbers) or numbers[i + 1] != n + 1]
    runs = (str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
    return "" if numbers == [-1] else " ".join(runs)


def reference() -> dict[str, Any]:
    return json.loads(REFERENCE.read_text("utf-8"))
