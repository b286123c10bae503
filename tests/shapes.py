"""Files of the shape of real models that take no room on a disk: their weights are a hole."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np


def write_llama_1b(path: Path, **metadata: str) -> Path:
    """A llama of 1.2 billion parameters in Q8_0, its output tied to its embedding: 1.3 GB of zeros.

    Args:
        metadata: more keys, a string each.
    """
    width, ffn, kv, vocabulary, layers = 2048, 8192, 512, 128_256, 16
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(131_072)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    for key, value in metadata.items():
        writer.add_string(key.replace("__", "."), value)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocabulary, width),
        "output_norm": (width,),
    }
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_norm": (width,),
            f"blk.{i}.attn_q": (width, width),
            f"blk.{i}.attn_k": (kv, width),
            f"blk.{i}.attn_v": (kv, width),
            f"blk.{i}.attn_output": (width, width),
            f"blk.{i}.ffn_norm": (width,),
            f"blk.{i}.ffn_gate": (ffn, width),
            f"blk.{i}.ffn_up": (ffn, width),
            f"blk.{i}.ffn_down": (width, ffn),
        }
    size = sum(_add(writer, f"{name}.weight", shape) for name, shape in shapes.items())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = path.stat().st_size
    os.truncate(path, header + -header % 32 + size)
    return path


def _add(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> int:
    """Declares a tensor, matrices as Q8_0; its bytes, all of them multiples of the alignment."""
    if len(shape) == 1:
        size = 4 * shape[0]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size)
        return size
    row = shape[1] // 32 * 34
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor_info(
        name, (shape[0], row), np.dtype(np.uint8), shape[0] * row, raw_dtype=kind
    )
    return shape[0] * row
