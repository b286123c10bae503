"""Ask a model about a video.

    python examples/watch.py [FILE.gguf] [VIDEO] [QUESTION]

A model that takes videos, such as Qwen3-VL, is asked once about the whole. Without arguments the
embedded model looks at clip.gif: it takes pictures alone, so it is asked about one frame a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import ggmodel
from ggmodel.video import open_video

ASSETS = Path(__file__).parent / "assets"


def each_second(times: np.ndarray) -> np.ndarray:
    """The numbers of the first frame of each second."""
    return np.unique(np.floor(times), return_index=True)[1]


def main(
    file: str = str(ASSETS / "shapes.gguf"),
    video: str = str(ASSETS / "clip.gif"),
    question: str = "what do you see?",
) -> None:
    with ggmodel.load(file) as model:
        if "video" in model.model.modalities():
            print(model.generate(question, videos=[video], temperature=0, max_tokens=200))
            return
        seen = open_video(video, each_second)
        print(f"> {question}\n{len(seen.frames)} frames, one a second, as pictures:")
        for frame, time in zip(seen.frames, seen.times, strict=True):
            messages = [{"role": "user", "content": question, "images": [Image.fromarray(frame)]}]
            print(f"{time:.1f} s: {model.chat(messages, temperature=0, max_tokens=100)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
