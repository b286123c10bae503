"""libmtmd of llama.cpp, in processes of its own: the rows that it makes of pictures and sounds."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.peers.programs import compiled

MARKER = "<__media__>"


class Refused(Exception):
    """libmtmd ended; its last words."""


class Mtmd:
    """The program `mtmd_rows`, compiled against the headers of llama.cpp.

    Args:
        source: the folder of llama.cpp.
        libraries: that of its build.
        folder: takes the program.
    """

    def __init__(self, source: Path, libraries: Path, folder: Path):
        self._program, self._folder = compiled("mtmd_rows", source, libraries, folder), folder

    def prepared(self, mmproj: Path, kind: str, items: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The rows float32 [rows, width] of each item.

        Args:
            items: images float32 [frames, height, width, 3], where two frames are of one moment;
                or spectra float32 [bands, frames].
        """
        files: list[Path] = []
        for i, item in enumerate(items):
            count, height, width = (1, *item.shape) if kind == "audio" else item.shape[:3]
            files.append(self._write(i, (width, height, count), item.astype(np.float32)))
        return self._run("prepared", mmproj, kind, *files)

    def whole(
        self, mmproj: Path, text: Path, kind: str, prompt: str, items: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """The parts of a prompt: tokens int32 [n], and rows float32 [rows, width].

        Args:
            prompt: has a `MARKER` for each item.
            items: images uint8 [height, width, 3], or samples float32 [n] at the rate of the model.
        """
        files: list[Path] = []
        for i, item in enumerate(items):
            height, width = item.shape[:2] if kind == "image" else (1, len(item))
            files.append(self._write(i, (width, height, 1), item))
        return self._run("whole", mmproj, kind, text, prompt, *files)

    def _write(self, number: int, size: tuple[int, ...], values: np.ndarray) -> Path:
        path = self._folder / f"item-{number}"
        path.write_bytes(np.array(size, np.int32).tobytes() + values.tobytes())
        return path

    def _run(self, *arguments: str | Path) -> list[np.ndarray]:
        done = subprocess.run(
            [self._program, *arguments], capture_output=True, timeout=120, check=False
        )
        if done.returncode:
            raise Refused(done.stderr.decode(errors="replace"))
        found: list[np.ndarray] = []
        data = done.stdout
        while data:
            kind, count, width = np.frombuffer(data, np.int32, 3).tolist()
            values = np.frombuffer(data, np.float32 if kind else np.int32, count * width, 12)
            found.append(values.reshape(count, width) if kind else values)
            data = data[12 + values.nbytes :]
        return found
