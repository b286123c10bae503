"""Arithmetic with broadcasting, unary functions, gated activations, conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .table import computes, tiled

_erf = np.vectorize(math.erf, [np.float64])  # which numpy lacks


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Hendrycks and Gimpel's approximation with tanh (arXiv 1606.08415)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(1.702 * x)


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


for _name, _function in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}.items():
    computes(_name)(lambda a, b, f=_function: f(a, tiled(b, a.shape)))

for _name, _function in {
    "neg": np.negative,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": relu,
    "gelu": gelu,
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "quick_gelu": quick_gelu,
    "silu": silu,
    "softplus": lambda x: np.logaddexp(0, x),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from zero
    "sqr": np.square,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "log": np.log,
}.items():
    computes(_name)(_function)

for _name, _function in {
    "gated_gelu": gelu,
    "gated_quick_gelu": quick_gelu,
    "gated_silu": silu,
    "gated_relu": relu,
}.items():
    computes(_name)(lambda gate, up, f=_function: f(gate) * up)


@computes("silu_alpha_limit")
def silu_alpha_limit(gate: np.ndarray, up: np.ndarray, alpha: float, limit: float) -> np.ndarray:
    """As in gpt-oss: only the upper side of the gate is limited."""
    gate = np.minimum(gate, limit)
    return gate * sigmoid(alpha * gate) * (np.clip(up, -limit, limit) + 1)


@computes("scale")
def scale(x: np.ndarray, s: float) -> np.ndarray:
    return x * s


@computes("clamp")
def clamp(x: np.ndarray, lo: float, hi: float) -> np.ndarray:
    return np.minimum(np.maximum(x, lo), hi)


@computes("fill")
def fill(x: np.ndarray, value: float) -> np.ndarray:
    return np.full(x.shape, value)


@computes("cast")
def cast(x: np.ndarray, **_: Any) -> np.ndarray:
    return x  # rounded, or its fraction dropped, as every result is
