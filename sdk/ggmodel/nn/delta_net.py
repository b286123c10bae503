"""The gated delta net: a matrix a head remembers values by keys, and forgets (arXiv 2412.06464)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..kvcache import LayerStates, Part, Recurrent
from ..ml import Tensor
from ..model.batch import Batch
from ..model.config import Config
from ..model.module import Module, gguf, kv
from ..model.operations import Chain, NegatedExp, Operation, value_of
from .layers import Linear, RMSNorm, activate
from .recurrent import TAPS, short_conv

_TINY = 1e-6  # in the length of queries and keys; configs do not have it


def delta_rule(
    part: Part,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: str = "delta",
) -> Tensor:
    """The gated delta rule from and to the state [w, w, heads], w being the larger of d and dv; see
    `Tensor.gated_delta_net`.

    Args:
        q, k: [d, groups, n, sequences], usually of length 1; head i has those of group i mod
            groups.
        v: [dv, heads, n, sequences].
        decay: logarithms, [1 or d, heads, n, sequences]: one a head, or one a channel of keys.
        beta: [1, heads, n, sequences].

    Returns:
        F32 [dv, heads, n, sequences].
    """
    d, width = v.dim(0), max(q.dim(0), v.dim(0))
    if (more := width - q.dim(0)) > 0:  # zeros change no product
        q, k = q.scale((width / q.dim(0)) ** 0.5).pad(more), k.pad(more)
        decay = decay if decay.dim(0) == 1 else decay.pad(more)
    rows = q.gated_delta_net(k, v.pad(width - d) if d < width else v, decay, beta, part.get(state))
    n = part.n * part.sequences
    part.put(state, rows.slice(1, n, rows.dim(1)))
    y = rows.slice(1, 0, n).reshape(width, *v.shape[1:])
    return y if d == width else y.slice(0, 0, d).contiguous()


def _inner(hf: Mapping[str, Any]) -> int:
    return hf["linear_value_head_dim"] * hf["linear_num_value_heads"]


class DeltaNetConfig(Config):
    """Hyperparameters of gated delta nets: heads of values, of which several share one of queries
    and keys.

    Attributes:
        tiled: head i of values in a file has the keys of head i mod groups, as ggml repeats them;
            those that share keys are neighbours in checkpoints, and in files otherwise.
    """

    kernel: int = kv("ssm.conv_kernel", hf="linear_conv_kernel_dim", least=2)
    state: int = kv("ssm.state_size", hf="linear_key_head_dim", least=1)
    groups: int = kv("ssm.group_count", hf="linear_num_key_heads", least=1)
    values: int = kv("ssm.time_step_rank", hf="linear_num_value_heads", least=1)
    inner: int = kv("ssm.inner_size", hf=_inner)
    tiled: Any = True
    value_state = property(lambda h: h.inner // h.values)
    key_width = property(lambda h: h.groups * h.state)
    channels = property(lambda h: 2 * h.key_width + h.inner)

    @property
    def states(self) -> Recurrent:
        """The declaration of a layer's states, for `caches()`."""
        width = max(self.state, self.value_state)
        return Recurrent(conv=(self.kernel - 1, self.channels), delta=(width, width, self.values))


