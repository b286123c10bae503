"""Write models of real shapes with random weights, to measure with.

    python benchmarks/make_model.py llama-1b|llama-8b|smollm-135m|gemma3-1b|qwen35-0.8b|
        qwen3moe-12-layers|qwen3moe-even FILE.gguf [--type q4_K_M]

Types follow llama.cpp's quantiser: norms stay F32; the output, which most often is the embedding as
well, becomes Q6_K unless the type is larger; rows that a type's blocks do not divide get smaller
blocks; some matrices of the mixture q4_K_M are Q6_K.

Weights are normal random numbers (deviation 0.02), norms are 1, rates of decay −1. One pool of 16
million numbers is drawn and quantised by ggml; each matrix takes rows from it in turn, from its own
starting row. The largest matrices repeat rows, and tokens that share a row have equal logits.
Vocabularies have the right kind and size, and made-up words. Experts of qwen3moe-even are used
evenly: its embedding is 2,000 times as large, so that routers see what tokens differ in, rather
than what all have in common.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.vocabularies import add_vocabulary

from ggmodel.gguf_file import DType
from ggmodel.native import ffi, lib
from ggmodel.nn.rope import RopeConfig, llama3_factors, partial_rope

POOL = 1 << 24
BLOCK = 256  # the largest of any type
DEVIATION = 0.02
ALIGNMENT = 32

TYPES = (
    "f32 f16 bf16 q8_0 q6_K q5_K q5_1 q5_0 q4_K_M q4_K q4_1 q4_0 q3_K q2_K mxfp4 iq4_NL iq4_XS "
    "iq3_S iq3_XXS iq2_S iq2_XS iq2_XXS iq1_M iq1_S tq2_0 tq1_0 nvfp4 q2_0 q1_0"
).split()
# For rows that a type's blocks do not divide.
_SMALLER = {
    DType.Q2_K: DType.Q4_0,
    DType.Q3_K: DType.Q4_0,
    DType.Q4_K: DType.Q5_0,
    DType.Q5_K: DType.Q5_1,
    DType.Q6_K: DType.Q8_0,
    DType.TQ1_0: DType.Q4_0,
    DType.TQ2_0: DType.Q4_0,
    DType.Q1_0: DType.Q4_0,
    DType.Q2_0: DType.Q4_0,
    **{DType[name]: DType.IQ4_NL for name in ("IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS")},
    **{DType[name]: DType.IQ4_NL for name in ("IQ2_XXS", "IQ1_M", "IQ1_S")},
}


@dataclass(frozen=True)
class Shape:
    """The sizes and the vocabulary of a model.

    Attributes:
        vocabulary: number of tokens. special: number of special ones among them.
        pre: the pre-tokenizer of a BPE vocabulary; "" for a SentencePiece vocabulary.
        metadata: further keys below the architecture's name.
        rope_factors: whether long waves are slowed down, as Llama 3 does by 32.
        embedding: by how much its numbers are larger than other weights.
        tied: whether the embedding is the output as well.
    """

    architecture: str
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    eps: float
    rope_base: float
    vocabulary: int
    special: int
    pre: str
    metadata: dict[str, int | list[int]] = field(default_factory=dict)
    rope_factors: bool = False
    embedding: float = 1.0
    tied: bool = True


# As in Llama 3.2.
ROPE_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


SHAPES = {
    "llama-1b": Shape(
        "llama", 16, 2048, 8192, 32, 8, 64, 131_072, 1e-5, 500_000.0, 128_256, 256, "llama-bpe",
        rope_factors=True,
    ),
    "llama-8b": Shape(  # Llama 3 8B's
        "llama", 32, 4096, 14_336, 32, 8, 128, 8192, 1e-5, 500_000.0, 128_256, 256, "llama-bpe",
        tied=False,
    ),
    "smollm-135m": Shape(
        "llama", 30, 576, 1536, 9, 3, 64, 8192, 1e-5, 100_000.0, 49_152, 17, "smollm"
    ),
    "gemma3-1b": Shape(
        "gemma3", 26, 1152, 6912, 4, 1, 256, 32_768, 1e-6, 1_000_000.0, 262_144, 6, "",
        metadata={"attention.sliding_window": 512},
    ),
    "qwen35-0.8b": Shape(
        "qwen35", 24, 1024, 3584, 8, 2, 256, 262_144, 1e-6, 10_000_000.0, 248_320, 26, "qwen35",
        metadata={
            "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.state_size": 128,
            "ssm.group_count": 16, "ssm.time_step_rank": 16, "ssm.inner_size": 2048,
        },
    ),
    "qwen3moe-12-layers": Shape(  # a quarter of Qwen3-30B-A3B's
        "qwen3moe", 12, 2048, 6144, 32, 4, 128, 40_960, 1e-6, 1_000_000.0, 151_936, 26, "qwen2",
        metadata={
            "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768,
        },
    ),
}  # fmt: skip
SHAPES["qwen3moe-even"] = replace(SHAPES["qwen3moe-12-layers"], embedding=2000.0)


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names, and shapes in ggml order."""
    width, ffn, head = shape.width, shape.ffn, shape.head_dim
    q, kv = shape.heads * head, shape.kv_heads * head
    gemma, hybrid = shape.architecture == "gemma3", shape.architecture == "qwen35"
    yield "token_embd.weight", (width, shape.vocabulary)
    yield "output_norm.weight", (width,)
    if not shape.tied:
        yield "output.weight", (width, shape.vocabulary)
    if shape.rope_factors:
        yield "rope_freqs.weight", (head // 2,)
    for i in range(shape.layers):
        of_layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (width,),
            "attn_q": (width, q),
            "attn_k": (width, kv),
            "attn_v": (width, kv),
            "attn_output": (q, width),
            "ffn_norm": (width,),
            "ffn_gate": (width, ffn),
            "ffn_up": (width, ffn),
            "ffn_down": (ffn, width),
        }
        if gemma:
            of_layer |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (head,))
            of_layer |= dict.fromkeys(("post_attention_norm", "post_ffw_norm"), (width,))
        if hybrid:
            of_layer = _hybrid(shape, i, of_layer)
        if "expert_count" in shape.metadata:
            of_layer = _with_experts(shape, of_layer)
        for name, ne in of_layer.items():
            yield f"blk.{i}.{name}" + ("" if name == "ssm_a" or "." in name else ".weight"), ne


