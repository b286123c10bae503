"""Voxtral: llama's blocks, and sounds of any length in windows of Whisper's encoder, four of whose
rows become one."""

from __future__ import annotations

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn, register
from ggmodel.audio import Audio, resample, whisper_mel
from ggmodel.errors import AudioError
from ggmodel.kvcache import Causal
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    Multimodal,
    MultimodalEmbedding,
    Prepared,
    Speech,
    SpeechPrompt,
)
from ggmodel.nn import Linear

from .config import VoxtralConfig

HOP, RATE = nn.AUDIO_HOP, nn.AUDIO_RATE


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention


class Projector(Module):
    config: VoxtralConfig
    first: Linear = gguf("mlp.1", hf="linear_1", shape=("stacked_width", "width"))
    second: Linear = gguf("mlp.2", hf="linear_2", shape=("width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """Rows of the encoder [audio_width, positions] → [width, rows]."""
        h = self.config
        y = self.first(x.reshape(h.stacked_width, -1))
        return self.second(nn.activate(h.mm_activation, y))


@register("voxtral", hf="VoxtralForConditionalGeneration", pairs={"llama": "voxtral"})
class Voxtral(nn.Decoder, nn.AudioModel, text=("language_model.model", "model.language_model")):
    audio_marker = "[BEGIN_AUDIO][AUDIO]"
    audio_apart = True
    pair_tokens = ("[AUDIO]", "[BEGIN_AUDIO]")
    clip = {}

    config: VoxtralConfig
    layers: list[Layer]
    head: Linear = gguf(
        "output", "token_embd", hf=("language_model.lm_head", "lm_head"), shape=("width", None)
    )
    encoder: nn.ColumnAudioEncoder | None = gguf("a", hf=("audio_tower", "model.audio_tower"))
    projector: Projector | None = gguf(
        "mm.a", hf=("multi_modal_projector", "model.multi_modal_projector")
    )

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    audio_shape = property(lambda m: ("windows", m.config.mels, m.config.frames))
    has_audio = property(lambda m: m.encoder is not None and m.projector is not None)

    def speech(self) -> Speech | SpeechPrompt:
        if not self.has_audio:
            return super().speech()
        return SpeechPrompt(("<s>", "[INST]"), ("[/INST]",), "lang:{}", ("[TRANSCRIBE]",))

    def largest_audio(self) -> Prepared:
        """Windows that fill the context; they take no memory."""
        h = self.config
        windows = max(1, (h.loaded_context or h.context) // h.rows)
        return Prepared(np.broadcast_to(np.float32(0), (windows, h.mels, h.frames)))

    def prepare_audio(self, sound: Audio) -> Prepared:
        """The spectrum of all windows as one, in which faint places are measured by the loudest;
        [windows, mels, frames]. Silence fills the last one."""
        h = self.config
        room = h.loaded_context or h.context
        windows = max(1, int(np.ceil(sound.seconds * RATE / self.audio_samples)))
        if windows > 1 and windows * h.rows > room:
            raise AudioError(
                f"the sound has {sound.seconds:,.1f} s, {windows * h.rows:,} rows, and the context "
                f"is {room:,} tokens long; give a longer context_length, or a shorter sound"
            )
        samples = resample(sound, RATE).samples
        window = h.frames * HOP
        length = -(-len(samples) // window) * window
        mel = whisper_mel(samples, h.mels, length=length)
        return Prepared(np.stack(np.split(mel, length // window, axis=1)))

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        """One tensor a window."""
        assert self.encoder is not None and self.projector is not None
        h, windows = self.config, list[Multimodal]()
        for i in range(len(spectrum.values)):
            window = ctx.feed(lambda item, i=i: item.values[i], DType.F32, h.frames, h.mels)
            windows.append(Multimodal(self.projector(self.encoder(window))))
        return windows

    def audio_inputs(self, sound: list[MultimodalEmbedding]) -> list[Input]:
        begin, row = (
            self.token_id("[BEGIN_AUDIO]", default=25),
            self.token_id("[AUDIO]", default=24),
        )
        return [Input(begin), *(one for window in sound for one in window.inputs(row))]
