"""Mamba, and Falcon Mamba, which norms what a token selects; files name both `mamba`."""

from __future__ import annotations

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Recurrent
from ggmodel.nn import Embedding, RMSNorm


class MambaConfig(nn.MambaConfig):
    # The tensors tell the same, or training alone reads it.
    fixed = {
        **{f"use_{key}": ... for key in ("bias", "conv_bias", "mambapy", "associative_scan")},
        **{f"time_step_{key}": ... for key in ("scale", "min", "max", "init_scheme", "floor")},
        **dict.fromkeys(("residual_in_fp32", "rescale_prenorm_residual", "intermediate_size"), ...),
    }
    unread = ("ffn", "heads")

    layers: int = kv("block_count", hf="num_hidden_layers")
    width: int = kv("embedding_length", hf="hidden_size")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="layer_norm_epsilon")
    context: int = kv("context_length", hf=lambda hf: 2**20)  # there is no limit
    ffn: int = kv("feed_forward_length", hf=lambda hf: 0, default=0)
    heads: int = kv("attention.head_count", hf=lambda hf: 0, default=0)
    selected_norms: bool = kv(
        "ssm.dt_b_c_rms", hf=lambda hf: True if "mixer_rms_eps" in hf else None, default=False
    )
    selected_eps: float = kv("ssm.dt_b_c_rms_epsilon", hf="mixer_rms_eps", default="eps")


class Mamba(nn.Mamba):
    def selected_norm(self, x: Tensor) -> Tensor:
        return x.rms_norm(eps=self.config.selected_eps) if self.config.selected_norms else x

    dt_norm = b_norm = c_norm = selected_norm


class Layer(nn.MixerLayer):
    mixer: Mamba


@register("mamba", hf=("MambaForCausalLM", "FalconMambaForCausalLM"))
class MambaModel(nn.PlainDecoder):
    config: MambaConfig
    embed: Embedding = gguf("token_embd", hf="backbone.embeddings", shape=("width", None))
    layers: list[Layer] = gguf("blk", hf="backbone.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="backbone.norm_f", shape=("width",))

    def caches(self) -> list[Recurrent]:
        return [self.config.states] * self.config.layers
