"""Rounds a model of transformers as ggml rounds: weights to a type, what is multiplied with them to
the type's partner, GELU by tanh through a table in F16: with a gate, and on any processor without
kernels of our own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..convert.quantize import decode, encode
from ..errors import Unsupported
from ..gguf_file import DType

FACTOR = 4
"""How many times further than the rounded reference a right model may be off: ggml's blocks and
sums are others, so the error has another sign in each number, but the same size."""


def rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Float32 numbers after a way through a type; F16 where its blocks do not fill a row."""
    if values.shape[-1] % dtype.block_size:
        dtype = DType.F16
    values = np.ascontiguousarray(values, np.float32)
    try:
        raw = encode(values, dtype)
    except Unsupported:  # not without an importance
        raw = encode(values, dtype, importance=np.ones((1, values.shape[-1]), np.float32))
    return decode(raw, dtype, values.size).reshape(values.shape)


def apart(moved: np.ndarray, exact: np.ndarray) -> list[float]:
    """The NMSE of an array, and that of its worst row, at most 1."""
    rows = exact.astype(np.float64).reshape(-1, exact.shape[-1] if exact.ndim else 1)
    squared = np.square(moved.reshape(rows.shape) - rows).sum(1)
    with np.errstate(all="ignore"):
        found = squared.sum() / np.square(rows).sum(), (squared / np.square(rows).sum(1)).max()
    return [float(f"{np.nan_to_num(nmse).clip(0, 1):.2e}") for nmse in found]


@contextmanager
def rounding(net: Any, dtype: DType) -> Iterator[None]:
    """Within the block a model of transformers computes as ggml does with weights of a type. Its
    weights stay rounded behind it.

    Args:
        net: in float32, on the CPU.
        dtype: F32 leaves weights as they are.
    """
    torch = importlib.import_module("torch")
    gelu, tanh = torch.nn.functional.gelu, {"approximate": "tanh"}
    products = {
        torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__,
        torch.bmm, torch.Tensor.bmm, torch.mm, torch.Tensor.mm, torch.addmm, torch._grouped_mm,
        torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d,
    }  # fmt: skip
    partner = DType.Q8_0 if dtype.is_quantized else dtype
    held = set[int]()
    for parameter in net.parameters() if dtype is not DType.F32 else ():
        if parameter.dim() > 1:
            parameter.data = torch.from_numpy(rounded(parameter.data.numpy(), dtype).copy())
            held.add(parameter.untyped_storage().data_ptr())

    def narrow(value: Any) -> Any:
        """A factor of a product with weights."""
        if not isinstance(value, torch.Tensor) or value.untyped_storage().data_ptr() in held:
            return value
        if not value.is_floating_point() or value.dim() < 2:  # a bias
            return value
        return torch.from_numpy(rounded(value.detach().numpy(), partner).copy())

    class Rounding(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: tuple = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if function is gelu and kwargs.items() >= tanh.items():
                return function(args[0].half().float(), **kwargs).half().float()
            if function in products and any(
                isinstance(a, torch.Tensor) and a.untyped_storage().data_ptr() in held for a in args
            ):
                args = tuple(narrow(a) for a in args)
            return function(*args, **kwargs)

    hooks = [
        module.register_forward_hook(lambda _, given, result: result.half().float())
        for module in net.modules()
        if type(module).__module__ == "transformers.activations"
        and "GELU" in type(module).__name__
        and type(module).__name__ != "GELUActivation"  # by the error function
    ]
    try:
        with Rounding():
            yield
    finally:
        for hook in hooks:
            hook.remove()
