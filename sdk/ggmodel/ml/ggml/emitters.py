"""The table of emitters: ops as calls of ggml.

An emitter turns one op into calls: it takes the ggml context, the operands' tensors (NULL for an
absent one) and the op's attributes, and returns the result's tensor, or NULL after a failed assert.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ...native import ffi, lib

Emitter = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
EMITTERS: dict[str, Emitter] = {}


def emits(name: str) -> Callable[[Emitter], Emitter]:
    """Enters the decorated emitter for the op `name`."""

    def enter(emitter: Emitter) -> Emitter:
        EMITTERS[name] = emitter
        return emitter

    return enter


def _direct(function: Any) -> Emitter:
    return lambda c, x, a: function(c, *x)


# Ops whose ggml function takes the same operands and nothing else.
_DIRECT = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div",
    "neg": "neg", "exp": "exp", "tanh": "tanh", "sigmoid": "sigmoid", "relu": "relu",
    "gelu": "gelu", "gelu_erf": "gelu_erf", "quick_gelu": "gelu_quick", "silu": "silu",
    "softplus": "softplus", "abs": "abs", "floor": "floor", "ceil": "ceil", "round": "round",
    "sqr": "sqr", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "log": "log",
    "gated_gelu": "geglu_split", "gated_quick_gelu": "geglu_quick_split",
    "gated_silu": "swiglu_split", "gated_relu": "reglu_split",
    "contiguous": "cont", "duplicate": "dup", "copy": "cpy",
    "rows": "get_rows", "set_rows": "set_rows", "argmax": "argmax", "diag": "diag",
    "sum_rows": "sum_rows", "mean": "mean", "cumsum": "cumsum",
    "mulmat_id": "mul_mat_id", "ssm_conv": "ssm_conv",
    "add_relative_positions": "add_rel_pos",
}  # fmt: skip
for _name, _function in _DIRECT.items():
    EMITTERS[_name] = _direct(getattr(lib, f"ggml_{_function}"))

# Ops whose ggml function takes attributes beside the operands.
EMITTERS.update(
    norm=lambda c, x, a: lib.ggml_norm(c, x[0], a["eps"]),
    rms_norm=lambda c, x, a: lib.ggml_rms_norm(c, x[0], a["eps"]),
    l2_norm=lambda c, x, a: lib.ggml_l2_norm(c, x[0], a["eps"]),
    scale=lambda c, x, a: lib.ggml_scale(c, x[0], a["s"]),
    fill=lambda c, x, a: lib.ggml_fill(c, x[0], a["value"]),
    silu_alpha_limit=lambda c, x, a: lib.ggml_swiglu_oai(c, *x, a["alpha"], a["limit"]),
    cast=lambda c, x, a: lib.ggml_cast(c, x[0], int(a["dtype"])),
    reshape=lambda c, x, a: lib.ggml_reshape_4d(c, x[0], *a["ne"]),
    # ggml assumes a dense dim 0; a view of a permuted tensor gets its strides later.
    view=lambda c, x, a: lib.ggml_view_4d(c, x[0], *a["ne"], *a["nb"][1:], a["offset"]),
    permute=lambda c, x, a: lib.ggml_permute(c, x[0], *a["order"]),
    pad=lambda c, x, a: lib.ggml_pad(c, x[0], *a["amounts"]),
    repeat=lambda c, x, a: lib.ggml_repeat_4d(c, x[0], *a["ne"]),
    concat=lambda c, x, a: lib.ggml_concat(c, *x, a["dim"]),
    set=lambda c, x, a: lib.ggml_set(c, *x, *a["nb"], a["offset"]),
    set_inplace=lambda c, x, a: lib.ggml_set_inplace(c, *x, *a["nb"], a["offset"]),
    tri=lambda c, x, a: lib.ggml_tri(c, x[0], a["kind"]),
    interpolate=lambda c, x, a: lib.ggml_interpolate(c, x[0], *a["ne"], int(a["mode"])),
    group_norm=lambda c, x, a: lib.ggml_group_norm(c, x[0], a["groups"], a["eps"]),
    window_partition=lambda c, x, a: lib.ggml_win_part(c, x[0], a["size"]),
    roll=lambda c, x, a: lib.ggml_roll(c, x[0], *a["shifts"]),
    pad_reflect=lambda c, x, a: lib.ggml_pad_reflect_1d(c, x[0], a["before"], a["after"]),
    conv_transpose_1d=lambda c, x, a: lib.ggml_conv_transpose_1d(c, *x, a["stride"], 0, 1),
    conv_transpose_2d=lambda c, x, a: lib.ggml_conv_transpose_2d_p0(c, *x, a["stride"]),
    depthwise_conv_2d=lambda c, x, a: lib.ggml_conv_2d_dw_direct(
        c, *x, *a["stride"], *a["pad"], *a["dilation"]
    ),
    window_unpartition=lambda c, x, a: lib.ggml_win_unpart(
        c, x[0], a["width"], a["height"], x[0].ne[1]
    ),
    # Left, lower, no unit diagonal: ggml's only variant.
    solve_tri=lambda c, x, a: lib.ggml_solve_tri(c, *x, True, True, False),
    # One snapshot of the states, after the last token.
    ssm_scan=lambda c, x, a: lib.ggml_ssm_scan(c, *x, 1),
    gated_delta_net=lambda c, x, a: lib.ggml_gated_delta_net(c, *x, 1),
)


@emits("rwkv_wkv7")
def _rwkv_wkv7(c: Any, x: tuple, a: dict) -> Any:
    *rows, states = x
    width, heads, tokens, sequences = rows[0].ne
    rows = [lib.ggml_reshape_3d(c, t, width, heads, tokens * sequences) for t in rows]
    flat = lib.ggml_reshape_2d(c, states, width * width * heads, sequences)
    return lib.ggml_rwkv_wkv7(c, *rows, flat)


@emits("mulmat")
def _mulmat(c: Any, x: tuple, a: dict) -> Any:
    t = lib.ggml_mul_mat(c, x[0], x[1])
    if t and a.get("full_precision"):
        lib.ggml_mul_mat_set_prec(t, lib.GGML_PREC_F32)
    return t


@emits("add_id")
def _add_id(c: Any, x: tuple, a: dict) -> Any:
    bias = x[1]
    if bias.op != lib.GGML_OP_NONE:
        # The allocator may place the result in any operand of its shape. In the bias it would
        # overwrite rows before they are read; outputs are exempt.
        lib.ggml_set_output(bias)
    return lib.ggml_add_id(c, *x)


@emits("clamp")
def _clamp(c: Any, x: tuple, a: dict) -> Any:
    # ggml's clamp writes to its operand, so it is given a copy.
    copy = lib.ggml_dup(c, x[0])
    return copy and lib.ggml_clamp(c, copy, a["lo"], a["hi"])


@emits("argsort")
def _argsort(c: Any, x: tuple, a: dict) -> Any:
    down = a.get("descending", False)
    order = lib.GGML_SORT_ORDER_DESC if down else lib.GGML_SORT_ORDER_ASC
    return lib.ggml_argsort(c, x[0], order)


@emits("arange")
def _arange(c: Any, x: tuple, a: dict) -> Any:
    # ggml divides in float32, which may give another count: aim between two of them.
    start, step = a["start"], a["step"]
    count = math.ceil((a["stop"] - start) / step)
    if step < 0:  # which ggml lacks
        up = lib.ggml_arange(c, 0, count - 0.5, 1)
        return up and lib.ggml_scale_bias(c, up, step, start)
    return lib.ggml_arange(c, start, start + (count - 0.5) * step, step)


@emits("softmax")
def _softmax(c: Any, x: tuple, a: dict) -> Any:
    t = lib.ggml_soft_max_ext(c, x[0], x[1], a.get("scale", 1.0), a.get("max_bias", 0.0))
    if t and x[2] and not lib.ggml_soft_max_add_sinks(t, x[2]):
        return ffi.NULL
    return t


@emits("flash_attention")
def _flash_attention(c: Any, x: tuple, a: dict) -> Any:
    q, k, v, mask, sinks, _ = x
    bias = a.get("max_bias", 0.0)
    t = lib.ggml_flash_attn_ext(c, q, k, v, mask, a["scale"], bias, a["softcap"])
    if t:
        lib.ggml_flash_attn_ext_set_prec(t, lib.GGML_PREC_F32)
        if sinks and not lib.ggml_flash_attn_ext_add_sinks(t, sinks):
            return ffi.NULL
    return t


@emits("rope")
def _rope(c: Any, x: tuple, a: dict) -> Any:
    tail = (
        int(a["mode"]), a["original_context"], a["base"], a["scale"], a["ext_factor"],
        a["attn_factor"], a["beta_fast"], a["beta_slow"],
    )  # fmt: skip
    if a["sections"]:
        return lib.ggml_rope_multi(c, x[0], x[1], x[2], a["dims"], list(a["sections"]), *tail)
    return lib.ggml_rope_ext(c, x[0], x[1], x[2], a["dims"], *tail)


@emits("relative_positions")
def _relative_positions(c: Any, x: tuple, a: dict) -> Any:
    n = (x[0].ne[1] + 1) // 2
    return lib.ggml_get_rel_pos(c, x[0], n, n)


@emits("im2col")
def _im2col(c: Any, x: tuple, a: dict) -> Any:
    spatial = (*a["stride"], *a["pad"], *a["dilation"])
    return lib.ggml_im2col(c, x[0], x[1], *spatial, True, lib.GGML_TYPE_F32)


# Not ggml_conv_1d, ggml_conv_2d, ggml_conv_3d and ggml_conv_1d_dw, which round the patches to F16.


@emits("conv_1d")
def _conv_1d(c: Any, x: tuple, a: dict) -> Any:
    kernel, sound = x
    spatial = (a["stride"], 0, a["pad"], 0, a["dilation"], 0)
    patches = lib.ggml_im2col(c, kernel, sound, *spatial, False, lib.GGML_TYPE_F32)
    if not patches:
        return ffi.NULL
    _, length, batch, _ = patches.ne
    dense = _convolved(c, patches, kernel, kernel.ne[2], (length, 1, batch), a)
    return lib.ggml_reshape_3d(c, dense, length, kernel.ne[2], batch)


@emits("depthwise_conv_1d")
def _depthwise_conv_1d(c: Any, x: tuple, a: dict) -> Any:
    kernel, sound = x
    k, _, channels, _ = kernel.ne
    length, _, batch, _ = sound.ne
    kernel = lib.ggml_reshape_4d(c, kernel, k, 1, 1, channels)
    sound = lib.ggml_reshape_4d(c, sound, length, 1, channels, batch)
    t = lib.ggml_conv_2d_dw_direct(c, kernel, sound, a["stride"], 1, a["pad"], 0, a["dilation"], 1)
    return t and lib.ggml_reshape_3d(c, t, t.ne[0], channels, batch)


@emits("conv_2d")
def _conv_2d(c: Any, x: tuple, a: dict) -> Any:
    patches = _im2col(c, x, a)
    if not patches:
        return ffi.NULL
    return _convolved(c, patches, x[0], x[0].ne[3], tuple(patches.ne)[1:], a)


@emits("conv_3d")
def _conv_3d(c: Any, x: tuple, a: dict) -> Any:
    kernel, image = x
    channels = a["channels"]
    spatial = (*a["stride"], *a["pad"], *a["dilation"])
    patches = lib.ggml_im2col_3d(c, kernel, image, channels, *spatial, lib.GGML_TYPE_F32)
    if not patches:
        return ffi.NULL
    _, width, height, slices = patches.ne
    batch, out = image.ne[3] // channels, kernel.ne[3] // channels
    depth = slices // batch
    dense = _convolved(c, patches, kernel, out, (width * height, depth, batch), a)
    if not dense:
        return ffi.NULL
    return lib.ggml_reshape_4d(c, dense, width, height, depth, out * batch)


def _convolved(c: Any, patches: Any, kernel: Any, out: int, ne: tuple[int, ...], a: dict) -> Any:
    """Patches [k, a · b · c] times kernel [k, out], as [a, b, out, c] for ne (a, b, c). The op may
    have the function that computes products as its attribute "product"."""
    k = patches.ne[0]
    rows = lib.ggml_reshape_2d(c, patches, k, math.prod(ne))
    multiply = a.get("product") or functools.partial(lib.ggml_mul_mat, c)
    product = multiply(rows, lib.ggml_reshape_2d(c, kernel, k, out)) if k else ffi.NULL
    if not product:
        return ffi.NULL
    by_channel = lib.ggml_reshape_4d(c, product, *ne, out)
    return lib.ggml_cont(c, lib.ggml_permute(c, by_channel, 0, 1, 3, 2))


@emits("avg_pool_2d")
def _avg_pool_2d(c: Any, x: tuple, a: dict) -> Any:
    k, s, p = a["k"], a["s"], a["p"]
    return lib.ggml_pool_2d(c, x[0], lib.GGML_OP_POOL_AVG, k, k, s, s, p, p)
