"""Gemma 3: text with images among its inputs, and EmbeddingGemma."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggmodel import Context, DType, Input, Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.image import composite, normalize, resize
from ggmodel.kvcache import Bidirectional, Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import AddConstant, Batch, Multimodal, MultimodalEmbedding, Pixels, VisionModel
from ggmodel.nn import Embedding, Linear, RMSNorm, Rotary

from .config import Gemma3Config
from .vision import Projector, Vision

if TYPE_CHECKING:
    from PIL.Image import Image


def _norm(name: str, hf: str, width: str = "width") -> RMSNorm:
    """A norm that multiplies by 1 + weight in checkpoints."""
    return gguf(name, hf=hf, op=AddConstant(1), shape=(width,))


class Attention(nn.Attention):
    q_norm: RMSNorm = _norm("attn_q_norm", "q_norm", "head_dim")
    k_norm: RMSNorm = _norm("attn_k_norm", "k_norm", "head_dim")


class Layer(nn.SandwichLayer):
    attn: Attention


class Text(Module):
    config: Gemma3Config
    embed: Embedding = gguf("token_embd", hf="embed_tokens", shape=("width", None))
    layers: list[Layer] = gguf("blk", hf="layers", n="layers")
    norm: RMSNorm = _norm("output_norm", "norm")
    rotary: Rotary

    def ropes(self) -> list[nn.Rope]:
        """The rope of each layer; local layers have a base of their own and no scaling."""
        h, scaled = self.config, self.rotary.rope(RopeType.NEOX)
        local = nn.Rope(h.rope_dims, h.local_base, type=RopeType.NEOX)
        return [local if near else scaled for near in h.local]

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [width, outputs]."""
        # Rows of images replace embeddings that are scaled already: they are not scaled.
        x = batch.merge_embeddings(self.embed(batch.inputs).scale(self.config.width**0.5))
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)


# Names in checkpoints: of text alone, as published with images, as transformers' modules.
TEXT = ("model", "language_model.model", "model.language_model")
HEAD = ("lm_head", "language_model.lm_head")
TOWER = ("vision_tower.vision_model", "vision_tower", "model.vision_tower")
PROJECTOR = ("multi_modal_projector", "model.multi_modal_projector")
# Tokens around an image; the first one follows it, too.
FRAME = (("\n\n", 108), ("<start_of_image>", 255999), ("<end_of_image>", 256000))


@register("gemma3", hf=("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"))
class Gemma3(VisionModel):
    bidirectional_images = True
    image_marker = "<start_of_image>"
    image_data = {}
    clip = {"vision.projector.scale_factor": lambda h: None if h.pool == 4 else h.pool}

    config: Gemma3Config
    text: Text = gguf(hf=TEXT)
    head: Linear = gguf("output", "token_embd", hf=HEAD, shape=("width", None))
    vision: Vision | None = gguf("v", hf=TOWER)
    projector: Projector | None = gguf("mm", hf=PROJECTOR)

    def validate(self) -> None:
        h = self.config
        fits = (
            self.has_vision and 1 <= h.pool <= h.grid and h.rows in (None, (h.grid // h.pool) ** 2)
        )
        if self.has_vision and not fits:
            raise ConfigError(f"{h.patches} patches cannot become {h.rows} rows of an image")

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.text.ropes())

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.text(batch)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        return nn.softcap(self.head(self.states(ctx, batch)), self.config.softcap)

    largest_image = property(lambda m: (m.config.side, m.config.side))
    image_shape = property(lambda m: ("tiles", 3, m.config.side, m.config.side))

    def preprocess(self, image: Image) -> Pixels:
        """Proportions are not kept."""
        h = self.config
        scaled = resize(composite(image), self.largest_image, h.resample)
        return Pixels(normalize(scaled, h.image_mean, h.image_std)[None])

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        assert self.vision and self.projector
        side = self.config.side
        tiles = [
            ctx.feed(lambda image, i=i: image.values[i], DType.F32, side, side, 3)
            for i in range(len(image.values))
        ]
        return [Multimodal(self.projector(self.vision(tile))) for tile in tiles]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        newlines, begin, end = (Input(self.token_id(text, default=id)) for text, id in FRAME)
        inputs = []
        for part in image:
            rest = len(part) - 1
            rows = [Input(begin.token, part, same_batch=rest), *[Input(begin.token)] * rest]
            inputs += [newlines, begin, *rows, end, newlines]
        return inputs


class EmbeddingGemmaConfig(Gemma3Config):
    fixed = {"use_bidirectional_attention": True}

    pooling: int = kv("pooling_type", hf=lambda hf: 1, default=1)  # the mean


@register("gemma3", pooled=True)
class EmbeddingGemma(Model):
    """All tokens see each other; two linear maps follow the mean."""

    config: EmbeddingGemmaConfig
    text: Text = gguf(hf=("", "model"))
    dense_2: Linear | None = gguf("dense_2", "dense.0", hf="2_Dense.linear", shape=("width", None))
    dense_3: Linear | None = gguf("dense_3", "dense.1", hf="3_Dense.linear", shape=(None, "width"))

    def caches(self) -> list[Bidirectional]:
        h = self.config
        # Files have the width of the window; half of it is seen to either side.
        each = zip(h.local, self.text.ropes(), strict=True)
        return [Bidirectional(h.window // 2 + 1 if local else None, rope) for local, rope in each]

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.text(batch)

    def project(self, ctx: Context, pooled: Tensor) -> Tensor:
        for dense in (self.dense_2, self.dense_3):
            pooled = pooled if dense is None else dense(pooled)
        return pooled
