"""Weights for tiny test models, derived from the tensor's name alone.

`weight(name, shape)` computes a golden model's checkpoint; no weights are committed. The name is
the one in a Hugging Face checkpoint on disk: `model.layers.0.self_attn.q_proj.weight`.

The rule, the same on every platform and in every version of numpy:

1. SHAKE-256 of the UTF-8 name gives four bytes a value, read as little-endian uint32 in C order.
2. The top 23 bits k of each give u = (2k + 1 - 2**23) / 2**23: exact in float32, symmetric,
   |u| < 1, never zero. Its standard deviation is 1 / sqrt(3).
3. One or two correctly rounded float32 operations scale it:

   | tensor                                                    | value                      |
   | `*.bias`                                                  | 0.1 u                      |
   | `*norm*.weight` (a module whose name contains "norm")     | 1 + 0.2 u                  |
   | `*embed*.weight` with two axes                            | u                          |
   | any other with two or more axes                           | sqrt(3 / fan_in) u         |
   | any other with one axis or none (gates, class embeddings) | u                          |

   fan_in is the product of all axes but the first, so matrices have std 1 / sqrt(fan_in):
   activations and logits stay O(1), attention scores have std about 1 (positions and masks matter),
   and F16 weights stay within an NMSE of 1e-6 (which matrices sqrt(2) times as large exceed).

Goldens depend on every digit of this rule. Extend it only for kinds of tensors that no golden has
yet (a test holds a digest).
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray


def uniform(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Float32 values in (-1, 1) from SHAKE-256 of `name`."""
    count = math.prod(shape)
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), dtype="<u4")
    odd = 2 * (bits >> np.uint32(9)).astype(np.int32) + 1 - (1 << 23)
    values = odd.astype(np.float32).reshape(shape)
    values /= np.float32(1 << 23)
    return values


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The weight of the Hugging Face tensor `name`; see the module's docstring for the rule."""
    u = uniform(name, shape)
    module, _, kind = name.rpartition(".")
    module = module.rpartition(".")[2]
    if kind == "bias":
        return np.float32(0.1) * u
    if kind == "weight" and "norm" in module:
        return np.float32(1.0) + np.float32(0.2) * u
    if kind == "weight" and "embed" in module and len(shape) == 2:
        return u
    if len(shape) >= 2:
        return np.float32(math.sqrt(3 / math.prod(shape[1:]))) * u
    return u