@dataclass(frozen=True)
class TileHeads(Operation):
    """Puts heads of values into the order of files, if the config says `tiled`.

    Args:
        of: elements of a head, or the config attribute. Elements before all heads stay.
        axis: along which they lie: rows, or columns.
    """

    of: int | str = 1
    axis: int = 0

    def to_gguf(self, x: np.ndarray, config: DeltaNetConfig) -> np.ndarray:
        groups, heads = config.groups, config.values
        if heads % groups:
            raise ConfigError(f"{heads} heads of values for {groups} heads of keys")
        return self._swap(x, config, groups, heads // groups)

    def to_hf(self, x: np.ndarray, config: DeltaNetConfig) -> np.ndarray:
        return self._swap(x, config, config.values // config.groups, config.groups)

    def results(self, x: np.ndarray, config: DeltaNetConfig) -> np.ndarray:
        if self.axis:
            return x
        return np.moveaxis(self.to_gguf(np.moveaxis(x, -1, 0), config), 0, -1)

    def _swap(self, x: np.ndarray, config: DeltaNetConfig, rows: int, columns: int) -> np.ndarray:
        if not config.tiled:
            return x
        size = value_of(config, self.of)
        before = x.shape[self.axis] - rows * columns * size
        if before < 0:
            raise ConfigError(f"{list(x.shape)} are fewer than {rows * columns} heads of {size}")
        kept, heads = np.split(np.moveaxis(x, self.axis, 0), [before])
        swapped = heads.reshape(rows, columns, size, *heads.shape[1:]).swapaxes(0, 1)
        joined = np.concatenate([kept, swapped.reshape(heads.shape)])
        return np.moveaxis(joined, 0, self.axis)


_WIDE, _EACH = TileHeads("value_state"), TileHeads()


class DeltaNet(Module):
    """Queries, keys and values behind a short convolution, the gated delta rule, a norm of each
    head, and a gate. It reads `DeltaNetConfig`, `width`, `eps` and `activation`."""

    qkv: Linear = gguf("attn_qkv", hf="in_proj_qkv", op=_WIDE, shape=("width", "channels"))
    gate: Linear = gguf("attn_gate", hf="in_proj_z", op=_WIDE, shape=("width", "inner"))
    beta: Linear = gguf("ssm_beta", hf="in_proj_b", op=_EACH, shape=("width", "values"))
    alpha: Linear = gguf("ssm_alpha", hf="in_proj_a", op=_EACH, shape=("width", "values"))
    taps: Tensor = gguf(
        "ssm_conv1d.weight",
        hf="conv1d.weight",
        op=Chain(TAPS, _WIDE),
        shape=("kernel", "channels"),
    )
    bias: Tensor = gguf("ssm_dt.bias", hf="dt_bias", op=_EACH, shape=("values",))
    rates: Tensor = gguf("ssm_a", hf="A_log", op=Chain(_EACH, NegatedExp()), shape=("values",))
    norm: RMSNorm = gguf("ssm_norm", hf="norm", shape=("value_state",))
    out: Linear = gguf(
        "ssm_out", hf="out_proj", op=TileHeads("value_state", axis=1), shape=("inner", "width")
    )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [width, n] → queries, keys and values [channels, n], gates [inner, n], how much is
        overwritten [values, n], from 0 to 1, and what forgets by [values, n]."""
        return self.qkv(x), self.gate(x), self.beta(x).sigmoid(), self.alpha(x)

    def normed(self, y: Tensor) -> Tensor:
        """y [value_state, values, n] → the same."""
        return self.norm(y)

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        """x [width, n] → [width, n] F32."""
        h = self.config
        qkv, gate, beta, alpha = self.project(x)
        decay = (alpha + self.bias).softplus() * self.rates
        y = self.normed(cache.each(self.remember, qkv, decay, beta).reshape(-1, h.values, x.dim(1)))
        return self.out((y * gate.reshape(*y.shape).silu()).reshape(h.inner, -1))

    def remember(self, part: Part, x: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """Queries, keys and values x [channels, n, sequences], decay [values or key_width, n,
        sequences] and beta [values, n, sequences] → [inner, n, sequences]."""
        h, shape = self.config, (part.n, part.sequences)
        x = activate(h.activation, short_conv(part, x, self.taps))
        q, k, v = x.chunk_sections(0, h.key_width, h.key_width, h.inner)
        # √(Σx² + ε) is √d · √(mean(x²) + ε/d).
        q, k = (
            s.contiguous(h.state, h.groups, *shape)
            .rms_norm(eps=_TINY / h.state)
            .scale(h.state**-0.5)
            for s in (q, k)
        )
        if not h.tiled:
            q, k = (self._repeated(s) for s in (q, k))
        v = v.contiguous(h.value_state, h.values, *shape)
        decay, beta = (s.reshape(s.dim(0) // h.values, h.values, *shape) for s in (decay, beta))
        return delta_rule(part, q, k, v, decay, beta).reshape(h.inner, *shape)

    def _repeated(self, x: Tensor) -> Tensor:
        """Each of the groups of x [d, groups, n, sequences] as often as heads share it, side by
        side: [d, heads, n, sequences]."""
        h, (d, _, *shape) = self.config, x.shape
        each = x.reshape(d, 1, h.groups, -1).repeat(1, h.values // h.groups)
        return each.reshape(d, h.values, *shape)
