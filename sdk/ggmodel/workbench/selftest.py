"""Does this ggml compute what it should? Its ops beside the reference, on each device.

`python -m ggmodel.workbench.selftest` prints what was compared as a line of JSON and ends with
status 0, or says which op is wrong and ends with 1. It takes a second or two a device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..convert.quantize import encode
from ..errors import ComputeError, Error
from ..gguf_file import MemorySource
from ..ml import (
    Backend,
    BackendParams,
    Context,
    DType,
    FlashAttention,
    GPULayers,
    GPULayersList,
    RopeType,
    Tensor,
    new_backend,
)
from ..ml.devices import DeviceInfo
from ..ml.ggml.hardware import discover

# The largest difference beside the results' root mean square. Activations of quantised weights are
# rounded to max / 127, 0.6 % of a Gaussian product's spread, of which six are 4 %; other values to
# F16 at worst, 0.05 % a step. A wrong lane or block is off by as much as the result itself.
ROUNDED, NEAR = 0.06, 0.02

TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
_COLUMNS = (1, 3, 40)  # a token, a few, a part of a prompt: each has kernels of its own
_PRODUCTS = {
    f"a product of {type} with {columns} columns": (type, columns)
    for type in TYPES
    for columns in _COLUMNS
}
_COMMON = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
_RARE = {name for name, (type, _) in _PRODUCTS.items() if type not in _COMMON}
_FUSED = "attention"
_WIDTH, _OUT, _TOKENS = 512, 96, 9  # no multiples of the kernels' tiles
_HEADS, _KV_HEADS, _HEAD = 4, 2, 32
_EXPERTS = 4

Build = Callable[[Backend, Context], Tensor]


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test that passed.

    Attributes:
        version: of ggml. features: of its CPU backend. devices: those that computed.
        comparisons: how many results were compared.
        worst: the largest difference, as a share of what is allowed.
    """

    version: str
    features: dict[str, str]
    devices: list[str]
    comparisons: int
    worst: float


def self_test() -> SelfTest:
    """Compares this process's ggml with the reference.

    Raises:
        ComputeError: a result is wrong; names the op and the device.
    """
    from .. import native

    pieces = _pieces()
    weights = _weights()
    expected = _computed(weights, pieces, "reference", BackendParams())
    devices = [None, *(d for d in discover() if d.library != "CPU")]
    worst, comparisons = 0.0, 0
    for device in devices:
        # Compiling kernels for a GPU takes a moment for each type.
        own = {n: p for n, p in pieces.items() if device is None or n not in _RARE}
        for flash in (FlashAttention.OFF, FlashAttention.AUTO):
            chosen = own if flash is FlashAttention.OFF else {_FUSED: pieces[_FUSED]}
            got = _computed(weights, chosen, "ggml", _on(device, flash))
            for name, values in got.items():
                allowed = ROUNDED if name in _PRODUCTS else NEAR
                where = device.name if device else "CPU"
                worst = max(worst, _difference(name, where, values, expected[name], allowed))
            comparisons += len(got)
    about = native.describe()
    names = [device.name if device else "CPU" for device in devices]
    return SelfTest(about["version"], about["features"], names, comparisons, worst)


def _on(gpu: DeviceInfo | None, flash: FlashAttention) -> BackendParams:
    if gpu is None:
        return BackendParams(flash_attention=flash)
    layers = GPULayersList([GPULayers(gpu.id, gpu.library, layers=(0, 1))])
    return BackendParams(gpu_layers=layers, flash_attention=flash)


def _computed(
    weights: dict[str, Any], pieces: dict[str, Build], backend: str, params: BackendParams
) -> dict[str, np.ndarray]:
    metadata = {"general.architecture": "selftest", "selftest.block_count": 1}
    source = MemorySource(metadata, weights, name="the self-test")
    with ExitStack() as stack:
        made = stack.enter_context(new_backend(source, params, backend))
        traced: dict[str, tuple[Context, Tensor]] = {}
        for name, build in pieces.items():
            context = stack.enter_context(made.new_context())
            with context.trace():
                out = build(made, context)
                context.forward(out)
            traced[name] = context, out
        made.allocate(*(context.graph for context, _ in traced.values()))
        made.load()
        results: dict[str, np.ndarray] = {}
        for name, (context, out) in traced.items():
            context.compute(out)
            results[name] = out.numpy().copy()
        return results


def _difference(name: str, device: str, got: np.ndarray, want: np.ndarray, allowed: float) -> float:
    """The largest difference, as a share of what is allowed."""
    scale = float(np.sqrt(np.mean(np.square(want.astype(np.float64))))) or 1.0
    off = float(np.abs(got.astype(np.float64) - want).max()) / scale
    if got.shape != want.shape or not off <= allowed:
        raise ComputeError(
            f"{name} is wrong on {device}: off by {off:.3g} of a result's usual size, where "
            f"{allowed:g} is allowed; build ggml with other options, or report it to ggml"
        )
    return off / allowed