def _hybrid(
    shape: Shape, layer: int, usual: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer of Qwen 3.5: a gated delta net, or attention with a gate."""
    usual["post_attention_norm"] = usual.pop("ffn_norm")
    sizes = {k: v for k, v in shape.metadata.items() if isinstance(v, int)}
    heads, state = sizes["ssm.time_step_rank"], sizes["ssm.state_size"]
    inner = sizes["ssm.inner_size"]
    channels = inner + 2 * sizes["ssm.group_count"] * state
    if (layer + 1) % sizes["full_attention_interval"] == 0:
        norms = dict.fromkeys(("attn_q_norm", "attn_k_norm"), (shape.head_dim,))
        return usual | norms | {"attn_q": (shape.width, 2 * shape.heads * shape.head_dim)}
    attention = ("attn_q", "attn_k", "attn_v", "attn_output")
    return {name: ne for name, ne in usual.items() if name not in attention} | {
        "attn_qkv": (shape.width, channels),
        "attn_gate": (shape.width, inner),
        "ssm_alpha": (shape.width, heads),
        "ssm_beta": (shape.width, heads),
        "ssm_conv1d": (sizes["ssm.conv_kernel"], channels),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_norm": (state,),
        "ssm_out": (inner, shape.width),
    }


def _with_experts(shape: Shape, usual: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer of Qwen3 MoE: experts and their router, norms of heads."""
    sizes = {k: v for k, v in shape.metadata.items() if isinstance(v, int)}
    experts, ffn, width = sizes["expert_count"], sizes["expert_feed_forward_length"], shape.width
    kept = {name: ne for name, ne in usual.items() if name == "ffn_norm" or "ffn" not in name}
    return kept | {
        "attn_q_norm": (shape.head_dim,),
        "attn_k_norm": (shape.head_dim,),
        "ffn_gate_inp": (width, experts),
        "ffn_gate_exps": (width, ffn, experts),
        "ffn_up_exps": (width, ffn, experts),
        "ffn_down_exps": (ffn, width, experts),
    }


def type_of(
    name: str, ne: tuple[int, ...], wanted: str, layers: int, output: str = "token_embd.weight"
) -> DType:
    """The type that stores a tensor.

    Args:
        output: the tensor that gives logits.
    """
    kind = DType.Q4_K if wanted == "q4_K_M" else DType[wanted.upper()]
    if len(ne) == 1 or "conv1d" in name or "gate_inp" in name:
        return DType.F32
    quantised = kind not in (DType.F32, DType.F16, DType.BF16)
    if name == output and quantised and kind is not DType.Q8_0:
        kind = DType.Q6_K
    elif wanted == "q4_K_M" and re.search(r"\.(attn_v|ffn_down(_exps)?)\.weight$", name):
        layer, eighth = int(name.split(".")[1]), layers // 8
        if layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2:
            kind = DType.Q6_K
    if ne[0] % kind.block_size:
        kind = _SMALLER.get(kind, DType.F16)
    return kind


# the file


def quantise(values: np.ndarray, kind: DType) -> np.ndarray:
    """float32 [rows, n] as bytes, uint8 [rows, bytes of a row], by ggml."""
    rows, n = values.shape
    out = np.empty((rows, kind.row_size(n)), np.uint8)
    source, target = ffi.from_buffer("float[]", values), ffi.from_buffer(out)
    even = np.ones(n, np.float32)  # types of two bits and less weigh the columns
    importance = ffi.from_buffer("float[]", even)
    if not lib.ggml_quantize_requires_imatrix(int(kind)):
        importance = ffi.NULL
    lib.ggml_quantize_chunk(int(kind), source, target, 0, rows, n, importance)
    return out


class Pool:
    """Rows of random weights, quantised once for each type."""

    def __init__(self, size: int, seed: int, deviation: float = DEVIATION):
        numbers = np.random.default_rng(seed).standard_normal(size, np.float32)
        self._numbers = numbers * np.float32(deviation)
        self._bytes: dict[DType, np.ndarray] = {}
        self._next = 0

    def matrix(self, kind: DType, ne: tuple[int, ...]) -> Iterator[memoryview]:
        """The bytes of a matrix [n, rows], or of several, piece by piece."""
        if kind not in self._bytes:
            self._bytes[kind] = quantise(self._numbers.reshape(-1, BLOCK), kind).reshape(-1)
        left, row = math.prod(ne[1:]), kind.row_size(ne[0])
        pool = self._bytes[kind]
        pool = pool[: len(pool) // row * row].reshape(-1, row)
        begin = self._next = (self._next + 1009) % len(pool)  # matrices differ
        while left:
            piece = pool[begin : begin + left]
            yield piece.data
            left, begin = left - len(piece), 0


def add_metadata(writer: gguf.GGUFWriter, name: str, shape: Shape) -> None:
    """Hyperparameters, in the keys that all llamas have."""
    writer.add_name(f"{name}, random weights")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_freq_base(shape.rope_base)
    if shape.architecture == "llama":
        writer.add_rope_dimension_count(shape.head_dim)
        writer.add_vocab_size(shape.vocabulary)
    for key, value in shape.metadata.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{shape.architecture}.{key}", value)  # type: ignore[operator]


def make(
    path: Path,
    name: str,
    shape: Shape,
    wanted: str,
    *,
    seed: int = 0,
    pool: int = POOL,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Writes a model; the file appears when it is whole.

    Args:
        name: of the model, for those who read the metadata.
        wanted: one of TYPES.
        pool: how many random numbers the matrices share, a multiple of 256.
        progress: called with the share that is written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        output = "token_embd.weight" if shape.tied else "output.weight"
        stored = {n: (type_of(n, ne, wanted, shape.layers, output), ne) for n, ne in tensors(shape)}
        total = _write_header(part, name, shape, stored)
        rows, done = Pool(pool, seed), 0
        embedding = rows
        if shape.embedding != 1:
            embedding = Pool(pool, seed, DEVIATION * shape.embedding)
        with part.open("ab") as file:
            file.write(bytes(-file.tell() % ALIGNMENT))
            for tensor, (kind, ne) in stored.items():
                begin = file.tell()
                of_tensor = embedding if tensor == "token_embd.weight" else rows
                for piece in _values(of_tensor, shape, tensor, kind, ne):
                    file.write(piece)
                file.write(bytes(-file.tell() % ALIGNMENT))
                done += file.tell() - begin
                if progress is not None:
                    progress(done / total)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class _Rope(RopeConfig):
    rope_dims: int = partial_rope()


def _values(
    rows: Pool, shape: Shape, name: str, kind: DType, ne: tuple[int, ...]
) -> Iterator[bytes | memoryview]:
    if name == "rope_freqs.weight":
        rope = _Rope(rope_base=shape.rope_base, rope_dims=ne[0] * 2)
        factors = llama3_factors({"rope_scaling": ROPE_SCALING}, rope)
        assert factors is not None
        yield factors.tobytes()
    elif name.endswith("ssm_a"):
        yield (-np.ones(ne[0], np.float32)).tobytes()
    elif len(ne) == 1:
        yield np.ones(ne[0], np.float32).tobytes()
    else:
        yield from rows.matrix(kind, ne)


def _write_header(
    path: Path, name: str, shape: Shape, stored: dict[str, tuple[DType, tuple[int, ...]]]
) -> int:
    """Writes all but the tensors' bytes; returns how many these are."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    add_metadata(writer, name, shape)
    add_vocabulary(writer, shape.pre, shape.vocabulary, shape.special)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    total = 0
    for tensor, (kind, ne) in stored.items():
        nbytes = kind.row_size(ne[0]) * math.prod(ne[1:])
        # The package, which lacks Q2_0, takes any number of a type for shapes of floats.
        number: Any = kind
        writer.add_tensor_info(tensor, ne[::-1], np.dtype(np.float32), nbytes, number)
        total += nbytes + -nbytes % ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("writing", total=1.0)
        make(
            options.file,
            options.shape,
            SHAPES[options.shape],
            options.type,
            seed=options.seed,
            progress=lambda share: bar.update(task, completed=share),
        )
    print(f"{options.file}: {options.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
