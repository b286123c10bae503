"""Ask a model about a sound.

    python examples/hear.py [FILE.gguf] [SOUND] [QUESTION ...]

Without arguments the embedded model, which knows tones, listens to tones.wav. Whisper's own models
are asked nothing: `ggmodel.transcribe(model, sound)` writes down what they hear.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ggmodel

ASSETS = Path(__file__).parent / "assets"
QUESTIONS = ("what do you hear?", "how many tones?")


def main(
    file: str = str(ASSETS / "tones.gguf"),
    sound: str = str(ASSETS / "tones.wav"),
    *questions: str,
) -> None:
    with ggmodel.load(file) as model:
        for question in questions or QUESTIONS:
            # The sound is encoded once for all questions.
            answer = model.generate(question, audio=[sound], temperature=0, max_tokens=40)
            print(f"> {question}\n{answer.strip()}")
        print(f"transcript: {ggmodel.transcribe(model, sound).text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