def _noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def _weights() -> dict[str, Any]:
    """Weights of a layer that no model has: a matrix of each type, those of attention, experts."""
    width = _HEADS * _HEAD
    weights: dict[str, Any] = {}
    for name in TYPES:
        values = _noise(_OUT, _WIDTH) / np.float32(_WIDTH**0.5)
        data = encode(values, DType[name]).tobytes()
        weights[f"blk.0.{name}"] = (DType[name], (_WIDTH, _OUT), data)
    halves = {
        "q": (width, width), "k": (_KV_HEADS * _HEAD, width), "v": (_KV_HEADS * _HEAD, width),
        "gate": (2 * width, width), "up": (2 * width, width), "down": (width, 2 * width),
        "experts": (_EXPERTS, width, width), "filter": (8, 4, 3, 3),
    }  # fmt: skip
    for i, (name, shape) in enumerate(halves.items()):
        values = _noise(*shape, seed=i + 1) / np.float32(shape[-1] ** 0.5)
        weights[f"blk.0.{name}"] = values.astype(np.float16)
    weights["blk.0.norm"] = 1 + _noise(width, seed=20) / 4
    weights["blk.0.conv"] = _noise(width, 4, seed=21)
    weights["token_embd"] = _noise(11, width, seed=22)
    return weights


def _pieces() -> dict[str, Build]:
    products = {name: _product(*product) for name, product in _PRODUCTS.items()}
    return products | {
        _FUSED: _attention, "the gated layers": _gated, "the choice of experts": _experts,
        "a convolution of a picture": _convolution, "a convolution of states": _states,
        "the delta rule": _delta_rule, "sums and logarithms": _elementwise,
    }  # fmt: skip


def _weight(backend: Backend, name: str) -> Tensor:
    weight = backend.get(name if name == "token_embd" else f"blk.0.{name}")
    assert weight is not None
    return weight


def _input(context: Context, values: np.ndarray) -> Tensor:
    dtype = DType.I32 if values.dtype.kind == "i" else DType.F32
    return context.input().from_bytes(dtype, values.tobytes(), *values.shape[::-1])


def _product(type: str, columns: int) -> Build:
    def build(backend: Backend, context: Context) -> Tensor:
        return _weight(backend, type).mulmat(_input(context, _noise(columns, _WIDTH, seed=30)))

    return build


def _rows(backend: Backend, context: Context) -> Tensor:
    """Tokens, normalised: [width, tokens]."""
    ids = _input(context, np.arange(_TOKENS, dtype=np.int32) * 5 % 11)
    return _weight(backend, "token_embd").rows(ids).rms_norm(_weight(backend, "norm"))


def _attention(backend: Backend, context: Context) -> Tensor:
    x = _rows(backend, context)
    positions = _input(context, np.arange(3, 3 + _TOKENS, dtype=np.int32))

    def heads(name: str, n: int) -> Tensor:
        return _weight(backend, name).mulmat(x).reshape(_HEAD, n, _TOKENS)

    q = heads("q", _HEADS).rope(positions, _HEAD, 10000.0, type=RopeType.NEOX)
    k = heads("k", _KV_HEADS).rope(positions, _HEAD, 10000.0, type=RopeType.NEOX)
    later = np.triu(np.full((_TOKENS, _TOKENS), -np.inf, np.float32), 1)
    out = q.scaled_dot_product_attention(
        k, heads("v", _KV_HEADS), _input(context, later), scale=_HEAD**-0.5
    )
    return out.reshape(_HEADS * _HEAD, _TOKENS)


def _gated(backend: Backend, context: Context) -> Tensor:
    x = _rows(backend, context)
    gate, up = _weight(backend, "gate").mulmat(x), _weight(backend, "up").mulmat(x)
    down = _weight(backend, "down")
    return x.add(down.mulmat(gate.silu(up))).add(down.mulmat(gate.gelu(up))).layer_norm()


def _experts(backend: Backend, context: Context) -> Tensor:
    x = _rows(backend, context)
    scores = _weight(backend, "q").mulmat(x).slice(0, 0, _EXPERTS).contiguous().softmax()
    chosen = scores.top_k(2)
    shape = (x.dim(0), 1, _TOKENS)
    return _weight(backend, "experts").mulmat_id(x.reshape(*shape), chosen)


def _convolution(backend: Backend, context: Context) -> Tensor:
    return _weight(backend, "filter").conv_2d(_input(context, _noise(1, 4, 10, 12)), 1, 1, 1, 1)


def _states(backend: Backend, context: Context) -> Tensor:
    x = _input(context, _noise(1, _HEADS * _HEAD, _TOKENS + 3, seed=31))
    return x.ssm_conv(_weight(backend, "conv")).silu()


def _delta_rule(backend: Backend, context: Context) -> Tensor:
    shape = (1, _TOKENS, 2, 16)
    keys = _noise(*shape, seed=33)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    decay = -np.abs(_noise(1, _TOKENS, 2, 1, seed=35))
    beta = np.abs(_noise(1, _TOKENS, 2, 1, seed=36)) / 4
    values = (_noise(*shape, seed=34), decay, beta, _noise(1, 2, 16, 16, seed=37))
    query = _input(context, _noise(*shape, seed=32))
    return query.gated_delta_net(_input(context, keys), *(_input(context, v) for v in values))


def _elementwise(backend: Backend, context: Context) -> Tensor:
    x = _rows(backend, context)
    parts = (x.sigmoid(), x.tanh(), x.sqr().scale(0.5).exp(), x.sqr().add(x.sqr()).sqrt())
    total = parts[0]
    for part in parts[1:]:
        total = total.mul(part).sub(x.l2_norm())
    return total.concat(x.softplus(), 1).cumsum()


def main() -> int:
    """Prints the result; the process's exit status."""
    try:
        print(json.dumps(asdict(self_test())), flush=True)
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
