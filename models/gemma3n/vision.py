"""Gemma 3n's encoder of images, MobileNet-v5: stages of blocks, each of half the width and height
of the one before; rows are made of the last two (arXiv 2404.10518 has the blocks)."""

from __future__ import annotations

from typing import Any

from ggmodel import Context, DType, Module, Tensor, gguf
from ggmodel.errors import ConfigError
from ggmodel.model import Reshape
from ggmodel.nn import Embedding, Linear, RMSNorm

from .config import Gemma3nConfig

EPS = 1e-6  # of the norms that no key says it of
MOST = 1536  # pixels of a side: twice as many as those of the published models


def _kernel(name: str, side: int | None = 1, inner: int | None = None) -> Any:
    """The kernel of a convolution: of pixels (1), or of `inner` channels."""
    return gguf(f"{name}.weight", shape=(side, side, inner, None))


def _norm(name: str) -> Any:
    return gguf(f"{name}.weight", shape=(None,))


# A number for each channel has four dims in files; in some a scale has one.
PER_CHANNEL = Reshape((1, -1, 1, 1), (-1,))


def by_pixel(x: Tensor) -> Tensor:
    """An image [w, h, channels] as [channels, w · h]."""
    return x.permute(1, 2, 0).contiguous(x.dim(2), x.dim(0) * x.dim(1))


def as_image(x: Tensor, like: Tensor) -> Tensor:
    """[channels, w · h] as an image [w, h, channels] of the size of another one."""
    return x.permute(1, 0).contiguous(like.dim(0), like.dim(1), x.dim(0))


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """[channels, n], times a number for each channel if there are any."""
    return x if scale is None else x * scale.reshape(-1)


def pointwise(kernel: Tensor, norm: Tensor, x: Tensor) -> Tensor:
    """A convolution of single pixels, and its norm: [in, n] → [out, n]."""
    return kernel.reshape(kernel.dim(2), kernel.dim(3)).mulmat(x).rms_norm(norm, EPS)


