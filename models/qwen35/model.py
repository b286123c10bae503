"""Qwen 3.5, dense and with experts: gated delta nets in most layers, gated attention in others."""

from __future__ import annotations

from ggmodel import Tensor, gguf, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import AddConstant, Batch, LayerMemory, Part, Stack
from ggmodel.nn import ExpertLinear, Linear, RMSNorm

from .config import Qwen35Config, Qwen35MoeConfig


def _norm(name: str, hf: str, width: str = "width") -> RMSNorm:
    return gguf(name, hf=hf, op=AddConstant(1), shape=(width,))


class Attention(nn.Attention):
    q_norm: RMSNorm = _norm("attn_q_norm", "q_norm", "head_dim")
    k_norm: RMSNorm = _norm("attn_k_norm", "k_norm", "head_dim")

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h = self.config
        q, gate = self.q(x).reshape(2 * h.head_dim, h.heads, -1).chunk(0, h.head_dim)
        k = self.k_norm(self.k(x).reshape(h.head_dim, h.kv_heads, -1))
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        q = cache.rotate(self.q_norm(q), batch.positions)
        k = cache.rotate(k, batch.positions)
        y = nn.attention(q, k, v, cache, scale=h.head_dim**-0.5)
        return self.out(y * gate.contiguous(h.out_width, -1).sigmoid())


def _of_experts(part: int, name: str) -> Tensor:
    """Published as one tensor for all experts, gate and up in one, or as one an expert."""
    both = Part("gate_up_proj", part, ("expert_ffn", "expert_ffn"), axis=-2)
    return gguf("weight", hf=(both, Stack(f"{{}}.{name}.weight", "experts")))


class Gate(ExpertLinear):
    weight = _of_experts(0, "gate_proj")


class Up(ExpertLinear):
    weight = _of_experts(1, "up_proj")


class Down(ExpertLinear):
    weight = gguf("weight", hf=("down_proj", Stack("{}.down_proj.weight", "experts")))


class Experts(nn.GatedExperts):
    gate: Gate = gguf("ffn_gate_exps", hf="experts", shape=("width", "expert_ffn", "experts"))
    up: Up = gguf("ffn_up_exps", hf="experts", shape=("width", "expert_ffn", "experts"))
    down: Down = gguf("ffn_down_exps", hf="experts", shape=("expert_ffn", "width", "experts"))
    shared: nn.SharedExpert = gguf(hf="shared_expert")
    share: Linear = gguf("ffn_gate_inp_shexp", hf="shared_expert_gate", shape=("width", 1))


class Layer(nn.PreNormLayer):
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Attention | nn.DeltaNet = gguf(hf=("self_attn", "linear_attn"))
    ffn_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")


class ExpertLayer(Layer):
    ffn: Experts = gguf(hf="mlp")


class NextToken(nn.NextToken):
    embedding_norm: RMSNorm = _norm("nextn.enorm", "pre_fc_norm_embedding")
    hidden_norm: RMSNorm = _norm("nextn.hnorm", "pre_fc_norm_hidden")
    project: Linear = gguf("nextn.eh_proj", hf="fc", shape=("twice_width", "width"))
    layer: Layer = gguf(hf="layers.0")
    norm: RMSNorm = _norm("nextn.shared_head_norm", "norm")


class ExpertNextToken(NextToken):
    layer: ExpertLayer = gguf(hf="layers.0")


class HybridDecoder(nn.HybridDecoder):
    ignore_hf = ("mtp.*",)
    norm: RMSNorm = gguf("output_norm", op=AddConstant(1), shape=("width",))

    @property
    def ignore(self) -> tuple[str, ...]:
        """MTP layers, which draft further tokens, stand behind all others."""
        h = self.config
        return tuple(f"blk.{i}.*" for i in range(h.layers, h.blocks))

    def validate(self) -> None:
        h = self.config
        if h.layers < 1:
            raise ConfigError(f"{h.mtp_layers} of {h.blocks} layers are MTP layers; none is left")
        super().validate()
        if h.inner != h.values * h.state or h.values % h.groups:
            raise ConfigError(
                f"ssm.inner_size {h.inner} for {h.values} heads of {h.state}, {h.groups} of keys; "
                "values are as wide as keys, and each head of keys serves equally many"
            )


@register("qwen35", hf=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"))
class Qwen35(HybridDecoder, nn.GridVision, text=("model", "model.language_model")):
    frame = {
        "<|vision_start|>": 248053,
        "<|image_pad|>": 248056,
        "<|video_pad|>": 248057,
        "<|vision_end|>": 248054,
    }

    config: Qwen35Config
    layers: list[Layer]
    mtp: NextToken | None = gguf("blk", hf="mtp", numbers="mtp_numbers")

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    def attention_memory(self) -> Causal:
        return Causal(self.rotary.rope(RopeType.IMROPE, self.config.sections))


@register("qwen35moe", hf=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"))
class Qwen35Moe(Qwen35):
    """The same with experts, and one that all tokens share."""

    config: Qwen35MoeConfig
    layers: list[ExpertLayer]
    mtp: ExpertNextToken | None = gguf("blk", hf="mtp", numbers="mtp_numbers")
