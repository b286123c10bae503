"""Qwen3-ASR: Qwen 3, and sounds of any length in windows of some seconds, which are heard apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import DType, Tensor, gguf, nn, register
from ggmodel.audio import Audio, resample, whisper_mel
from ggmodel.errors import AudioError, PromptError
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import Context, RopeType
from ggmodel.model import Batch, Input, Multimodal, MultimodalEmbedding, Numbers, Prepared
from ggmodel.models.qwen.qwen3 import Layer
from ggmodel.nn import Linear

from .config import CHUNK, SHORTEST, Qwen3ASRConfig
from .encoder import Encoder, Projector, rows_of


@register("qwen3asr", hf="Qwen3ASRForConditionalGeneration", pairs={"qwen3": "qwen3a"})
class Qwen3ASR(nn.Decoder, nn.AudioModel, text=("language_model.model", "model.language_model")):
    audio_marker = "<|audio_start|><|audio_pad|><|audio_end|>"
    audio_apart = True
    audio_data = {"frames": Numbers(int, ("windows",), least=1)}
    pair_tokens = ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>")
    clip = {}

    config: Qwen3ASRConfig
    layers: list[Layer]
    head: Linear = gguf(
        "output", "token_embd", hf=("language_model.lm_head", "lm_head"), shape=("width", None)
    )
    encoder: Encoder | None = gguf("a", hf=("audio_tower", "model.audio_tower"))
    projector: Projector | None = gguf(
        "mm.a", hf=("multi_modal_projector", "model.multi_modal_projector")
    )

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    audio_shape = property(lambda m: ("windows", m.config.mels, m.config.frames))
    has_audio = property(lambda m: m.encoder is not None and m.projector is not None)

    def largest_audio(self) -> Prepared:
        """Windows that fill the context; they take no memory."""
        h = self.config
        windows = max(1, (h.loaded_context or h.context) // rows_of(h.frames))
        shape = windows, h.mels, h.frames
        return Prepared(np.broadcast_to(np.float32(0), shape), {"frames": (h.frames,) * windows})

    def prepare_audio(self, sound: Audio) -> Prepared:
        """The spectrum of the whole sound, cut into windows; [windows, mels, frames]. Zeros fill
        the last one. `data` has "frames", those of the sound in each window."""
        h = self.config
        room = h.loaded_context or h.context
        rows = rows_of(int(sound.seconds * CHUNK))
        if rows > max(room, rows_of(h.frames)):
            raise AudioError(
                f"the sound has {sound.seconds:,.1f} s, {rows:,} rows, and the context is "
                f"{room:,} tokens long; give a longer context_length, or a shorter sound"
            )
        samples = resample(sound, nn.AUDIO_RATE).samples
        mel = whisper_mel(np.pad(samples, (0, max(0, SHORTEST - len(samples)))), h.mels, None)
        total = mel.shape[1]
        frames = [min(h.frames, total - begin) for begin in range(0, total, h.frames)]
        mel = np.pad(mel, ((0, 0), (0, len(frames) * h.frames - total)))
        return Prepared(np.stack(np.split(mel, len(frames), axis=1)), {"frames": tuple(frames)})

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        """One tensor a window, with the rows of the sound alone."""
        assert self.encoder is not None and self.projector is not None
        h, windows = self.config, len(spectrum.values)
        frames = spectrum.data.get("frames", (h.frames,) * windows)
        if max(frames) > h.frames:
            raise PromptError(f"frames are {list(frames)!r:.60}; give {h.frames} at most")
        return [self._window(ctx, i, n) for i, n in enumerate(frames)]

    def _window(self, ctx: Context, i: int, frames: int) -> Multimodal:
        """Window i, of whose frames the first are heard."""
        assert self.encoder is not None and self.projector is not None
        mels, chunks = self.config.mels, -(-frames // CHUNK)

        def chunked(item: Prepared) -> np.ndarray:
            heard = item.values[i, :, : chunks * CHUNK].copy()
            heard[:, frames:] = 0
            return heard.reshape(mels, chunks, CHUNK).swapaxes(0, 1)[:, None]

        heard = ctx.feed(chunked, DType.F32, CHUNK, mels, 1, chunks)
        return Multimodal(self.projector(self.encoder(heard, rows_of(frames))))

    def reference_item(
        self, kind: str, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]
    ) -> Prepared:
        """A sound alone, filled up to whole seconds by the reference's processor."""
        h, heard = self.config, int(inputs["input_features_mask"].sum())
        mel = inputs["input_features"][0].astype(np.float32)
        frames = [min(h.frames, heard - begin) for begin in range(0, heard, h.frames)]
        mel = np.pad(mel, ((0, 0), (0, max(0, len(frames) * h.frames - mel.shape[1]))))
        parts = np.split(mel[:, : len(frames) * h.frames], len(frames), axis=1)
        return Prepared(np.stack(parts), {"frames": tuple(frames)})

    def audio_inputs(self, sound: list[MultimodalEmbedding]) -> list[Input]:
        names = ("<|audio_start|>", 151669), ("<|audio_pad|>", 151676), ("<|audio_end|>", 151670)
        begin, row, end = (self.token_id(name, default=id) for name, id in names)
        return [Input(begin), *(x for window in sound for x in window.inputs(row)), Input(end)]