def padded(kernel: Tensor, x: Tensor, stride: int) -> tuple[Tensor, list[int]]:
    """An image for a convolution whose result is the image's size / stride, rounded up; and the
    zeros that the convolution adds at every side. One more at the end than at the beginning is
    added here."""
    sizes = [(kernel.dim(i), x.dim(i)) for i in (0, 1)]
    lacking = [max(0, (-(-n // stride) - 1) * stride + k - n) for k, n in sizes]
    if any(n % 2 for n in lacking):
        x = x.pad(*(n % 2 for n in lacking))
    return x, [n // 2 for n in lacking]


def depthwise(kernel: Tensor, x: Tensor, stride: int = 1) -> Tensor:
    """A kernel [k, k, 1, channels] over each channel of an image [w, h, channels]."""
    x, zeros = padded(kernel, x, stride)
    return kernel.cast(DType.F32).depthwise_conv_2d(x, stride, stride, *zeros)


class EdgeResidual(Module):
    """A convolution to more channels, and back to fewer by single pixels."""

    expand: Tensor = _kernel("conv_exp", None)
    expand_norm: Tensor = _norm("bn1")
    project: Tensor = _kernel("conv_pwl")
    project_norm: Tensor = _norm("bn2")

    def forward(self, x: Tensor, stride: int) -> Tensor:
        """An image [w, h, channels] → [w / stride, h / stride, out]."""
        image, zeros = padded(self.expand, x, stride)
        y = self.expand.conv_2d(image, stride, stride, *zeros)
        pixels = by_pixel(y).rms_norm(self.expand_norm, EPS).gelu()
        y = as_image(pointwise(self.project, self.project_norm, pixels), y)
        return x + y if x.shape == y.shape else y


class UniversalInvertedResidual(Module):
    """Single pixels to more channels and back; before and between, channels by themselves."""

    start: Tensor | None = _kernel("dw_start.conv", None, 1)
    start_norm: Tensor | None = _norm("dw_start.bn")
    expand: Tensor = _kernel("pw_exp.conv")
    expand_norm: Tensor = _norm("pw_exp.bn")
    middle: Tensor | None = _kernel("dw_mid.conv", None, 1)
    middle_norm: Tensor | None = _norm("dw_mid.bn")
    project: Tensor = _kernel("pw_proj.conv")
    project_norm: Tensor = _norm("pw_proj.bn")
    scale: Tensor | None = gguf("layer_scale.gamma", op=PER_CHANNEL)

    def forward(self, x: Tensor, stride: int = 1, adds: bool = True) -> Tensor:
        """An image [w, h, channels] → [w / stride, h / stride, out].

        Args:
            adds: whether x of the same shape is added.
        """
        image = x
        if self.start is not None:
            image = depthwise(self.start, image, 1 if self.middle is not None else stride)
        pixels = by_pixel(image)
        if self.start_norm is not None:
            pixels = pixels.rms_norm(self.start_norm, EPS)
        pixels = pointwise(self.expand, self.expand_norm, pixels).gelu()
        if self.middle is not None:
            image = depthwise(self.middle, as_image(pixels, image), stride)
            pixels = by_pixel(image).rms_norm(self.middle_norm, EPS).gelu()
        pixels = pointwise(self.project, self.project_norm, pixels)
        y = as_image(scaled(pixels, self.scale), image)
        return x + y if adds and x.shape == y.shape else y


class DownsampledProjection(Module):
    """Keys or values: one head for all queries, of every pixel or of every second one."""

    down: Tensor | None = _kernel("down_conv", None, 1)
    norm: Tensor | None = _norm("norm")
    proj: Tensor = _kernel("proj")

    def forward(self, pixels: Tensor, like: Tensor) -> Tensor:
        """[channels, w · h] of an image of the size of another → [head dim, pixels]."""
        if self.down is not None:
            pixels = by_pixel(depthwise(self.down, as_image(pixels, like), 2))
        if self.norm is not None:
            pixels = pixels.rms_norm(self.norm, EPS)
        return self.proj.reshape(self.proj.dim(2), self.proj.dim(3)).mulmat(pixels)


class MultiQueryAttention(Module):
    norm: Tensor = _norm("norm")
    query: Tensor = _kernel("attn.query.proj")
    key: DownsampledProjection = gguf("attn.key", hf="attn.key")
    value: DownsampledProjection = gguf("attn.value", hf="attn.value")
    out: Tensor = _kernel("attn.output.proj")
    scale: Tensor | None = gguf("layer_scale.gamma", op=PER_CHANNEL)

    def forward(self, x: Tensor, stride: int = 1) -> Tensor:
        """An image [w, h, channels] → the same shape."""
        pixels = by_pixel(x).rms_norm(self.norm, EPS)
        k, v = self.key(pixels, x), self.value(pixels, x)
        q = self.query.reshape(pixels.dim(0), -1).mulmat(pixels)
        # One head of keys serves the queries of all heads.
        scores = k.mulmat(q.reshape(k.dim(0), -1).scale(k.dim(0) ** -0.5)).softmax()
        y = v.permute(1, 0).contiguous().mulmat(scores).reshape(-1, pixels.dim(1))
        y = self.out.reshape(y.dim(0), -1).mulmat(y)
        return x + as_image(scaled(y, self.scale), x)


class Stem(Module):
    kernel: Tensor = _kernel("conv", 3, 3)
    bias: Tensor = gguf("conv.bias", op=PER_CHANNEL, shape=(1, 1, None, 1))
    norm: Tensor = _norm("bn")

    def forward(self, x: Tensor) -> Tensor:
        image, zeros = padded(self.kernel, x, 2)
        y = self.kernel.conv_2d(image, 2, 2, *zeros) + self.bias
        return as_image(by_pixel(y).rms_norm(self.norm, EPS).gelu(), y)


class MultiScaleFusion(Module):
    """Rows of the last two stages, as large as the first of them, made few by means."""

    config: Gemma3nConfig
    ffn: UniversalInvertedResidual = gguf("ffn", hf="ffn")
    norm: Tensor = _norm("norm")

    def forward(self, large: Tensor, small: Tensor) -> Tensor:
        """[w, h, channels] each → [grid, grid, vit_width]."""
        small = small.interpolate((large.dim(0), large.dim(1), small.dim(2), 1))
        x = self.ffn(large.concat(small, 2), adds=False)
        pool = x.dim(0) // self.config.grid
        x = x.avg_pool_2d(pool, pool)
        return as_image(by_pixel(x).rms_norm(self.norm, EPS), x)


Block = EdgeResidual | UniversalInvertedResidual | MultiQueryAttention


def _stage(i: int) -> Any:
    return gguf(f"blk.{i}", hf=f"blocks.{i}", n=f"blocks_{i}")


class Vision(Module):
    config: Gemma3nConfig
    stem: Stem = gguf("conv_stem", hf="conv_stem")
    stage_0: list[Block] = _stage(0)
    stage_1: list[Block] = _stage(1)
    stage_2: list[Block] = _stage(2)
    stage_3: list[Block] = _stage(3)
    fusion: MultiScaleFusion = gguf("msfa", hf="msfa")

    stages = property(lambda m: (m.stage_0, m.stage_1, m.stage_2, m.stage_3))

    def forward(self, x: Tensor) -> Tensor:
        """Pixels [side, side, 3] from 0 to 1 → [grid, grid, vit_width]."""
        x, ends = self.stem(x), list[Tensor]()
        for stage in self.stages:
            for i, block in enumerate(stage):
                x = block(x, 1 if i else 2)
            ends.append(x)
        return self.fusion(*ends[-2:])


class Projector(Module):
    """Rows of an image as the text takes them, and the token that ends it."""

    # The reference's looks up each token of a text first, in vain.
    compared = False

    config: Gemma3nConfig
    tokens: Embedding = gguf("embedding", hf="embedding", shape=("vit_width", None))
    token_norm: RMSNorm = gguf("hard_emb_norm", hf="hard_embedding_norm", shape=("vit_width",))
    norm: RMSNorm = gguf("soft_emb_norm", hf="soft_embedding_norm", shape=("vit_width",))
    proj: Linear = gguf("input_projection", hf="embedding_projection", shape=("vit_width", "width"))

    def forward(self, ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
        """An image [grid, grid, vit_width] → [width, rows] and [width, 1]."""
        h = self.config
        x = self.norm(by_pixel(x).scale(h.vit_width**0.5), h.vit_eps)
        end = self.tokens(ctx.constant([h.image_end]))
        x = self.proj(x.concat(self.token_norm(end, h.vit_eps), 1)).rms_norm(eps=h.vit_eps)
        rows, end = x.chunk_sections(1, h.rows, 1)
        return rows.contiguous(), end.contiguous()


def check_images(h: Gemma3nConfig, vision: Vision) -> None:
    """Checks that the hyperparameters of images fit each other, and tensors their blocks.

    Raises:
        ConfigError: they do not.
    """
    if h.grid**2 != h.rows:
        raise ConfigError(f"vision.soft_tokens is {h.rows}, no square: rows are those of a grid")
    if h.side > MOST or h.side % 32 or h.side % (16 * h.grid):
        raise ConfigError(
            f"vision.image_size is {h.side}; supported: multiples of 32 and of 16 × {h.grid}, the "
            f"root of {h.rows} rows, up to {MOST}"
        )
    for s, stage in enumerate(vision.stages):
        for i, block in enumerate(stage):
            if problem := problem_of(block, first=i == 0):
                raise ConfigError(f"v.blk.{s}.{i} {problem}")


def problem_of(block: Block, first: bool) -> str:
    """Why the tensors of a block, the first of a stage or another, make none; "" if they do."""
    if isinstance(block, MultiQueryAttention):
        key, value = (part.proj.dim(3) for part in (block.key, block.value))
        heads, rest = divmod(block.query.dim(3), key)
        if rest or heads * value != block.out.dim(2):
            return f"has queries of {block.query.dim(3)} numbers for keys of {key}"
    kernels = [getattr(block, name, None) for name in ("start", "middle")]
    if first and not isinstance(block, EdgeResidual) and kernels == [None, None]:
        return "is the first of a stage, and has no kernel to halve an image with"
    return ""
