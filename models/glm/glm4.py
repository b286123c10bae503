"""GLM 4: norms on both sides of each part, neighbours of half a head rotated, gate and up in one
matrix."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.nn import RMSNorm


class Glm4Config(nn.DraftingConfig):
    rope_dims: int = nn.partial_rope(0.5)
    # GLM-OCR's texts have them; their pairs are half of the rotated part apart.
    sections: list = kv("rope.dimension_sections", default=[])


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, shape=("width",))


class Layer(nn.SandwichLayer):
    attn: nn.Attention
    ffn: nn.FusedGatedMLP
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_self_attn_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "post_attention_layernorm")
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_mlp_layernorm")


@register("glm4", hf="Glm4ForCausalLM")
class Glm4(nn.DraftingDecoder):
    config: Glm4Config
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        h = self.config
        kind = RopeType.NEOX if any(h.sections) else RopeType.NORM
        return [Causal(self.rotary.rope(kind))] * h.layers
