"""Helpers for tests of the tensor interface: values, small backends, one way to run an op."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, Context, DType, FlashAttention, Tensor, new_backend
from ggmodel.ml.ggml.lowering import GGMLExecutable
from ggmodel.native import ffi, lib

METADATA = {"general.architecture": "test", "test.block_count": 2}
_BY_NUMPY = {"f": DType.F32, "e": DType.F16, "i": DType.I32, "l": DType.I64, "q": DType.I64}


def backend_of(
    tensors: dict[str, Any] | None = None,
    flash: FlashAttention = FlashAttention.OFF,
    threads: int = 1,
    name: str = "ggml",
) -> Backend:
    """A loaded backend with the given weights."""
    source = MemorySource(METADATA, tensors or {"unused": np.zeros(32, np.float32)})
    backend = new_backend(source, BackendParams(num_threads=threads, flash_attention=flash), name)
    backend.load()
    return backend


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Σ(got − want)² / Σ want²."""
    assert got.shape == want.shape
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not want.size:
        return 0.0
    return float(((got - want) ** 2).sum() / max((want**2).sum(), 1e-300))


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Gaussian noise of a numpy shape, the same in every run."""
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype(dtype)


@dataclass(frozen=True)
class Blocks:
    """Values in a dtype that numpy lacks.

    Attributes:
        values: float64 of the numpy shape, as the bytes decode.
    """

    dtype: DType
    data: bytes
    values: np.ndarray


def blocks(dtype: DType, values: np.ndarray) -> Blocks:
    """`values` rounded to `dtype` (noise for IQ formats), and decoded again by ggml."""
    flat = np.ascontiguousarray(values, np.float32)
    width, rows = flat.shape[-1], flat.size // flat.shape[-1]
    data = ffi.new("char[]", dtype.row_size(width) * rows)
    if dtype.name.startswith("IQ"):
        # Their quantisers search for seconds. Any bits are a value, finite where no byte can be
        # the top of an infinite half.
        noise = np.random.default_rng(int(dtype)).integers(0, 60, len(data), np.uint8)
        ffi.memmove(data, noise.tobytes(), len(data))
    else:
        floats = ffi.from_buffer("float[]", flat)
        lib.ggml_quantize_chunk(int(dtype), floats, data, 0, rows, width, ffi.NULL)
    decoded = np.empty(flat.shape, np.float32)
    traits = lib.ggml_get_type_traits(int(dtype))
    traits.to_float(data, ffi.from_buffer("float[]", decoded, require_writable=True), flat.size)
    return Blocks(dtype, bytes(ffi.buffer(data)), decoded.astype(np.float64))


Value = np.ndarray | Blocks


def tensor(ctx: Context, value: Value) -> Tensor:
    """An input of the numpy value; its shape is the reversed one."""
    if isinstance(value, Blocks):
        return ctx.input().from_bytes(value.dtype, value.data, *value.values.shape[::-1])
    dtype = _BY_NUMPY[value.dtype.char]
    return ctx.input().from_bytes(dtype, value.tobytes(), *value.shape[::-1])


def exact(value: Value) -> np.ndarray:
    """The value in float64, integers as they are."""
    if isinstance(value, Blocks):
        return value.values
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def run(
    backend: Backend, build: Callable[..., Tensor], *values: Value
) -> tuple[np.ndarray, Tensor]:
    """Computes `build` on inputs, twice, and checks what holds of every op:

    ggml made the shape, strides and dtype that the op's rule promised; computing again gives the
    same bits; no input was written.
    """
    with backend.new_context() as ctx, ctx.trace():
        inputs = [tensor(ctx, v) for v in values]
        before = [x.raw().copy() for x in inputs]
        out = build(*inputs) if inputs else build(ctx)
        ctx.forward(out)
        executable = backend.compile(ctx.graph, (out, *inputs))
        assert isinstance(executable, GGMLExecutable)
        executable.run()
        first = executable.value(out).copy()
        for node in ctx.graph.schedule:
            made = executable.tensor(node)
            assert (tuple(made.ne), made.type) == (node.ne, int(node.dtype)), node
            if node.n_elements:
                assert tuple(made.nb) == node.nb, node
        executable.run()
        assert executable.value(out).tobytes() == first.tobytes()
        for x, was in zip(inputs, before, strict=True):
            if x in ctx.graph.inputs:
                assert executable.value(x).tobytes() == was.tobytes(), f"{x} was written"
        executable.close()
        out.value = first
        return out.numpy(), out


def free_port() -> int:
    """A port of the loopback interface that nothing uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
