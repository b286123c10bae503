"""Qwen 3.5, dense and with experts: gated delta nets in most layers, gated attention in others."""

from __future__ import annotations

from ggmodel import Module, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, LayerStates, Recurrent
from ggmodel.kvcache import Part as States
from ggmodel.ml import RopeType
from ggmodel.model import AddConstant, Batch, LayerMemory, Part, Stack
from ggmodel.nn import ExpertLinear, Linear, RMSNorm

from .config import Qwen35Config, Qwen35MoeConfig
from .operations import Rates, Taps, TileHeads

TINY = 1e-6  # in the length of queries and keys; configs do not have it


def _norm(name: str, hf: str, width: str = "width") -> RMSNorm:
    return gguf(name, hf=hf, op=AddConstant(1), shape=(width,))


class DeltaNet(Module):
    """A matrix a head remembers values by keys, and forgets: the gated delta rule (arXiv
    2412.06464), behind a short convolution."""

    config: Qwen35Config
    qkv: Linear = gguf(
        "attn_qkv", hf="in_proj_qkv", op=TileHeads("state"), shape=("width", "channels")
    )
    gate: Linear = gguf(
        "attn_gate", hf="in_proj_z", op=TileHeads("state"), shape=("width", "inner")
    )
    beta: Linear = gguf("ssm_beta", hf="in_proj_b", op=TileHeads(), shape=("width", "values"))
    alpha: Linear = gguf("ssm_alpha", hf="in_proj_a", op=TileHeads(), shape=("width", "values"))
    taps: Tensor = gguf(
        "ssm_conv1d.weight", hf="conv1d.weight", op=Taps("state"), shape=("kernel", "channels")
    )
    bias: Tensor = gguf("ssm_dt.bias", hf="dt_bias", op=TileHeads(), shape=("values",))
    rates: Tensor = gguf("ssm_a", hf="A_log", op=Rates(), shape=("values",))
    norm: RMSNorm = gguf("ssm_norm", hf="norm", shape=("state",))
    out: Linear = gguf(
        "ssm_out", hf="out_proj", op=TileHeads("state", axis=1), shape=("inner", "width")
    )

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        h = self.config
        beta = self.beta(x).sigmoid()
        decay = (self.alpha(x) + self.bias).softplus() * self.rates
        y = cache.each(self.remember, self.qkv(x), decay, beta)
        y = self.norm(y.reshape(h.state, h.values, -1))
        gate = self.gate(x).reshape(h.state, h.values, -1)
        return self.out((y * gate.silu()).reshape(h.inner, -1))

    def remember(self, part: States, x: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """Queries, keys and values x [channels, n, sequences] → [inner, n, sequences]."""
        h, shape = self.config, (part.n, part.sequences)
        conv = part.get("conv").concat(x.permute(1, 0), 0)  # [kernel − 1 + n, channels, sequences]
        part.put("conv", conv.slice(0, part.n, conv.dim(0)))
        x = nn.activate(h.activation, conv.ssm_conv(self.taps)).reshape(h.state, -1, *shape)
        q, k, v = x.chunk_sections(1, h.groups, h.groups, h.values)
        # √(Σx² + ε) is √d · √(mean(x²) + ε/d).
        q, k = (s.rms_norm(eps=TINY / h.state).scale(h.state**-0.5) for s in (q, k))
        decay, beta = (s.reshape(1, h.values, *shape) for s in (decay, beta))
        rows, n = q.gated_delta_net(k, v, decay, beta, part.get("delta")), part.n * part.sequences
        part.put("delta", rows.slice(1, n, rows.dim(1)))
        return rows.slice(1, 0, n).reshape(h.inner, *shape)


class Attention(nn.Attention):
    config: Qwen35Config
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
    config: Qwen35MoeConfig
    router: Linear = gguf("ffn_gate_inp", hf="gate", shape=("width", "experts"))
    gate: Gate = gguf("ffn_gate_exps", hf="experts", shape=("width", "expert_ffn", "experts"))
    up: Up = gguf("ffn_up_exps", hf="experts", shape=("width", "expert_ffn", "experts"))
    down: Down = gguf("ffn_down_exps", hf="experts", shape=("expert_ffn", "width", "experts"))
    shared: nn.GatedMLP = gguf(suffix="_shexp", hf="shared_expert")
    share: Linear = gguf("ffn_gate_inp_shexp", hf="shared_expert_gate", shape=("width", 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shared(x) * self.share(x).sigmoid()


class Layer(nn.PreNormLayer):
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Attention | DeltaNet = gguf(hf=("self_attn", "linear_attn"))
    ffn_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")


class ExpertLayer(Layer):
    ffn: Experts = gguf(hf="mlp")


@register("qwen35", hf=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"))
class Qwen35(nn.Decoder, nn.GridVision, text=("model", "model.language_model")):
    ignore_hf = ("mtp.*",)
    frame = {
        "<|vision_start|>": 248053,
        "<|image_pad|>": 248056,
        "<|video_pad|>": 248057,
        "<|vision_end|>": 248054,
    }

    config: Qwen35Config
    layers: list[Layer]
    norm: RMSNorm = gguf("output_norm", op=AddConstant(1), shape=("width",))

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    @property
    def ignore(self) -> tuple[str, ...]:
        """MTP layers, which draft further tokens, stand behind all others."""
        h = self.config
        return tuple(f"blk.{i}.*" for i in range(h.layers, h.blocks))

    def validate(self) -> None:
        h, tensors = self.config, [isinstance(layer.attn, DeltaNet) for layer in self.layers]
        if h.layers < 1:
            raise ConfigError(f"{h.mtp_layers} of {h.blocks} layers are MTP layers; none is left")
        if h.recurrent != tensors:
            declared, stored = ([i for i, x in enumerate(of) if x] for of in (h.recurrent, tensors))
            raise ConfigError(
                f"layers {declared} of {len(h.recurrent)} are delta nets by "
                f"attention.recurrent_layers, {stored} of {len(tensors)} by the tensors"
            )
        if h.inner != h.values * h.state or h.values % h.groups:
            raise ConfigError(
                f"ssm.inner_size {h.inner} for {h.values} heads of {h.state}, {h.groups} of keys; "
                "values are as wide as keys, and each head of keys serves equally many"
            )

    def caches(self) -> list[Causal | Recurrent]:
        h = self.config
        causal = Causal(self.rotary.rope(RopeType.IMROPE, h.sections))
        conv, delta = (h.kernel - 1, h.channels), (h.state, h.state, h.values)
        state = Recurrent(conv=conv, delta=delta)
        return [state if recurrent else causal for recurrent in h.recurrent]


@register("qwen35moe", hf=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"))
class Qwen35Moe(Qwen35):
    """The same with experts, and one that all tokens share."""

    config: Qwen35MoeConfig
    layers: list[ExpertLayer]
