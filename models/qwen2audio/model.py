"""Qwen2-Audio: Qwen 2, and sounds of up to 30 seconds, for whose length Whisper's encoder hears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn, register
from ggmodel.audio import Audio, whisper_mel
from ggmodel.errors import AudioError, PromptError
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import Context, RopeType
from ggmodel.model import Batch, Input, Multimodal, MultimodalEmbedding, Numbers, Prepared
from ggmodel.nn import Linear

from .config import Qwen2AudioConfig

HOP = nn.AUDIO_HOP


class Layer(nn.PreNormLayer):
    attn: nn.Attention


class Projector(Module):
    config: Qwen2AudioConfig
    linear: Linear = gguf("fc", hf="linear", shape=("audio_width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[audio_width, n] → [width, n]."""
        return self.linear(x)


LEAST = 3  # frames of a sound that give a row


@register("qwen2audio", hf="Qwen2AudioForConditionalGeneration", pairs={"qwen2": "qwen2a"})
class Qwen2Audio(nn.Decoder, nn.AudioModel, text=("language_model.model", "model.language_model")):
    audio_marker = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    audio_data = {"frames": Numbers(int)}
    pair_tokens = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    clip = {}

    config: Qwen2AudioConfig
    layers: list[Layer]
    head: Linear = gguf(
        "output", "token_embd", hf=("language_model.lm_head", "lm_head"), shape=("width", None)
    )
    encoder: nn.ColumnAudioEncoder | None = gguf("a", hf=("audio_tower", "model.audio_tower"))
    projector: Projector | None = gguf(
        "mm.a", hf=("multi_modal_projector", "model.multi_modal_projector")
    )

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    has_audio = property(lambda m: m.encoder is not None and m.projector is not None)

    def prepare_audio(self, sound: Audio) -> Prepared:
        """[mels, frames] with silence at the end. `data` has "frames", those of the sound."""
        samples = self.samples_of(sound)
        frames = -(-len(samples) // HOP)
        if frames < LEAST:
            raise AudioError(
                f"the sound has {len(samples)} samples, and this model hears no fewer than "
                f"{(LEAST - 1) * HOP + 1}; give a longer one"
            )
        return Prepared(
            whisper_mel(samples, self.config.mels, length=self.audio_samples), {"frames": frames}
        )

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        """Rows of the sound alone: what is filled up is not seen."""
        assert self.encoder is not None and self.projector is not None
        h = self.config
        frames = spectrum.data.get("frames", h.frames)
        if not LEAST <= frames <= h.frames:
            raise PromptError(f"{frames} frames of sound; give {LEAST} to {h.frames}")
        heard = ctx.feed(lambda item: item.values, DType.F32, h.frames, h.mels)
        rows = self.encoder(heard, rows=(frames - 1) // 2 + 1, pooled=True)
        return [Multimodal(self.projector(rows))]

    def reference_item(
        self, kind: str, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]
    ) -> Prepared:
        frames = int(inputs["feature_attention_mask"].sum())
        return Prepared(inputs["input_features"][0].astype(np.float32), {"frames": frames})

    def audio_inputs(self, sound: list[MultimodalEmbedding]) -> list[Input]:
        names = ("<|audio_bos|>", 151647), ("<|AUDIO|>", 151646), ("<|audio_eos|>", 151648)
        begin, row, end = (self.token_id(name, default=id) for name, id in names)
        return [Input(begin), *sound[0].inputs(row), Input(end)]
