"""Cohere 2, as Command R7B: attention and feed-forward part side by side; layers that see
everything do not rotate."""

from __future__ import annotations

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import LayerNorm


class CohereConfig(nn.DecoderConfig):
    """The hyperparameters of both generations."""

    eps: float = kv("attention.layer_norm_epsilon", hf="layer_norm_eps")
    logit_scale: float = kv("logit_scale", hf="logit_scale", default=1.0)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")


class Cohere2Config(CohereConfig):
    window: int = kv("attention.sliding_window", hf="sliding_window", least=1)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[4])


class ParallelLayer(Module):
    """x + attn(norm(x)) + ffn(norm(x)). A subclass annotates `attn`."""

    norm: LayerNorm = gguf("attn_norm", hf="input_layernorm", shape=("width",))
    attn: Module = gguf(hf="self_attn")
    ffn: nn.GatedMLP = gguf(hf="mlp")

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None
    ) -> Tensor:
        y = self.norm(x)
        x, y, attended = nn.keep_rows(outputs, x, y, self.attn(y, batch, cache))
        return x + attended + self.ffn(y)


class Layer(ParallelLayer):
    attn: nn.Attention


class Cohere(nn.Decoder):
    """The model of both generations. A subclass annotates `config` and `layers`, and writes
    `caches`."""

    config: CohereConfig
    norm: LayerNorm = gguf("output_norm", hf="model.norm", shape=("width",))


@register("cohere2", hf="Cohere2ForCausalLM")
class Cohere2(Cohere):
    config: Cohere2Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope()
        return Sliding.where(h.local, h.window, [rope if near else None for near in h.local])
