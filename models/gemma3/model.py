"""Gemma 3: text, images laid over it, and EmbeddingGemma."""

from __future__ import annotations

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.image import composite, normalize, resize
from ggmodel.kvcache import Bidirectional, Causal, Sliding
from ggmodel.model import AddConstant, Batch, Input, Multimodal, Pixels
from ggmodel.nn import Embedding, Linear, RMSNorm

from .config import Hyper
from .vision import Projector, Vision


def _norm(name: str, hf: str, width: str = "hidden") -> RMSNorm:
    """In checkpoints it multiplies by 1 + weight."""
    return gguf(name, hf=hf, op=AddConstant(1), shape=(width,))


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("hidden", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "k_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("q_width", "hidden"))
    q_norm: RMSNorm = _norm("attn_q_norm", "q_norm", "head_dim")
    k_norm: RMSNorm = _norm("attn_k_norm", "k_norm", "head_dim")

    def forward(self, x: Tensor, batch: Batch, cache, rope: nn.Rope) -> Tensor:
        h = self.config
        q = self.q_norm(self.q(x).reshape(h.head_dim, h.heads, -1))
        k = self.k_norm(self.k(x).reshape(h.head_dim, h.kv_heads, -1))
        v = self.v(x).reshape(h.head_dim, h.kv_heads, -1)
        q, k = rope(q, batch.positions), rope(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.scale))


class FeedForward(Module):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).gelu(self.up(x)))


class Layer(Module):
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Attention = gguf(hf="self_attn")
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "pre_feedforward_layernorm")
    ffn: FeedForward = gguf(hf="mlp")
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_feedforward_layernorm")

    def forward(self, x: Tensor, batch: Batch, cache, rope, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache, rope)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + self.attn_post_norm(y)
        return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))


class Text(Module):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="layers", n="layers")
    norm: RMSNorm = _norm("output_norm", "norm")

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [hidden, outputs]."""
        h = self.config
        # Rows of images are not scaled: they are laid over what is.
        x = batch.lay_images(self.embed(batch.inputs).scale(h.hidden**0.5))
        for (layer, cache, outputs), local in zip(batch.through(self.layers), h.local, strict=True):
            x = layer(x, batch, cache, h.rope(local), outputs)
        return self.norm(x)


# Names in checkpoints: of text alone, as published with images, as the modules are called.
TEXT = ("model", "language_model.model", "model.language_model")
HEAD = ("lm_head", "language_model.lm_head")
TOWER = ("vision_tower.vision_model", "vision_tower", "model.vision_tower")
PROJECTOR = ("multi_modal_projector", "model.multi_modal_projector")
# Around an image; the first stands behind it, too.
FRAME = (("\n\n", 108), ("<start_of_image>", 255999), ("<end_of_image>", 256000))


@register("gemma3", hf=("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"))
class Gemma3(Model):
    bidirectional_images = True
    image_marker = "<start_of_image>"
    clip = {"vision.projector.scale_factor": lambda h: None if h.pool == 4 else h.pool}

    config: Hyper
    text: Text = gguf(hf=TEXT)
    head: Linear = gguf("output", "token_embd", hf=HEAD, shape=("hidden", None))
    vision: Vision | None = gguf("v", hf=TOWER)
    projector: Projector | None = gguf("mm", hf=PROJECTOR)

    def validate(self) -> None:
        h = self.config
        fits = self.sees and 1 <= h.pool <= h.grid and h.rows in (None, (h.grid // h.pool) ** 2)
        if self.sees and not fits:
            raise ConfigError(f"{h.patches} patches cannot become {h.rows} rows of an image")

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, [h.rope(local) for local in h.local])

    def hidden(self, ctx, batch: Batch) -> Tensor:
        return self.text(batch)

    def forward(self, ctx, batch: Batch) -> Tensor:
        logits, cap = self.head(self.states(ctx, batch)), self.config.softcap
        return logits.scale(1 / cap).tanh().scale(cap) if cap else logits

    sees = property(lambda m: m.vision is not None and m.projector is not None)
    largest_image = property(lambda m: (m.config.side, m.config.side))

    def preprocess(self, image) -> Pixels:
        """In -1 to 1; proportions are not kept."""
        return Pixels(normalize(resize(composite(image), self.largest_image), 0.5, 0.5)[None])

    def encode_multimodal(self, ctx, image: Pixels) -> list[Multimodal]:
        (height, width), side = image.values.shape[2:], self.config.side
        if height != side or width != side:
            raise PromptError(f"an image of {width} × {height} pixels; give {side} × {side}")
        assert self.vision and self.projector
        tiles = [ctx.input().from_floats(tile) for tile in image.values]
        return [Multimodal(self.projector(self.vision(tile))) for tile in tiles]

    def post_tokenize(self, inputs: list) -> list[Input]:
        newlines, begin, end = (Input(self.token_id(*token)) for token in FRAME)
        done: list[Input] = []
        for one in inputs:
            if isinstance(one, Input):
                done.append(one)
                continue
            for image in one:
                rest = len(image) - 1
                rows = [Input(begin.token, image, same_batch=rest), *[Input(begin.token)] * rest]
                done += [newlines, begin, *rows, end, newlines]
        return done


class PooledHyper(Hyper):
    pooling: int = kv("pooling_type", hf=lambda hf: 1, default=1)  # the mean


@register("gemma3", pooled=True)
class EmbeddingGemma(Model):
    """All tokens see each other; two linear maps stand behind the mean."""

    config: PooledHyper
    text: Text = gguf(hf=("", "model"))
    dense_2: Linear | None = gguf("dense_2", "dense.0", hf="2_Dense.linear", shape=("hidden", None))
    dense_3: Linear | None = gguf("dense_3", "dense.1", hf="3_Dense.linear", shape=(None, "hidden"))

    def caches(self) -> list[Bidirectional]:
        h = self.config
        # Files give the width of the window; half of it is seen to either side.
        return [Bidirectional(h.window // 2 + 1 if local else None) for local in h.local]

    def hidden(self, ctx, batch: Batch) -> Tensor:
        return self.text(batch)

    def project(self, ctx, pooled: Tensor) -> Tensor:
        for dense in (self.dense_2, self.dense_3):
            pooled = pooled if dense is None else dense(pooled)
        return pooled
