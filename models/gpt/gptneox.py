"""GPT-NeoX and Pythia: layer norms, both parts of a layer side by side, a part of each head
rotated."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import PartsOfHeads
from ggmodel.nn import Embedding, LayerNorm, Linear


class GPTNeoXConfig(nn.LayerNormConfig):
    rope_base: float = kv("rope.freq_base", hf=("rotary_emb_base", "rope_theta"), default=1e4)
    rope_dims: int = nn.partial_rope(0.25)
    parallel: bool = kv("use_parallel_residual", hf="use_parallel_residual")
    activation: str = nn.activation("gelu")


class Attention(nn.FusedAttention):
    qkv: Linear = gguf(
        "attn_qkv", hf="query_key_value", op=PartsOfHeads("heads"), shape=("width", "qkv_width")
    )


class Layer(nn.LayerNormLayer):
    attn: Attention
    ffn: nn.MLP


@register("gptneox", hf="GPTNeoXForCausalLM")
class GPTNeoX(nn.LayerNormDecoder):
    # Masks and angles of rope that older versions of transformers saved.
    ignore_hf = ("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq")
    config: GPTNeoXConfig
    embed: Embedding = gguf("token_embd", hf="gpt_neox.embed_in", shape=("width", None))
    layers: list[Layer] = gguf("blk", hf="gpt_neox.layers", n="layers")
    norm: LayerNorm = gguf("output_norm", hf="gpt_neox.final_layer_norm", shape=("width",))
    head: Linear = gguf("output", "token_embd", hf=("embed_out", "lm_head"), shape=("width", None))

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
