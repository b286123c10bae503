"""A llama that sees, hears and watches: rows with a part for its second layer, and texts between
them."""

from __future__ import annotations

import numpy as np

from ggmodel import Context, Input, MultimodalEmbedding, gguf, nn, register
from ggmodel.audio import Audio, open_audio
from ggmodel.errors import PromptError
from ggmodel.image import grey, open_image
from ggmodel.model import Modality, Multimodal, Prepared
from ggmodel.models.llama import Llama
from ggmodel.nn import Linear
from ggmodel.video import Video, open_video

PLACEHOLDER = 100_000  # in no vocabulary
SIDE = 4
SAMPLES = 12  # of a row
LONGEST = 5  # rows of a sound
FRAMES = 3


@register("sensor")
class Sensor(Llama):
    """Each 2 × 2 pixels of a picture of 4 × 4 become a row, each 12 samples of a sound, each frame
    of a video of 2 × 2."""

    rows: Linear = gguf("s.rows", shape=(12, "width"))
    deep: Linear = gguf("s.deep", shape=(12, "width"))

    def modalities(self) -> dict[str, Modality]:
        return {
            "image": Modality(
                "<image>",
                open_image,
                self.see,
                self.encode_item,
                self.seen,
                lambda: grey((SIDE, SIDE)),
            ),
            "audio": Modality(
                "<sound>",
                open_audio,
                self.hear,
                self.encode_item,
                self.heard,
                lambda: Audio(np.zeros(LONGEST * SAMPLES, np.float32), 1000),
            ),
            "video": Modality(
                "<video>",
                lambda source: open_video(source, lambda times: range(min(len(times), FRAMES))),
                self.watch,
                self.encode_item,
                self.watched,
                lambda: Video(
                    np.zeros((FRAMES, 2, 2, 3), np.uint8), np.arange(FRAMES, dtype=float)
                ),
            ),
        }

    def see(self, image) -> Prepared:
        planes = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32) / 255
        half = SIDE // 2
        patches = planes.reshape(half, 2, half, 2, 3).transpose(0, 2, 1, 3, 4)
        return Prepared(patches.reshape(-1, 12))

    def hear(self, sound: Audio) -> Prepared:
        if len(sound.samples) > LONGEST * SAMPLES:
            raise PromptError(f"a sound of {sound.seconds} s; at most 0.06 s are heard")
        count = -(-len(sound.samples) // SAMPLES)
        padded = np.zeros(count * SAMPLES, np.float32)
        padded[: len(sound.samples)] = sound.samples
        return Prepared(padded.reshape(-1, SAMPLES))

    def watch(self, video: Video) -> Prepared:
        return Prepared(video.frames.reshape(-1, 12) / np.float32(255), {"times": video.times})

    def encode_item(self, ctx: Context, item: Prepared) -> list[Multimodal]:
        if item.values.ndim != 2 or item.values.shape[1] != 12:
            raise PromptError(f"values {list(item.values.shape)}; [rows, 12] is needed")
        x = ctx.input().from_floats(item.values)
        return [Multimodal(self.rows(x), item.data, parts=[self.deep(x)])]

    def seen(self, item: list[MultimodalEmbedding]) -> list[Input | str]:
        (rows,) = item
        return ["[", Input(PLACEHOLDER, rows), *[Input(PLACEHOLDER)] * (len(rows) - 1), "] the"]

    def heard(self, item: list[MultimodalEmbedding]) -> list[Input | str]:
        (rows,) = item
        return [Input(PLACEHOLDER, rows), *[Input(PLACEHOLDER)] * (len(rows) - 1)]

    def watched(self, item: list[MultimodalEmbedding]) -> list[Input | str]:
        """One row after the other, each behind its time; the rows of the embedding are split."""
        (rows,) = item
        out: list[Input | str] = []
        for i, time in enumerate(rows.data["times"]):
            frame = slice(i, i + 1)
            one = MultimodalEmbedding(
                lambda frame=frame: rows.rows[frame],
                kind="video",
                shape=(1, rows.width),
                key=rows.key + b"%d" % i,
                parts=lambda frame=frame: [part[frame] for part in rows.parts],
                widths=rows.widths,
            )
            out += [f"{time:.1f}s", Input(PLACEHOLDER, one)]
        return out

    def hidden(self, ctx, batch):
        x = batch.merge_embeddings(self.embedded(batch))
        for i, (layer, cache, outputs) in enumerate(batch.through(self.layers)):
            x = layer(x, batch, cache, outputs)
            x = batch.add(x, 0) if i == 0 else x
        return self.norm(x)


@register("sensed")
class Sensed(Llama):
    """The same of words: each has a part for the second layer, zero for those of texts."""

    deep: nn.Embedding = gguf("s.deep", shape=("width", None))

    def hidden(self, ctx, batch):
        x = self.embedded(batch)
        for i, (layer, cache, outputs) in enumerate(batch.through(self.layers)):
            x = layer(x, batch, cache, outputs)
            x = x + self.deep(batch.inputs) if i == 0 else x
        return self.norm(x)
